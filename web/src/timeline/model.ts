// Boxes of the timeline, and coarser levels of them that are made when a zoom needs them.

import { boxColor, rgb } from "../colors";
import type { Lane, Name, Opened, Timeline } from "../data";

/** Boxes of one row at one resolution. `first[i]` is the first full box behind box i. */
export interface Level {
  start: Float64Array;
  end: Float64Array;
  first: Uint32Array;
  /** Box whose name and colour stand for the group. */
  main: Uint32Array;
  /** Time in which an event of the group ran. */
  busy: Float64Array;
}

const FINEST_NS = 64;
const STEP = 4;
const SMALL_ROW = 1_500;

export class Row {
  private readonly levels: (Level | undefined)[] = [];

  constructor(
    readonly from: number,
    readonly to: number,
    lane: LaneModel,
  ) {
    const n = to - from;
    const index = new Uint32Array(n);
    const busy = new Float64Array(n);
    for (let i = 0; i < n; i++) {
      index[i] = from + i;
      busy[i] = lane.end[from + i] - lane.start[from + i] - lane.slack[from + i];
    }
    this.levels[0] = {
      start: lane.start.subarray(from, to),
      end: lane.end.subarray(from, to),
      first: index,
      main: index,
      busy,
    };
  }

  /** The coarsest level whose boxes are still finer than a pixel of `ns` nanoseconds. */
  at(ns: number): Level {
    let wanted = 0;
    for (let limit = FINEST_NS; limit * STEP <= ns; limit *= STEP) wanted++;
    return this.level(wanted);
  }

  private level(k: number): Level {
    const known = this.levels[k];
    if (known) return known;
    const below = this.level(k - 1);
    const made =
      below.start.length <= SMALL_ROW ? below : join(below, FINEST_NS * STEP ** k);
    this.levels[k] = made;
    return made;
  }
}

/** Joins neighbours that are shorter than `limit` and lie in one cell of a grid as wide. */
function join(below: Level, limit: number): Level {
  const n = below.start.length;
  const start = new Float64Array(n);
  const end = new Float64Array(n);
  const first = new Uint32Array(n);
  const main = new Uint32Array(n);
  const busy = new Float64Array(n);
  let size = 0;
  let cell = -1;
  let longest = 0;
  for (let i = 0; i < n; i++) {
    const length = below.end[i] - below.start[i];
    const mine = length < limit ? Math.floor(below.start[i] / limit) : -1;
    if (mine >= 0 && mine === cell) {
      const last = size - 1;
      if (below.end[i] > end[last]) end[last] = below.end[i];
      busy[last] += below.busy[i];
      if (below.busy[i] > longest) {
        longest = below.busy[i];
        main[last] = below.main[i];
      }
      continue;
    }
    start[size] = below.start[i];
    end[size] = below.end[i];
    first[size] = below.first[i];
    main[size] = below.main[i];
    busy[size] = longest = below.busy[i];
    cell = mine;
    size++;
  }
  return {
    start: start.slice(0, size),
    end: end.slice(0, size),
    first: first.slice(0, size),
    main: main.slice(0, size),
    busy: busy.slice(0, size),
  };
}

export class LaneModel {
  readonly start: Float64Array;
  readonly end: Float64Array;
  readonly slack: Float64Array;
  readonly name: Uint32Array;
  readonly count: Uint32Array;
  readonly link: Int32Array | null;
  readonly detail: Int32Array | null;
  readonly rows: Row[] = [];
  expanded: boolean;
  hidden = false;
  /** Number of boxes before this lane in the whole timeline. */
  readonly base: number;
  top = 0;

  constructor(
    readonly lane: Lane,
    opened: Opened,
    base: number,
    lead: number,
  ) {
    this.base = base;
    this.start = opened.numbers(lane.start);
    const length = opened.numbers(lane.length);
    this.end = length;
    for (let i = 0; i < length.length; i++) this.end[i] += this.start[i];
    this.slack = opened.numbers(lane.slack);
    this.name = Uint32Array.from(opened.numbers(lane.name));
    this.count = Uint32Array.from(opened.numbers(lane.count));
    this.link = lane.link ? Int32Array.from(opened.numbers(lane.link)) : null;
    this.detail = lane.detail ? Int32Array.from(opened.numbers(lane.detail)) : null;
    this.expanded = lane.kind !== "host" || lane.rank === lead;
    let from = 0;
    for (const size of lane.rows) {
      this.rows.push(new Row(from, from + size, this));
      from += size;
    }
  }

  get size(): number {
    return this.start.length;
  }

  /** Rows that are drawn: a folded lane shows its outermost ones. */
  get shown(): number {
    return this.expanded ? this.rows.length : Math.min(this.rows.length, 2);
  }

  rowOf(box: number): number {
    for (let r = 0; r < this.rows.length; r++) if (box < this.rows[r].to) return r;
    return this.rows.length - 1;
  }
}

export interface Hit {
  lane: LaneModel;
  box: number;
}

export class Model {
  readonly lanes: LaneModel[] = [];
  readonly names: Name[];
  readonly short: string[];
  readonly colors: string[];
  /** Pixels in memory order (little endian: alpha, blue, green, red), opaque. */
  readonly pixels: Uint32Array;
  readonly end: number;
  private firstChild: Int32Array | null = null;
  private nextChild: Int32Array | null = null;

  constructor(
    readonly timeline: Timeline,
    opened: Opened,
    lead: number,
  ) {
    this.names = timeline.names;
    this.short = this.names.map((name) => shortLabel(name));
    this.colors = this.names.map((name) => boxColor(name));
    this.pixels = Uint32Array.from(this.colors, (hex) => {
      const [r, g, b] = rgb(hex);
      return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
    });
    let base = 0;
    for (const lane of timeline.lanes) {
      const model = new LaneModel(lane, opened, base, lead);
      base += model.size;
      this.lanes.push(model);
    }
    this.end = timeline.end_ns;
  }

  nameOf(hit: Hit): Name {
    return this.names[hit.lane.name[hit.box]];
  }

  /** The box with a number among all boxes. */
  byNumber(number: number): Hit | null {
    for (const lane of this.lanes) {
      if (number >= lane.base && number < lane.base + lane.size) return { lane, box: number - lane.base };
    }
    return null;
  }

  launchOf(hit: Hit): Hit | null {
    const link = hit.lane.link?.[hit.box] ?? -1;
    return link >= 0 ? this.byNumber(link) : null;
  }

  /** Device boxes that a host box launched, at most `most`. */
  launchedBy(hit: Hit, most: number): Hit[] {
    this.indexLinks();
    const found: Hit[] = [];
    let at = this.firstChild![hit.lane.base + hit.box];
    while (at >= 0 && found.length < most) {
      const child = this.byNumber(at);
      if (child) found.push(child);
      at = this.nextChild![at];
    }
    return found;
  }

  private indexLinks(): void {
    if (this.firstChild) return;
    const last = this.lanes[this.lanes.length - 1];
    const total = last ? last.base + last.size : 0;
    const first = new Int32Array(total).fill(-1);
    const next = new Int32Array(total).fill(-1);
    for (const lane of this.lanes) {
      if (!lane.link) continue;
      for (let i = lane.size - 1; i >= 0; i--) {
        const launch = lane.link[i];
        if (launch < 0) continue;
        next[lane.base + i] = first[launch];
        first[launch] = lane.base + i;
      }
    }
    this.firstChild = first;
    this.nextChild = next;
  }

  /** Boxes around a box, from the outside in. */
  callersOf(hit: Hit): Hit[] {
    const { lane, box } = hit;
    const row = lane.rowOf(box);
    const at = lane.start[box];
    const found: Hit[] = [];
    for (let r = 0; r < row; r++) {
      const i = lastAt(lane.start, lane.rows[r].from, lane.rows[r].to, at);
      if (i >= lane.rows[r].from && lane.end[i] >= lane.end[box]) found.push({ lane, box: i });
    }
    return found;
  }
}

/** Last index in [from, to) with start <= at; from - 1 when there is none. */
export function lastAt(start: Float64Array, from: number, to: number, at: number): number {
  let low = from;
  let high = to;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (start[middle] <= at) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

function shortLabel(name: Name): string {
  const text = name.text;
  if (name.kind === "python" || name.kind === "user") {
    const match = /^(.*?)([^/]*)\((\d+)\): (.*)$/s.exec(text);
    return match ? `${match[4]}  ${match[2]}:${match[3]}` : text;
  }
  if (name.kind === "module") return text.replace(/^nn\.Module: /, "");
  return text.replace(/^void /, "").replace(/^at::native::(\(anonymous namespace\)::)?/, "");
}
