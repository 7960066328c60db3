// Charts: lines by uPlot, the roofline and small bars as SVG and boxes.

import { scaleLog, type ScaleLogarithmic } from "d3-scale";
import uPlot from "uplot";
import { CLASS_COLORS, KIND_COLORS } from "./colors";
import type { Comm, MemoryCurve, Opened, Queue, RankRow, Roofline, StepRow, Table } from "./data";
import { across, h, replace, svg } from "./dom";
import { dot } from "./overview";
import { tableView } from "./table";
import { DEF } from "./texts";
import { num } from "./tip";
import { count, duration, percent, plural, quantity, rate, size } from "./units";

const ink = (name: string): string => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

interface Series {
  label: string;
  values: Float64Array | number[];
  color: string;
  stepped?: boolean;
  points?: boolean;
  dash?: number[];
}

// Distances of ticks that read well: bytes go by powers of two, steps by whole numbers.
const BYTE_STEPS = Array.from({ length: 44 }, (_, e) => 2 ** e);
const WHOLE_STEPS = Array.from({ length: 7 }, (_, e) => [1, 2, 5].map((m) => m * 10 ** e)).flat();

interface Axes {
  formatX: (v: number) => string;
  formatY: (v: number) => string;
  stepsX?: number[];
  stepsY?: number[];
}

/** A line chart that follows its box and the theme. */
function lines(label: string, x: Float64Array | number[], series: Series[], { formatX, formatY, stepsX, stepsY }: Axes): HTMLElement {
  const box = h("div", { class: "chart", role: "img", "aria-label": label });
  let plot: uPlot | null = null;
  const make = (): void => {
    if (!box.clientWidth) return;
    plot?.destroy();
    const axis = { stroke: ink("--muted"), grid: { stroke: ink("--line"), width: 1 }, ticks: { stroke: ink("--line") }, font: "11px system-ui, sans-serif" };
    plot = new uPlot({
      width: box.clientWidth, height: 220, legend: { show: true, live: true }, cursor: { y: false },
      scales: { x: { time: false }, y: { range: (_, __, max) => [0, max * 1.05 || 1] } },
      axes: [
        { ...axis, values: (_, ticks) => ticks.map(formatX), ...(stepsX ? { incrs: stepsX } : {}) },
        { ...axis, size: 76, values: (_, ticks) => ticks.map(formatY), ...(stepsY ? { incrs: stepsY } : {}) },
      ],
      series: [
        { label: "at", value: (_, v) => (v === null ? "–" : formatX(v)) },
        ...series.map((s) => ({
          label: s.label, stroke: s.color, width: 1.5, points: { show: s.points ?? false, size: 5 },
          value: (_: uPlot, v: number | null) => (v === null ? "–" : formatY(v)),
          ...(s.dash ? { dash: s.dash } : {}),
          ...(s.stepped ? { paths: uPlot.paths.stepped!({ align: 1 }) } : {}),
        })),
      ],
    }, [x as number[], ...series.map((s) => s.values as number[])], box);
  };
  let width = 0;
  new ResizeObserver(() => {
    if (Math.abs(box.clientWidth - width) < 2) return;
    width = box.clientWidth;
    make();
  }).observe(box);
  document.addEventListener("themechange", make);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", make);
  return box;
}

function facts(entries: [string, string, string][]): HTMLElement {
  const list = h("dl", { class: "figures" });
  for (const [name, value, definition] of entries) {
    list.append(h("div", {}, h("dt", { text: name }), h("dd", {}, num(value, definition, "strong"))));
  }
  return list;
}

// ---- memory --------------------------------------------------------------------------------

export function memoryChart(curve: MemoryCurve, opened: Opened, several: boolean): HTMLElement {
  const where = curve.device < 0 ? "Host" : `Device ${curve.device}`;
  const title = several ? `${where}, rank ${curve.rank}` : where;
  const figures: [string, string, string][] = [["peak allocated", size(curve.peak_bytes), DEF.peak]];
  if (curve.peak_reserved_bytes) figures.push(["peak reserved", size(curve.peak_reserved_bytes), DEF.peakReserved]);
  if (curve.capacity_bytes) figures.push(["of the device", percent(Math.max(curve.peak_reserved_bytes, curve.peak_bytes) / curve.capacity_bytes), DEF.capacity]);
  const series: Series[] = [{ label: "allocated", values: opened.numbers(curve.allocated), color: CLASS_COLORS.compute, stepped: true }];
  if (curve.reserved) series.push({ label: "reserved", values: opened.numbers(curve.reserved), color: CLASS_COLORS.data_loading, stepped: true, dash: [4, 3] });
  return h("div", { class: "block" }, h("h3", { text: title }), facts(figures),
    h("p", { class: "note", text: `The peak is at ${duration(curve.peak_ns)}.` }),
    lines(`Memory of ${title} over time; the peak is ${size(curve.peak_bytes)}.`, opened.numbers(curve.time_ns), series, { formatX: duration, formatY: size, stepsY: BYTE_STEPS }),
    holders(curve));
}

const BY: Record<string, string> = { category: "Kind", module: "Module", op: "Operator", line: "Function" };

function holders(curve: MemoryCurve): HTMLElement {
  const box = h("div", {}, h("h4", { text: "What holds the peak" }));
  const unknown = curve.unknown_bytes;
  if (unknown > 0.02 * curve.peak_bytes) {
    box.append(h("p", {}, num(size(unknown), DEF.unknownMemory), " was allocated before the recording began."));
  }
  if (!curve.holders.length) {
    box.append(h("p", { class: "missing", text: "Nothing allocated inside the recording is left at the peak, or it was allocated outside recorded events." }));
    return box;
  }
  const columns = h("div", { class: "columns" });
  for (const by of ["category", "module", "op", "line"]) {
    const mine = curve.holders.filter((holder) => holder.by === by);
    if (!mine.length) continue;
    const most = Math.max(...mine.map((holder) => holder.bytes));
    const list = h("ul", { class: "bars" });
    for (const holder of mine.slice(0, 8)) {
      list.append(h("li", { title: `${plural(holder.count, "block")}` }, h("span", { class: "label", text: holder.name }), h("span", { class: "value", text: size(holder.bytes) }),
        h("span", { class: "rail", "aria-hidden": "true" }, across(h("span", { class: "fill" }), 0, holder.bytes / most))));
    }
    columns.append(h("div", {}, h("h5", { text: BY[by] }), list));
  }
  box.append(columns, h("p", { class: "note", text: "Kinds are inferred from where a block was allocated; the recording does not name them." }));
  return box;
}

// ---- steps ---------------------------------------------------------------------------------

/** The steps as a table. */
export function stepTable(steps: StepRow[]): Table {
  const device = steps.some((s) => s.device_ns); // not recorded is not 0
  return {
    id: "steps", title: "Steps", levels: null, note: "", missing: "",
    columns: [
      { title: "step", unit: "count", meaning: "Number of the step in the recording." },
      { title: "start", unit: "ns", meaning: "Start, from the beginning of the recording." },
      { title: "length", unit: "ns", meaning: "Distance to the next step's mark on the host, as recorded." },
      ...(device ? [{ title: "device work", unit: "ns", meaning: "Summed length of kernels and copies that the step launched." } as const] : []),
      { title: "steady", unit: "text", meaning: "Whether the budget speaks of this step; a long first one does not count." },
    ],
    rows: steps.map((s) => [s.index, s.start_ns, s.host_ns, ...(device ? [s.device_ns] : []), s.steady ? "yes" : "no"]),
  };
}

export function stepChart(steps: StepRow[]): HTMLElement {
  const times = steps.map((s) => s.host_ns);
  const mean = times.reduce((a, b) => a + b, 0) / times.length;
  const spread = Math.sqrt(times.reduce((a, b) => a + (b - mean) ** 2, 0) / times.length) / (mean || 1);
  const sorted = [...times].sort((a, b) => a - b);
  const slowest = steps.reduce((a, b) => (b.host_ns > a.host_ns ? b : a));
  const series: Series[] = [{ label: "step", values: times, color: CLASS_COLORS.framework, points: steps.length < 80 }];
  if (steps.some((s) => s.device_ns)) series.push({ label: "device work", values: steps.map((s) => s.device_ns), color: CLASS_COLORS.compute, points: steps.length < 80 });
  return h("div", { class: "block" },
    facts([["median", duration(sorted[sorted.length >> 1]), DEF.stepMedian], ["spread", percent(spread), DEF.stepSpread], [`longest, step ${slowest.index}`, duration(slowest.host_ns), DEF.stepMax]]),
    steps.length > 1 ? lines("Length of each step and the device work in it", steps.map((s) => s.index), series, { formatX: (v) => `step ${v}`, formatY: (v) => (v ? duration(v) : "0"), stepsX: WHOLE_STEPS }) : null,
    tableView(stepTable(steps)));
}

// ---- launch queue --------------------------------------------------------------------------

export function queueChart(queue: Queue, opened: Opened): HTMLElement {
  const { edges, counts } = queue.delay;
  const all = counts.reduce((a, b) => a + b, 0) || 1;
  const most = Math.max(...counts);
  const list = h("ul", { class: "bars histogram" });
  const last = counts.reduce((found, n, i) => (n ? i : found), 0);
  for (let i = 0; i <= last; i++) {
    const label = i + 2 === edges.length ? `${duration(edges[i])} and more` : `${duration(edges[i])} to ${duration(edges[i + 1])}`;
    list.append(h("li", {}, h("span", { class: "label", text: label }), h("span", { class: "value", text: percent(counts[i] / all) }),
      h("span", { class: "rail", "aria-hidden": "true" }, across(h("span", { class: "fill" }), 0, counts[i] / most))));
  }
  const sentence = queue.empty_ratio > 0.5
    ? "Most kernels found an empty queue: the device waits for the host to launch."
    : queue.empty_ratio > 0.1
      ? "The queue runs empty at times: there the device waits for the host."
      : "The host runs ahead of the device: launching is not the limit.";
  return h("div", { class: "block" }, h("p", { text: sentence }),
    facts([["median delay", duration(queue.median_ns), DEF.queueMedian], ["nine in ten below", duration(queue.p90_ns), DEF.queueP90], ["found it empty", percent(queue.empty_ratio), DEF.queueEmpty]]),
    h("div", { class: "columns" },
      h("div", {}, h("h3", { class: "minor", text: "Time from launch to start, share of kernels" }), list),
      h("div", {}, h("h3", { class: "minor", text: "Kernels launched and not started, over time" }),
        lines("Kernels waiting in the queue over time", opened.numbers(queue.time_ns), [{ label: "waiting", values: opened.numbers(queue.depth), color: CLASS_COLORS.compute }], { formatX: duration, formatY: count, stepsY: WHOLE_STEPS }))));
}

// ---- roofline ------------------------------------------------------------------------------

const FAMILY_COLORS: Record<string, string> = {
  gemm: KIND_COLORS.gemm, conv: KIND_COLORS.gemm, attention: KIND_COLORS.attention, elementwise: KIND_COLORS.elementwise,
  fused: KIND_COLORS.elementwise, copy: KIND_COLORS.elementwise, reduction: KIND_COLORS.reduction, norm: KIND_COLORS.reduction,
  softmax: KIND_COLORS.reduction, optimizer: KIND_COLORS.optimizer,
};

export function rooflineChart(roof: Roofline): HTMLElement {
  const stage = h("div", { class: "chart roofline" });
  const detail = h("p", { class: "note", role: "status", text: "Hover or select a circle: the name, what bounds it, how close it comes." });
  const draw = (): void => replace(stage, rooflineSvg(roof, stage.clientWidth, detail));
  let width = 0;
  new ResizeObserver(() => {
    if (Math.abs(stage.clientWidth - width) < 2) return;
    width = stage.clientWidth;
    draw();
  }).observe(stage);
  const families = [...new Set(roof.points.map((p) => p.family))];
  const legend = h("ul", { class: "keys" }, ...families.map((f) => h("li", {}, dot(FAMILY_COLORS[f] ?? KIND_COLORS.kernel), f)));
  const table = {
    id: "roofline", title: "Roofline", levels: null, note: "", missing: "",
    columns: [
      { title: "kernel", unit: "text", meaning: "Name of the kernel." },
      { title: "precision", unit: "text", meaning: "Arithmetic unit that counts." },
      { title: "time", unit: "ns", meaning: "Time per step." },
      { title: "FLOP/byte", unit: "count", meaning: "Operations by bytes of compulsory traffic: arithmetic intensity." },
      { title: "rate", unit: "flop_per_s", meaning: "Operations by time." },
      { title: "traffic", unit: "bytes_per_s", meaning: "Bytes by time." },
      { title: "bound by", unit: "text", meaning: "What limits it." },
      { title: "of roof", unit: "ratio", meaning: "Shortest time that the data sheet allows, as a share of the measured time." },
    ],
    rows: roof.points.map((p) => [p.name, p.precision, p.ns, Math.round(p.flop_per_byte * 100) / 100, p.flop_per_s, p.bytes_per_s, p.bound, p.efficiency]),
  };
  return h("div", { class: "block" },
    facts([["device", roof.device, "The device whose data sheet gives the roofs."], ["known work", percent(roof.coverage), DEF.coverage]]),
    stage, legend, detail, h("details", {}, h("summary", { text: "The same as a table" }), tableView(table)));
}

function rooflineSvg(roof: Roofline, width: number, detail: HTMLElement): SVGElement {
  const height = Math.max(280, Math.min(420, width * 0.5));
  const margin = { left: 84, right: 16, top: 14, bottom: 40 };
  const xs = roof.points.map((p) => p.flop_per_byte);
  const ys = roof.points.map((p) => p.flop_per_s);
  const top = Math.max(...roof.roofs.map((r) => r.flop_per_s), ...ys);
  const x = scaleLog([Math.min(0.05, ...xs) / 1.5, Math.max(1000, ...xs) * 1.5], [margin.left, width - margin.right]);
  const y = scaleLog([Math.max(Math.min(...ys) / 2, top / 1e5), top * 1.6], [height - margin.bottom, margin.top]);
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "group", "aria-label": "Roofline: arithmetic intensity against rate, one circle a kernel" });
  axes(root, x, y, width, height, margin);
  for (const line of roof.roofs) {
    const ridge = line.flop_per_s / roof.bytes_per_s;
    const [low, high] = x.domain();
    const path = `M${x(low)},${y(Math.max(low * roof.bytes_per_s, y.domain()[0]))} L${x(ridge)},${y(line.flop_per_s)} L${x(high)},${y(line.flop_per_s)}`;
    const start = Math.max(low, y.domain()[0] / roof.bytes_per_s);
    root.append(svg("path", { d: path.replace(/^M[^ ]+/, `M${x(start)},${y(start * roof.bytes_per_s)}`), class: "roof" }));
    const label = svg("text", { x: width - margin.right - 4, y: y(line.flop_per_s) - 5, "text-anchor": "end", class: "rooflabel" });
    label.textContent = `${line.label} ${rate(line.flop_per_s, "FLOP")}`;
    root.append(label);
  }
  const largest = Math.max(...roof.points.map((p) => p.ns), 1);
  for (const p of [...roof.points].sort((a, b) => b.ns - a.ns)) {
    const words = `${p.name}: ${duration(p.ns)} a step, ${quantity(p.flop_per_s, "flop_per_s")}, bound by ${p.bound}, ${percent(p.efficiency)} of the roof`;
    const circle = svg("circle", {
      cx: x(p.flop_per_byte), cy: y(Math.max(p.flop_per_s, y.domain()[0])), r: 3 + 15 * Math.sqrt(p.ns / largest),
      fill: FAMILY_COLORS[p.family] ?? KIND_COLORS.kernel, class: "bubble", tabindex: "0", role: "img", "aria-label": words,
    });
    const say = (): void => void (detail.textContent = words);
    circle.addEventListener("mouseenter", say);
    circle.addEventListener("focus", say);
    root.append(circle);
  }
  return root;
}

type Log = ScaleLogarithmic<number, number>;

function axes(root: SVGElement, x: Log, y: Log, width: number, height: number, margin: Record<string, number>): void {
  const powers = (scale: Log): number[] => {
    const [low, high] = scale.domain();
    const found = [];
    for (let e = Math.ceil(Math.log10(low)); e <= Math.floor(Math.log10(high)); e++) found.push(10 ** e);
    return found;
  };
  for (const tick of powers(x)) {
    root.append(svg("line", { x1: x(tick), x2: x(tick), y1: margin.top, y2: height - margin.bottom, class: "grid" }));
    root.append(text(x(tick), height - margin.bottom + 16, tick < 1 ? String(tick) : count(tick), "middle"));
  }
  for (const tick of powers(y)) {
    root.append(svg("line", { x1: margin.left, x2: width - margin.right, y1: y(tick), y2: y(tick), class: "grid" }));
    root.append(text(margin.left - 6, y(tick) + 4, rate(tick, "FLOP").replace(/\.0+ /, " "), "end"));
  }
  root.append(text((margin.left + width) / 2, height - 6, "arithmetic intensity, FLOP per byte", "middle"));
}

function text(x: number, y: number, words: string, anchor: string): SVGElement {
  const element = svg("text", { x, y, "text-anchor": anchor, class: "tick" });
  element.textContent = words;
  return element;
}

// ---- ranks ---------------------------------------------------------------------------------

const MOST_BARS = 24;

/** Of very many ranks those that say most: who makes the others wait, and who waits. */
function telling(rows: RankRow[]): RankRow[] {
  if (rows.length <= MOST_BARS) return rows;
  const late = [...rows].sort((a, b) => b.caused_ns - a.caused_ns).slice(0, MOST_BARS / 2);
  const waiting = rows.filter((row) => !late.includes(row)).sort((a, b) => b.waiting_ns - a.waiting_ns);
  return [...late, ...waiting.slice(0, MOST_BARS / 2)].sort((a, b) => a.rank - b.rank);
}

export function ranksChart(comm: Comm, collectives: Table | undefined): HTMLElement {
  const most = Math.max(...comm.rows.map((r) => r.step_ns), 1);
  const parts: [string, string, (r: Comm["rows"][number]) => number][] = [
    ["compute", CLASS_COLORS.compute, (r) => r.compute_ns],
    ["transfer that nothing hides", "#c9749f", (r) => Math.max(r.exposed_comm_ns - r.waiting_ns, 0)],
    ["waiting for another rank", CLASS_COLORS.communication, (r) => r.waiting_ns],
    ["neither", CLASS_COLORS.unattributed, (r) => Math.max(r.step_ns - r.compute_ns - r.exposed_comm_ns, 0)],
  ];
  const list = h("ul", { class: "ranks" });
  for (const row of telling(comm.rows)) {
    const bar = h("div", { class: "bar", role: "img", "aria-label": parts.map(([name, , of]) => `${name} ${duration(of(row))}`).join(", ") });
    bar.style.width = `${(row.step_ns / most) * 100}%`;
    for (const [name, color, of] of parts) {
      const part = h("span", { class: "part", title: `${name}: ${duration(of(row))}` });
      part.style.background = color;
      part.style.flexGrow = String(of(row) / most);
      bar.append(part);
    }
    list.append(h("li", {}, h("span", { class: "label" }, `rank ${row.rank}`, row.rank === comm.straggler ? h("small", { text: "late" }) : null), h("div", { class: "rail" }, bar)));
  }
  const columns: [string, string, keyof Comm["rows"][number]][] = [
    ["step", "Recorded step time.", "step_ns"],
    ["busy", "Time per step in which the device did anything.", "busy_ns"],
    ["compute", "Time per step in which a kernel that is not communication ran.", "compute_ns"],
    ["hidden", "Communication per step behind compute.", "hidden_comm_ns"],
    ["exposed", "Communication per step that no compute hides.", "exposed_comm_ns"],
    ["waiting", "Part of the exposed communication spent waiting for a later rank.", "waiting_ns"],
    ["makes wait", "How long the other ranks wait for this one per step, on average.", "caused_ns"],
  ];
  const table = {
    id: "ranks", title: "Ranks", levels: null, note: "", missing: "",
    columns: [{ title: "rank", unit: "count", meaning: "Number of the rank." }, ...columns.map(([title, meaning]) => ({ title, unit: "ns", meaning }))],
    rows: comm.rows.map((row) => [row.rank, ...columns.map(([, , key]) => row[key])]),
  };
  const keys = h("ul", { class: "keys" }, ...parts.map(([name, color]) => h("li", {}, dot(color), name)));
  return h("div", { class: "block" }, h("p", { text: comm.sentence }), comm.rows.length ? list : null, comm.rows.length ? keys : null, tableView(table),
    comm.rows.length > MOST_BARS ? h("p", { class: "note", text: `Drawn are the ${MOST_BARS} ranks that make others wait or wait themselves most; the table has all.` }) : null,
    collectives?.rows.length ? h("h3", { text: "Collectives of the rank that sets the pace" }) : null,
    collectives?.rows.length ? tableView(collectives) : null);
}
