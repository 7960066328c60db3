// The data of the page: the result as JSON, the view as deflated columns.

export interface Location {
  file: string | null;
  line: number | null;
  function: string | null;
  module: string | null;
  exact: boolean;
  count: number;
  snippet: string | null;
}

export interface Evidence {
  name: string;
  value: number | string | null;
  unit: string;
  origin: string;
}

export interface Gain {
  low: number;
  mid: number;
  high: number;
  basis: string;
}

export interface Finding {
  code: string;
  name: string;
  class: string;
  severity: string;
  confidence: number;
  message: string;
  evidence: Evidence[];
  locations: Location[];
  fix: { summary: string; snippet: string; reference: string };
  gain: Gain;
  rank: number | null;
}

export interface Result {
  kinetoscope: string;
  inputs: {
    path: string;
    kind: string;
    rank: number | null;
    events: number;
    devices: { id: number; name: string | null }[];
    torch: string | null;
  }[];
  verdict: { bottleneck: string; healthy: boolean; confidence: number; sentence: string };
  step: {
    count: number;
    source: string;
    time_ns: { low: number; mid: number; high: number };
    recorded_ns: number;
  };
  budget: { class: string; label: string; ns: number; share: number }[];
  device_timeline: Record<string, number>[];
  utilisation?: { rank: number; device: number; name: string; mfu: number; hfu: number; coverage: number; lower_bound: boolean } | null;
  findings: Finding[];
  rules: { code: string; status: string; reason: string | null; withheld?: string | null }[];
  notes: string[];
}

export interface FindingWords {
  gain: string;
  expected: string;
  confidence: string;
  places: string[];
  place_details: string[];
  code_lines: string[][];
  evidence: { name: string; value: string }[];
}

export interface Words {
  classes: Record<string, string>;
  standing: string;
  confidence: string;
  step_time: string;
  step_detail: string;
  next: string;
  inputs: string[];
  damage: string[];
  rules: string;
  skipped: { text: string; codes: string[] }[];
  findings: FindingWords[];
}

export interface Document_ {
  kind: "result";
  /** How it compares with an earlier result, when one was given. */
  before?: ComparisonDocument;
  result: Result;
  words: Words;
  more_inputs: number;
}

export interface Column {
  size: number;
  width: number;
  delta: boolean;
  signed: boolean;
  data: [number, number];
}

export interface Name {
  text: string;
  kind: string;
}

export interface Lane {
  kind: "host" | "device" | "idle";
  rank: number;
  label: string;
  sublabel: string;
  events: number;
  total_ns: number;
  rows: number[];
  start: Column;
  length: Column;
  name: Column;
  count: Column;
  slack: Column;
  link: Column | null;
  detail: Column | null;
}

export interface Timeline {
  end_ns: number;
  window: [number, number];
  names: Name[];
  lanes: Lane[];
  steps: { rank: number; edges: number[]; first: number }[];
  details: string[];
  events: number;
  merged_below_ns: number;
  merged_events: number;
  merged_boxes: number;
  kept: [number, number] | null;
  left_out: string[];
}

export interface Flame {
  names: Name[];
  name: Column;
  depth: Column;
  host_ns: Column;
  device_ns: Column;
  calls: Column;
  steps: number;
  host_steps: number;
  pruned_ns: number;
}

export type Cell = string | number | null;

export interface Table {
  id: string;
  title: string;
  columns: { title: string; unit: string; meaning: string }[];
  rows: Cell[][];
  levels: number[] | null;
  note: string;
  missing: string;
}

export interface MemoryCurve {
  rank: number;
  device: number;
  time_ns: Column;
  allocated: Column;
  reserved: Column | null;
  peak_ns: number;
  peak_bytes: number;
  peak_reserved_bytes: number;
  capacity_bytes: number | null;
  holders: { by: string; name: string; bytes: number; count: number }[];
  unknown_bytes: number;
}

export interface RoofPoint {
  name: string;
  family: string;
  precision: string;
  flop_per_byte: number;
  flop_per_s: number;
  bytes_per_s: number;
  ns: number;
  count: number;
  bound: string;
  efficiency: number;
}

export interface Roofline {
  device: string;
  bytes_per_s: number;
  roofs: { label: string; flop_per_s: number }[];
  points: RoofPoint[];
  coverage: number;
  missing: string;
}

export interface RankRow {
  rank: number;
  step_ns: number;
  busy_ns: number;
  compute_ns: number;
  hidden_comm_ns: number;
  exposed_comm_ns: number;
  waiting_ns: number;
  caused_ns: number;
}

export interface Comm {
  rows: RankRow[];
  trusted: boolean;
  straggler: number | null;
  sentence: string;
  missing: string;
}

export interface StepRow {
  index: number;
  start_ns: number;
  host_ns: number;
  device_ns: number;
  steady: boolean;
}

export interface Queue {
  delay: { edges: number[]; counts: number[] };
  median_ns: number;
  p90_ns: number;
  empty_ratio: number;
  time_ns: Column;
  depth: Column;
}

export interface Focus {
  finding: number;
  rank: number;
  start_ns: number;
  end_ns: number;
  search: string;
  path: Name[];
}

export interface View {
  version: number;
  lead_rank: number;
  timeline: Timeline | null;
  flame: Flame | null;
  tables: Table[];
  memory: MemoryCurve[];
  memory_missing: string;
  roofline: Roofline | null;
  comm: Comm | null;
  steps: StepRow[];
  queue: Queue | null;
  focus: Focus[];
  facts: { title: string; text: string; good: boolean | null }[];
}

export const VIEW_VERSION = 1;

// ---- comparisons --------------------------------------------------------------------------

export interface Ratio {
  low: number;
  mid: number;
  high: number;
}

export interface Side {
  paths: string[];
  runs: number;
  ranks: number;
  steps: number;
  step_ns: number;
  low_ns: number;
  high_ns: number;
  run_ns: number[];
  bottleneck: string;
  sentence: string;
  healthy: boolean;
}

export interface BudgetChange {
  class: string;
  label: string;
  before_ns: number;
  after_ns: number;
  change_ns: number;
  noise_ns: number;
  change: string;
}

export interface FindingChange {
  code: string;
  name: string;
  class: string;
  fate: string;
  severity: string;
  message: string;
  gain: Gain;
  location: Location | null;
}

export interface Scaling {
  kind: string;
  points: {
    ranks: number;
    step_ns: number;
    speedup: number;
    efficiency: number;
    efficiency_low: number;
    efficiency_high: number;
    by_class: Record<string, number>;
  }[];
  eaten_by: string;
  sentence: string;
}

export interface Comparison {
  kinetoscope: string;
  verdict: { outcome: string; speedup: Ratio | null; sentence: string; recorded_speedup: number | null };
  comparable: { answer: boolean };
  before: Side;
  after: Side;
  margin: number;
  budget: BudgetChange[];
  findings: { gone: FindingChange[]; stayed: FindingChange[]; new: FindingChange[] };
  scaling: Scaling | null;
  notes: string[];
}

export type Fate = "gone" | "stayed" | "new";

export interface SideWords {
  paths: string;
  side: string;
  more_paths: number;
}

export interface PredictionWords {
  text: string;
  code: string;
  kept: string;
  gain: string;
  achieved: string;
  step: string;
  step_ns: { low: number; mid: number; high: number };
}

export interface ComparisonWords {
  classes: Record<string, string>;
  outcome: string;
  speedup: string;
  next: string;
  likeness: string;
  differences: { text: string; effect: string }[];
  before: SideWords;
  after: SideWords;
  findings: Record<Fate, { place: string; gain: string }[]>;
  predictions: PredictionWords[];
  fit: string;
  /** Interval of the efficiency of each number of ranks. */
  efficiency: string[];
}

export interface ComparisonDocument {
  kind: "comparison";
  comparison: Comparison;
  words: ComparisonWords;
  tables: Table[];
}

export interface FlameDifference {
  names: Name[];
  name: Column;
  depth: Column;
  before_host_ns: Column;
  after_host_ns: Column;
  before_device_ns: Column;
  after_device_ns: Column;
  before_calls: Column;
  after_calls: Column;
  device_noise_ratio: number;
  host_noise_ratio: number;
  smallest_ratio: number;
  notes: string[];
}

export interface ComparisonView {
  version: number;
  flame: FlameDifference | null;
  flame_missing: string;
}

export const DIFFERENCE_VERSION = 1;

// ---- columns ------------------------------------------------------------------------------

/** A view with its columns at hand. */
export class Opened<V = View> {
  constructor(
    readonly view: V,
    private readonly bytes: Uint8Array,
    private readonly base: number,
  ) {}

  /** The integers of a column, exact up to 2^53. */
  numbers(column: Column): Float64Array {
    const { size, width, delta, signed } = column;
    const out = new Float64Array(size);
    let at = this.base + column.data[0];
    for (let plane = 0, factor = 1; plane < width; plane++, factor *= 256) {
      for (let i = 0; i < size; i++) out[i] += this.bytes[at + i] * factor;
      at += size;
    }
    if (signed) {
      for (let i = 0; i < size; i++) {
        const v = out[i];
        out[i] = v % 2 ? -(v + 1) / 2 : v / 2;
      }
    }
    if (delta) for (let i = 1; i < size; i++) out[i] += out[i - 1];
    return out;
  }
}

// ---- experiments --------------------------------------------------------------------------

export interface Trial {
  remedy: string;
  title: string;
  status: string;
  reason: string;
  codes: string[];
  speedup: Ratio | null;
  predicted: Gain | null;
  runs: number;
  before_ns: number;
  after_ns: number;
  guards: { name: string; status: string; detail: string }[];
  snippet: string;
}

export interface TrialWords {
  status: string;
  speedup: string;
  predicted: string;
  extras: string;
  lines: string[];
}

export interface ExperimentDocument {
  kind: "experiment";
  experiment: { kinetoscope: string; program: string; sentence: string; trials: Trial[]; combination: Trial | null; notes: string[] };
  words: { setting: string; trials: TrialWords[]; combination: TrialWords | null };
}

// ---- columns ------------------------------------------------------------------------------

export type AnyDocument = Document_ | ComparisonDocument | ExperimentDocument;

export function readDocument(): AnyDocument {
  return JSON.parse(document.getElementById("result")!.textContent!) as AnyDocument;
}

export async function openView<V = View>(): Promise<Opened<V> | null> {
  const holder = document.getElementById("view")!;
  const text = holder.textContent!.trim();
  if (!text) return null;
  const packed = fromBase64(text);
  holder.remove();
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  const head = new DataView(bytes.buffer).getUint32(0, true);
  const view = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + head))) as V;
  return new Opened(view, bytes, 4 + head);
}

function fromBase64(text: string): Uint8Array<ArrayBuffer> {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}
