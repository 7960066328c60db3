// Draws what is visible, with bounded work a frame: boxes narrower than a few pixels go into one
// line of pixels per row, only wider ones become rectangles and get a label.

import { inkOn } from "../colors";
import { lastAt, type Hit, type LaneModel, type Model } from "./model";

export const ROW = { host: 15, device: 20, idle: 16 } as const;
export const LANE_GAP = 10;
export const AXIS = 34;
const WIDE = 3;
const LABEL = 34;
const MOST_LABELS = 600;

export interface Look {
  ink: string;
  muted: string;
  line: string;
  panel: string;
  accent: string;
  font: string;
}

export interface Scene {
  /** Left edge, ns, and nanoseconds a CSS pixel. */
  t0: number;
  scale: number;
  scroll: number;
  width: number;
  height: number;
  gutter: number;
  selected: Hit | null;
  linked: Hit[];
  /** Names that match the search; null without one. */
  matching: Uint8Array | null;
  range: [number, number] | null;
}

interface Wide {
  x: number;
  y: number;
  w: number;
  h: number;
  name: number;
  box: number;
}

export class Painter {
  private readonly strip = document.createElement("canvas");
  private readonly stripContext = this.strip.getContext("2d", { willReadFrequently: false })!;
  private image: ImageData | null = null;
  private pixels = new Uint32Array(0);
  private cover = new Float32Array(0);
  private inks = new Map<string, string>();

  constructor(
    private readonly model: Model,
    private readonly context: CanvasRenderingContext2D,
  ) {}

  draw(scene: Scene, look: Look, ratio: number): void {
    const { context } = this;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.fillStyle = look.panel;
    context.fillRect(0, 0, scene.width, scene.height);
    const lines = this.visibleRows(scene);
    const plot = scene.width - scene.gutter;
    if (plot <= 0) return;
    this.prepare(Math.ceil(plot * ratio), lines.length);
    const wide: Wide[] = [];
    lines.forEach((line, i) => this.fill(scene, line, i, plot, ratio, wide));
    context.save();
    context.beginPath();
    context.rect(scene.gutter, AXIS, plot, scene.height - AXIS);
    context.clip();
    this.steps(scene, look);
    this.strips(lines, scene, plot);
    this.boxes(scene, wide, look);
    this.emphasis(scene, look);
    context.restore();
    this.axis(scene, look, plot);
    this.labels(scene, look);
    this.whereabouts(scene, look, plot);
  }

  private visibleRows(scene: Scene): { lane: LaneModel; row: number; y: number; h: number }[] {
    const lines = [];
    for (const lane of this.model.lanes) {
      if (lane.hidden) continue;
      const h = ROW[lane.lane.kind];
      for (let row = 0; row < lane.shown; row++) {
        const y = AXIS + lane.top + row * h - scene.scroll;
        if (y + h > AXIS && y < scene.height) lines.push({ lane, row, y, h });
      }
    }
    return lines;
  }

  private prepare(width: number, rows: number): void {
    const height = Math.max(rows, 1);
    if (this.strip.width !== width || this.strip.height < height) {
      this.strip.width = width;
      this.strip.height = Math.max(height, 64);
      this.image = this.stripContext.createImageData(width, this.strip.height);
      this.pixels = new Uint32Array(this.image.data.buffer);
      this.cover = new Float32Array(width);
    }
    this.pixels.fill(0, 0, width * height);
  }

  private fill(
    scene: Scene,
    line: { lane: LaneModel; row: number; y: number; h: number },
    index: number,
    plot: number,
    ratio: number,
    wide: Wide[],
  ): void {
    const { lane } = line;
    const scale = scene.scale / ratio;
    const level = lane.rows[line.row].at(scale);
    const n = level.start.length;
    const width = this.strip.width;
    const t1 = scene.t0 + plot * scene.scale;
    const matching = scene.matching;
    const offset = index * width;
    this.cover.fill(0);
    let i = Math.max(lastAt(level.start, 0, n, scene.t0) - 1, 0);
    for (; i < n; i++) {
      const start = level.start[i];
      if (start >= t1) break;
      const end = level.end[i];
      if (end < scene.t0) continue;
      const x = (start - scene.t0) / scale;
      const w = (end - start) / scale;
      if (w >= WIDE * ratio) {
        const left = Math.max(x / ratio, -2);
        const right = Math.min((x + w) / ratio, plot + 2);
        wide.push({ x: scene.gutter + left, y: line.y, w: right - left, h: line.h, name: lane.name[level.main[i]], box: lane.base + level.main[i] });
        continue;
      }
      const from = Math.max(Math.floor(x), 0);
      const to = Math.min(Math.max(Math.ceil(x + w), from + 1), width);
      const part = Math.max(level.busy[i] / (end - start || 1), 0.35);
      const hit = !matching || this.anyMatch(matching, lane, level.first[i], i + 1 < n ? level.first[i + 1] : lane.rows[line.row].to);
      const color = this.model.pixels[lane.name[level.main[i]]];
      for (let p = from; p < to; p++) {
        const share = Math.min(w, 1) * part;
        if (share >= this.cover[p] || hit === true) {
          const alpha = Math.min(0.25 + this.cover[p] + share, 1) * (hit ? 1 : 0.18);
          this.pixels[offset + p] = ((color & 0xffffff) | (Math.round(alpha * 255) << 24)) >>> 0;
        }
        this.cover[p] += share;
      }
    }
  }

  private anyMatch(matching: Uint8Array, lane: LaneModel, from: number, to: number): boolean {
    const stop = Math.min(to, from + 64);
    for (let i = from; i < stop; i++) if (matching[lane.name[i]]) return true;
    return false;
  }

  private strips(lines: { y: number; h: number }[], scene: Scene, plot: number): void {
    if (!this.image || !lines.length) return;
    this.stripContext.putImageData(this.image, 0, 0, 0, 0, this.strip.width, lines.length);
    this.context.imageSmoothingEnabled = false;
    lines.forEach((line, i) => {
      this.context.drawImage(this.strip, 0, i, this.strip.width, 1, scene.gutter, line.y, plot, line.h - 1);
    });
  }

  private boxes(scene: Scene, wide: Wide[], look: Look): void {
    const { context, model } = this;
    const { matching } = scene;
    const byColor = new Map<string, Wide[]>();
    for (const box of wide) {
      const color = model.colors[box.name];
      const list = byColor.get(color);
      if (list) list.push(box);
      else byColor.set(color, [box]);
    }
    for (const [color, list] of byColor) {
      context.fillStyle = color;
      for (const box of list) {
        const faint = matching && !matching[box.name];
        if (faint) context.globalAlpha = 0.18;
        context.fillRect(box.x, box.y, Math.max(box.w - 0.6, 0.6), box.h - 1);
        if (faint) context.globalAlpha = 1;
      }
    }
    context.font = `11px ${look.font}`;
    context.textBaseline = "middle";
    let labels = 0;
    for (const box of wide) {
      const left = Math.max(box.x, scene.gutter);
      const room = box.x + box.w - left - 6;
      if (room < LABEL || labels >= MOST_LABELS) continue;
      labels++;
      const text = model.short[box.name];
      const most = Math.floor(room / 5.9);
      const faint = matching && !matching[box.name];
      context.fillStyle = faint ? look.muted : this.ink(model.colors[box.name]);
      context.fillText(text.length > most ? `${text.slice(0, Math.max(most - 1, 1))}…` : text, left + 3, box.y + (box.h - 1) / 2 + 0.5, room + 4);
    }
  }

  private ink(color: string): string {
    let ink = this.inks.get(color);
    if (!ink) this.inks.set(color, (ink = inkOn(color)));
    return ink;
  }

  private emphasis(scene: Scene, look: Look): void {
    const { context } = this;
    if (scene.range) {
      const [a, b] = scene.range;
      const x0 = scene.gutter + (Math.min(a, b) - scene.t0) / scene.scale;
      const x1 = scene.gutter + (Math.max(a, b) - scene.t0) / scene.scale;
      context.fillStyle = look.accent;
      context.globalAlpha = 0.14;
      context.fillRect(x0, AXIS, x1 - x0, scene.height);
      context.globalAlpha = 1;
      context.fillRect(x0, AXIS, 1, scene.height);
      context.fillRect(x1, AXIS, 1, scene.height);
    }
    if (!scene.selected) return;
    context.lineWidth = 2;
    context.strokeStyle = look.ink;
    const from = this.place(scene, scene.selected);
    if (from) context.strokeRect(from.x, from.y, from.w, from.h - 1);
    context.lineWidth = 1.5;
    context.strokeStyle = look.accent;
    for (const other of scene.linked) {
      const to = this.place(scene, other);
      if (!from || !to) continue;
      context.strokeRect(to.x, to.y, to.w, to.h - 1);
      const device = scene.selected.lane.lane.kind === "device" ? from : to;
      const host = device === from ? to : from;
      const y0 = device.y < host.y ? host.y : host.y + host.h;
      const y1 = device.y < host.y ? device.y + device.h : device.y;
      context.beginPath();
      context.moveTo(host.x, y0);
      context.bezierCurveTo(host.x, (y0 + y1) / 2, device.x, (y0 + y1) / 2, device.x, y1);
      context.stroke();
      this.arrowHead(device.x, y1, device.y < host.y ? -1 : 1, look);
    }
  }

  private arrowHead(x: number, y: number, way: number, look: Look): void {
    const { context } = this;
    context.fillStyle = look.accent;
    context.beginPath();
    context.moveTo(x, y);
    context.lineTo(x - 4, y - 6 * way);
    context.lineTo(x + 4, y - 6 * way);
    context.fill();
  }

  /** Where a box stands; a row that is folded away stands for itself at the lane's last row. */
  place(scene: Scene, hit: Hit): { x: number; y: number; w: number; h: number } | null {
    const { lane, box } = hit;
    if (lane.hidden) return null;
    const h = ROW[lane.lane.kind];
    const row = Math.min(lane.rowOf(box), lane.shown - 1);
    const x = scene.gutter + (lane.start[box] - scene.t0) / scene.scale;
    const w = Math.max((lane.end[box] - lane.start[box]) / scene.scale, 2);
    const left = Math.max(x, scene.gutter - 10);
    const right = Math.min(x + w, scene.width + 10);
    return { x: left, y: AXIS + lane.top + row * h - scene.scroll, w: Math.max(right - left, 2), h };
  }

  private steps(scene: Scene, look: Look): void {
    const { context } = this;
    const steps = this.model.timeline.steps[0];
    if (!steps) return;
    context.fillStyle = look.line;
    const { edges } = steps;
    const per = edges.length > 1 ? (edges[edges.length - 1] - edges[0]) / (edges.length - 1) / scene.scale : 0;
    if (per < 4) return;
    for (const edge of edges) {
      const x = scene.gutter + (edge - scene.t0) / scene.scale;
      if (x >= scene.gutter && x <= scene.width) context.fillRect(Math.round(x), AXIS, 1, scene.height);
    }
  }

  private axis(scene: Scene, look: Look, plot: number): void {
    const { context } = this;
    context.fillStyle = look.panel;
    context.fillRect(0, 0, scene.width, AXIS);
    context.fillStyle = look.line;
    context.fillRect(0, AXIS - 1, scene.width, 1);
    context.font = `11px ${look.font}`;
    context.textBaseline = "middle";
    const every = tick(scene.scale * 110);
    context.fillStyle = look.muted;
    for (let t = Math.ceil(scene.t0 / every) * every; t < scene.t0 + plot * scene.scale; t += every) {
      const x = scene.gutter + (t - scene.t0) / scene.scale;
      context.fillRect(Math.round(x), AXIS - 6, 1, 5);
      context.fillText(moment(t, every), x + 3, AXIS - 10);
    }
    this.stepBand(scene, look);
  }

  /** A bar for the whole recording, with the visible part marked. */
  private whereabouts(scene: Scene, look: Look, plot: number): void {
    const { context } = this;
    const span = Math.max(this.model.end, 1);
    const y = scene.height - 5;
    const x = (t: number): number => scene.gutter + Math.min(Math.max(t / span, 0), 1) * plot;
    context.fillStyle = look.line;
    context.fillRect(scene.gutter, y, plot, 5);
    context.fillStyle = look.muted;
    const from = x(scene.t0);
    context.fillRect(Math.min(from, scene.width - 4), y, Math.max(x(scene.t0 + plot * scene.scale) - from, 4), 5);
  }

  private stepBand(scene: Scene, look: Look): void {
    const { context } = this;
    const steps = this.model.timeline.steps[0];
    if (!steps) return;
    const [low, high] = this.model.timeline.window;
    for (let i = 0; i + 1 < steps.edges.length; i++) {
      const x0 = Math.max(scene.gutter + (steps.edges[i] - scene.t0) / scene.scale, scene.gutter);
      const x1 = Math.min(scene.gutter + (steps.edges[i + 1] - scene.t0) / scene.scale, scene.width);
      if (x1 - x0 < 2) continue;
      const steady = steps.edges[i] >= low - 1e6 && steps.edges[i] < high;
      context.globalAlpha = steady ? 0.9 : 0.4;
      context.fillStyle = i % 2 ? look.line : look.muted;
      context.fillRect(x0, 2, x1 - x0 - 1, 3);
      context.globalAlpha = 1;
      if (x1 - x0 > 50) {
        context.fillStyle = look.muted;
        context.fillText(`step ${steps.first + i}`, x0 + 3, 12);
      }
    }
  }

  private labels(scene: Scene, look: Look): void {
    const { context } = this;
    context.fillStyle = look.panel;
    context.fillRect(0, AXIS, scene.gutter, scene.height - AXIS);
    context.fillStyle = look.line;
    context.fillRect(scene.gutter - 1, AXIS, 1, scene.height);
    context.save();
    context.beginPath();
    context.rect(0, AXIS, scene.gutter - 6, scene.height - AXIS);
    context.clip();
    const ranks = new Set(this.model.lanes.map((lane) => lane.lane.rank)).size > 1;
    const most = Math.floor((scene.gutter - 14) / 6);
    for (const lane of this.model.lanes) {
      if (lane.hidden) continue;
      const y = AXIS + lane.top - scene.scroll;
      const tall = lane.shown * ROW[lane.lane.kind];
      if (y + tall < AXIS || y > scene.height) continue;
      const at = Math.max(y, Math.min(AXIS, y + tall - 28));
      context.fillStyle = look.ink;
      context.fillText(cut(ranks ? `r${lane.lane.rank} ${lane.lane.label}` : lane.lane.label, most), 8, at + 9);
      if (tall >= 26 && lane.lane.sublabel) {
        context.fillStyle = look.muted;
        context.fillText(cut(lane.lane.sublabel, most), 8, at + 22);
      }
    }
    context.restore();
  }
}

function cut(text: string, most: number): string {
  return text.length > most ? `${text.slice(0, Math.max(most - 1, 1))}…` : text;
}

/** A time on the axis, with as many decimals as tell it from its neighbours. */
export function moment(ns: number, every: number): string {
  const [factor, unit] = every * 10 >= 1e9 ? [1e9, "s"] : every * 1e3 >= 1e6 ? [1e6, "ms"] : every >= 1 ? [1e3, "µs"] : [1, "ns"];
  const decimals = Math.max(0, Math.ceil(-Math.log10(every / factor) - 1e-9));
  return `${(ns / factor).toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals })} ${unit}`.replace(/^-(0(\.0+)? )/, "$1");
}

/** A round step at least as long as `ns`. */
export function tick(ns: number): number {
  const power = 10 ** Math.floor(Math.log10(Math.max(ns, 1)));
  for (const m of [1, 2, 5, 10]) if (m * power >= ns) return m * power;
  return 10 * power;
}
