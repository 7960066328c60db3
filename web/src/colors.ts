// Colours. Classes use Paul Tol's "bright" scheme, which colour-blind readers can tell apart;
// wherever a colour means something, a word or a position says the same.

export const CLASS_COLORS: Record<string, string> = {
  compute: "#4477aa",
  memory: "#5fb9d8",
  data_loading: "#d9a62e",
  communication: "#aa3377",
  framework: "#e2707d",
  unattributed: "#a4abb3",
  undetermined: "#a4abb3",
  quality: "#7b8794",
};

export const KIND_COLORS: Record<string, string> = {
  user: "#8fb98a",
  python: "#b6bec7",
  module: "#a9c4de",
  op: "#7ea6cf",
  call: "#c9bcdd",
  launch: "#a893cb",
  sync: "#e2707d",
  copy_call: "#d9b65c",
  range: "#c6ccb2",
  loader: "#d9a62e",
  collective_call: "#c9749f",
  gemm: "#4477aa",
  attention: "#2d5c8f",
  elementwise: "#5fb9d8",
  reduction: "#44aa99",
  optimizer: "#8fb567",
  kernel: "#8a9db3",
  collective: "#aa3377",
  copy: "#d9a62e",
  other: "#a9b0b8",
};

export const KIND_WORDS: Record<string, string> = {
  user: "Python of the program",
  python: "Python of libraries",
  module: "module",
  op: "operator",
  call: "runtime call",
  launch: "launch",
  sync: "wait for the device",
  copy_call: "copy call",
  range: "named range",
  loader: "data loading",
  collective_call: "collective call",
  gemm: "matrix product, convolution",
  attention: "attention",
  elementwise: "elementwise, copy, fused",
  reduction: "reduction, norm, softmax",
  optimizer: "optimizer",
  kernel: "other kernel",
  collective: "communication",
  copy: "copy, memset",
  other: "other",
};

export function kindColor(kind: string): string {
  if (kind.startsWith("idle_")) return CLASS_COLORS[kind.slice(5)] ?? CLASS_COLORS.unattributed;
  return KIND_COLORS[kind] ?? KIND_COLORS.other;
}

export const SHADES = [0, 0.38, -0.22, 0.62, -0.4, 0.2, 0.78, -0.55];
const reasons = new Map<string, string>();

/** Colour of a box: reasons for idle time share the hue of their class and differ in shade. */
export function boxColor(name: { text: string; kind: string }): string {
  if (!name.kind.startsWith("idle_")) return kindColor(name.kind);
  const text = name.text.replace(/^idle: /, "");
  let color = reasons.get(text);
  if (!color) {
    const hue = kindColor(name.kind);
    const used = new Set(reasons.values());
    const free = SHADES.map((s) => shade(hue, s)).find((c) => !used.has(c));
    reasons.set(text, (color = free ?? hue));
  }
  return color;
}

/** Gives the reasons of the budget the colours that they have there. */
export function reserveReason(text: string, color: string): void {
  reasons.set(text, color);
}

export function kindWord(kind: string): string {
  return kind.startsWith("idle_") ? "idle time" : (KIND_WORDS[kind] ?? kind);
}

export function rgb(hex: string): [number, number, number] {
  const value = parseInt(hex.slice(1), 16);
  return [value >> 16, (value >> 8) & 255, value & 255];
}

/** A colour mixed with white (share > 0) or black (share < 0). */
export function shade(hex: string, share: number): string {
  const goal = share > 0 ? 255 : 0;
  const part = Math.abs(share);
  const mix = rgb(hex).map((c) => Math.round(c + (goal - c) * part));
  return `#${mix.map((c) => c.toString(16).padStart(2, "0")).join("")}`;
}

/** Black or white, whichever reads better on a colour. */
export function inkOn(hex: string): string {
  const [r, g, b] = rgb(hex).map((c) => {
    const s = c / 255;
    return s <= 0.04045 ? s / 12.92 : ((s + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.22 ? "#14181c" : "#ffffff";
}
