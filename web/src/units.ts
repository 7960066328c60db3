// Numbers in words, three significant digits: the same rules as the other outputs.

function decimals(value: number): number {
  const size = Math.abs(value);
  return size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2;
}

function fixed(value: number, digits: number): string {
  return value.toLocaleString("en-US", {
    minimumFractionDigits: digits,
    maximumFractionDigits: digits,
  });
}

type Scale = [number, string][];
const TIMES: Scale = [[1, "ns"], [1e3, "µs"], [1e6, "ms"], [1e9, "s"]];
const SIZES: Scale = [[1, "B"], [2 ** 10, "KiB"], [2 ** 20, "MiB"], [2 ** 30, "GiB"], [2 ** 40, "TiB"]];
const DECIMAL: Scale = [[1, ""], [1e3, "k"], [1e6, "M"], [1e9, "G"], [1e12, "T"], [1e15, "P"]];

function scaled(value: number, scale: Scale, full: number): [number, string] {
  for (const step of scale) if (Math.abs(value) / step[0] < full) return step;
  return scale[scale.length - 1];
}

export function duration(ns: number): string {
  const [factor, unit] = scaled(ns, TIMES, 999.5);
  const value = ns / factor;
  return `${fixed(value, unit === "ns" ? 0 : decimals(value))} ${unit}`;
}

/** A change of time, with its sign. */
export function change(ns: number): string {
  if (ns === 0) return "0";
  return `${ns < 0 ? "−" : "+"}${duration(Math.abs(ns))}`;
}

/** A change as a share of what was, with its sign. */
export function changeShare(before: number, after: number): string {
  if (before === 0) return after === 0 ? "0 %" : "new";
  const share = after / before - 1;
  if (share > 9) return `${times(after / before)} as much`;
  return `${share < 0 ? "−" : "+"}${percent(Math.abs(share))}`;
}

export function size(bytes: number): string {
  const [factor, unit] = scaled(bytes, SIZES, 1023.5);
  const value = bytes / factor;
  return `${fixed(value, unit === "B" ? 0 : decimals(value))} ${unit}`;
}

export function rate(perSecond: number, unit: string): string {
  const [factor, prefix] = scaled(perSecond, DECIMAL, 999.5);
  const value = perSecond / factor;
  return `${fixed(value, decimals(value))} ${prefix}${unit}/s`;
}

export function percent(ratio: number): string {
  const value = ratio * 100;
  if (value === 0) return "0 %";
  if (value > 0 && value < 0.05) return "< 0.1 %";
  if (value >= 99.95 && value < 100) return "> 99.9 %";
  const fine = Math.abs(value) < 0.95 || (value >= 99.5 && value < 100);
  return `${fixed(value, fine ? 1 : 0)} %`;
}

export function count(value: number): string {
  if (Number.isInteger(value)) return fixed(value, 0);
  return fixed(value, Math.abs(value) >= 10 ? 1 : 2);
}

export function times(factor: number): string {
  return `${fixed(factor, factor >= 9.95 ? 0 : factor < 1.195 ? 2 : 1)}x`;
}

export function plural(n: number, one: string, many = `${one}s`): string {
  return `${count(n)} ${n === 1 ? one : many}`;
}

/** A value of a table or chart, by its unit. */
export function quantity(value: string | number | null, unit: string): string {
  if (value === null) return "–";
  if (typeof value === "string") return value;
  switch (unit) {
    case "ns":
      return duration(value);
    case "change_ns":
      return change(value);
    case "bytes":
      return size(value);
    case "ratio":
      return value <= 1 ? percent(value) : times(value);
    case "bytes_per_s":
      return rate(value, "B");
    case "flop_per_s":
      return rate(value, "FLOP");
    default:
      return count(value);
  }
}
