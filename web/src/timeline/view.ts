// The timeline on the page: zoom, pan, search, selection, measuring, and their keys.

import { boxColor, kindColor, kindWord, CLASS_COLORS } from "../colors";
import type { Focus, Opened } from "../data";
import { announce, h, replace } from "../dom";
import { dot } from "../overview";
import { DEF } from "../texts";
import { num } from "../tip";
import { duration, percent, plural } from "../units";
import { AXIS, LANE_GAP, Painter, ROW, type Look, type Scene } from "./draw";
import { lastAt, Model, type Hit, type LaneModel } from "./model";

const KEYS =
  "Arrow keys move, plus and minus zoom, 0 shows everything, comma and period select the event before and after, "
  + "Enter zooms to the selection, L follows the link between launch and kernel, N and P go through search results, Escape clears.";

export class TimelineView {
  readonly element: HTMLElement;
  readonly model: Model;
  private readonly canvas = h("canvas", { class: "timeline", tabindex: "0", role: "application", "aria-label": "Timeline of threads, streams and idle time", "aria-describedby": "timeline-keys" });
  private readonly context = this.canvas.getContext("2d", { alpha: false })!;
  private readonly painter: Painter;
  private readonly panel = h("div", { class: "detail" });
  private readonly hover = h("div", { class: "hover", hidden: true });
  private readonly found = h("span", { class: "note", role: "status" });
  private readonly search = h("input", { type: "search", placeholder: "Search events", "aria-label": "Search events in the timeline" });
  private readonly scene: Scene;
  private hits: Hit[] = [];
  private hit = -1;
  private pending = false;
  private drag: { x: number; y: number; t0: number; scroll: number; measure: boolean; moved: boolean } | null = null;
  private pointers = new Map<number, number>();
  private total = 0;
  /** Frames drawn, for measurements. */
  frames = 0;

  constructor(opened: Opened) {
    const timeline = opened.view.timeline!;
    this.model = new Model(timeline, opened, opened.view.lead_rank);
    this.painter = new Painter(this.model, this.context);
    const [low, high] = timeline.window;
    this.scene = {
      t0: low, scale: Math.max(high - low, 1) / 1000, scroll: 0, width: 1000, height: 400, gutter: 120,
      selected: null, linked: [], matching: null, range: null,
    };
    this.layout();
    this.element = this.frame();
    this.listen();
    new ResizeObserver(() => this.resize()).observe(this.canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    document.addEventListener("themechange", () => this.draw());
    this.describe();
    this.prepare();
  }

  /** Zooms to a stretch; `low` and `high` in ns. */
  zoomTo(low: number, high: number, margin = 0.08): void {
    const room = (high - low) * margin + 1;
    this.scene.t0 = low - room;
    this.scene.scale = Math.max((high - low + 2 * room) / this.plot, 0.01);
    this.draw();
  }

  show(focus: Focus): void {
    this.element.scrollIntoView({ block: "start" });
    this.zoomTo(focus.start_ns, focus.end_ns, 0.5);
    const lanes = this.model.lanes.filter((lane) => lane.lane.rank === focus.rank && lane.lane.kind !== "device");
    for (const lane of lanes) {
      const box = findBox(this.model, lane, focus);
      if (box >= 0) {
        this.select({ lane, box });
        break;
      }
    }
    this.canvas.focus({ preventScroll: true });
  }

  /** Makes the coarse levels of all rows while nobody is waiting, so that no zoom has to. */
  private prepare(): void {
    const rows = this.model.lanes.flatMap((lane) => lane.rows).sort((a, b) => b.to - b.from - (a.to - a.from));
    const coarsest = this.model.end / 200;
    const work = (): void => {
      const until = performance.now() + 6;
      while (rows.length && performance.now() < until) rows.shift()!.at(coarsest);
      if (rows.length) window.setTimeout(work, 4);
    };
    window.setTimeout(work, 50);
  }

  private get plot(): number {
    return Math.max(this.scene.width - this.scene.gutter, 50);
  }

  private frame(): HTMLElement {
    const tools = h("div", { class: "tools" }, this.search,
      this.button("Previous", "Previous result", () => this.step(-1)),
      this.button("Next", "Next result", () => this.step(1)),
      this.found,
      h("span", { class: "spring" }),
      this.button("−", "Zoom out", () => this.zoom(1.6)),
      this.button("+", "Zoom in", () => this.zoom(1 / 1.6)),
      this.button("Steady steps", "Show the steady steps", () => this.zoomTo(...this.model.timeline.window, 0.01)),
      this.button("Everything", "Show the whole recording", () => this.zoomTo(0, this.model.end, 0.01)),
    );
    return h("div", { class: "timelinebox" }, tools,
      h("div", { class: "stage" }, this.canvas, this.hover), this.panel,
      h("details", { class: "keysbox" }, h("summary", { text: "How to move: drag, wheel, keys" }),
        h("p", { class: "note", id: "timeline-keys" }, "Drag moves, shift-drag measures, a double click zooms to an event. The wheel zooms once the timeline is clicked; Ctrl + wheel or a pinch always does. ", KEYS)),
      this.legend(), this.lanesBox());
  }

  private button(text: string, label: string, action: () => void): HTMLElement {
    const button = h("button", { type: "button", class: "quiet", text, title: label, "aria-label": label });
    button.addEventListener("click", action);
    return button;
  }

  private legend(): HTMLElement {
    const kinds = new Map<string, string>();
    const classes = new Map<string, [string, string][]>();
    for (const name of this.model.names) {
      if (name.kind.startsWith("idle_")) {
        const list = classes.get(name.kind) ?? [];
        list.push([name.text, boxColor(name)]);
        classes.set(name.kind, list);
      } else if (name.kind !== "other") kinds.set(kindWord(name.kind), kindColor(name.kind));
    }
    const items = (entries: Iterable<[string, string]>): HTMLElement =>
      h("ul", { class: "keys" }, ...[...entries].map(([text, color]) => h("li", {}, dot(color), text)));
    const order = Object.keys(CLASS_COLORS).map((name) => `idle_${name}`).filter((kind) => classes.has(kind));
    return h("details", { class: "legendbox", open: true }, h("summary", { text: "Colours" }),
      order.length ? h("h3", { class: "minor", text: "Why the device was idle" }) : null,
      ...order.map((kind) => h("div", { class: "keyrow" }, h("span", { class: "note", text: kind.slice(5).replace("_", " ") }), items(classes.get(kind)!))),
      h("h3", { class: "minor", text: "Events" }), items(kinds));
  }

  private lanesBox(): HTMLElement {
    const list = h("ul", { class: "lanes" });
    for (const lane of this.model.lanes) {
      const shown = h("input", { type: "checkbox", checked: true });
      shown.addEventListener("change", () => {
        lane.hidden = !shown.checked;
        this.relayout();
      });
      const name = `rank ${lane.lane.rank}, ${lane.lane.label}`;
      const item = h("li", {}, h("label", {}, shown, ` ${name}`), h("small", { text: `${plural(lane.lane.events, "event")}, ${duration(lane.lane.total_ns)}` }));
      if (lane.rows.length > 2) {
        const all = h("input", { type: "checkbox", checked: lane.expanded });
        all.addEventListener("change", () => {
          lane.expanded = all.checked;
          this.relayout();
        });
        item.append(h("label", {}, all, ` all ${lane.rows.length} rows`));
      }
      list.append(item);
    }
    return h("details", { class: "lanesbox" }, h("summary", { text: `Lanes (${this.model.lanes.length})` }), list);
  }

  private layout(): void {
    let y = 6;
    for (const lane of this.model.lanes) {
      if (lane.hidden) continue;
      lane.top = y;
      y += lane.shown * ROW[lane.lane.kind] + LANE_GAP;
    }
    this.total = y;
  }

  private relayout(): void {
    this.layout();
    this.resize();
  }

  private resize(): void {
    const width = this.canvas.clientWidth;
    if (!width) return;
    const most = Math.max(280, Math.round(window.innerHeight * 0.62));
    const height = Math.min(AXIS + this.total + 6, most);
    const first = this.scene.width === 1000 && this.frames === 0;
    const span = this.plot * this.scene.scale;
    this.canvas.style.height = `${height}px`;
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.scene.width = width;
    this.scene.height = height;
    this.scene.gutter = width < 600 ? 76 : 148;
    if (first) this.zoomTo(...this.firstLook(), 0.01);
    else this.scene.scale = span / this.plot;
    this.clamp();
    this.paint();
  }

  /** A few steps in the middle: enough to see the rhythm, few enough to read. */
  private firstLook(): [number, number] {
    const { window, steps } = this.model.timeline;
    const edges = (steps[0]?.edges ?? []).filter((edge) => edge >= window[0] - 1e6 && edge <= window[1] + 1e6);
    if (edges.length < 6) return window;
    const middle = edges.length >> 1;
    return [edges[middle - 1], edges[middle + 2]];
  }

  draw(): void {
    this.clamp();
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => {
      this.pending = false;
      this.paint();
    });
  }

  private paint(): void {
    this.frames++;
    this.painter.draw(this.scene, this.look(), window.devicePixelRatio || 1);
  }

  private look(): Look {
    const style = getComputedStyle(document.documentElement);
    const of = (name: string): string => style.getPropertyValue(name).trim();
    return { ink: of("--ink"), muted: of("--muted"), line: of("--line"), panel: of("--panel"), accent: of("--accent"), font: "system-ui, sans-serif" };
  }

  private clamp(): void {
    const { scene } = this;
    scene.scale = Math.min(Math.max(scene.scale, 0.02), (this.model.end * 1.2) / this.plot);
    const span = this.plot * scene.scale;
    scene.t0 = Math.min(Math.max(scene.t0, -0.4 * span), this.model.end - 0.6 * span);
    const most = Math.max(AXIS + this.total + 6 - scene.height, 0);
    scene.scroll = Math.min(Math.max(scene.scroll, 0), most);
  }

  zoom(factor: number, x = this.scene.gutter + this.plot / 2): void {
    const { scene } = this;
    const at = scene.t0 + (x - scene.gutter) * scene.scale;
    const before = scene.scale;
    scene.scale = before * factor;
    this.clamp();
    scene.t0 = at - (x - scene.gutter) * scene.scale;
    this.draw();
  }

  pan(pixels: number): void {
    this.scene.t0 += pixels * this.scene.scale;
    this.draw();
  }

  // ---- pointer ---------------------------------------------------------------------------

  private listen(): void {
    const { canvas } = this;
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    canvas.addEventListener("pointerdown", (event) => this.down(event));
    canvas.addEventListener("pointermove", (event) => this.move(event));
    canvas.addEventListener("pointerup", (event) => this.up(event));
    canvas.addEventListener("pointercancel", (event) => this.up(event));
    canvas.addEventListener("pointerleave", () => (this.hover.hidden = true));
    canvas.addEventListener("dblclick", () => this.zoomToSelection());
    canvas.addEventListener("keydown", (event) => this.key(event));
    this.search.addEventListener("input", () => this.find(this.search.value));
    this.search.addEventListener("keydown", (event) => {
      if (event.key === "Enter") this.step(event.shiftKey ? -1 : 1);
    });
  }

  private wheel(event: WheelEvent): void {
    const focused = document.activeElement === this.canvas;
    if (!event.ctrlKey && !event.metaKey && !focused) return;
    event.preventDefault();
    if (event.shiftKey) {
      this.scene.scroll += event.deltaY;
      this.draw();
    } else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.pan(event.deltaX);
    else this.zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) * (event.ctrlKey ? 0.01 : 0.004)), event.offsetX);
  }

  private down(event: PointerEvent): void {
    this.canvas.setPointerCapture(event.pointerId);
    this.pointers.set(event.pointerId, event.offsetX);
    const { scene } = this;
    this.drag = { x: event.offsetX, y: event.offsetY, t0: scene.t0, scroll: scene.scroll, measure: event.shiftKey, moved: false };
    if (event.shiftKey) {
      const at = this.timeAt(event.offsetX);
      scene.range = [at, at];
    }
  }

  private move(event: PointerEvent): void {
    const { drag, scene } = this;
    const old = this.pointers.get(event.pointerId);
    if (old !== undefined && this.pointers.size === 2) {
      this.pinch(event, old);
      return;
    }
    if (!drag) {
      this.point(event);
      return;
    }
    const dx = event.offsetX - drag.x;
    const dy = event.offsetY - drag.y;
    if (Math.abs(dx) + Math.abs(dy) > 3) drag.moved = true;
    if (!drag.moved) return;
    this.hover.hidden = true;
    if (drag.measure && scene.range) scene.range[1] = this.timeAt(event.offsetX);
    else {
      scene.t0 = drag.t0 - dx * scene.scale;
      scene.scroll = drag.scroll - dy;
    }
    this.draw();
  }

  private pinch(event: PointerEvent, old: number): void {
    const other = [...this.pointers].find(([id]) => id !== event.pointerId)![1];
    const before = Math.max(Math.abs(old - other), 10);
    const after = Math.max(Math.abs(event.offsetX - other), 10);
    this.pointers.set(event.pointerId, event.offsetX);
    this.drag = null;
    this.zoom(before / after, (event.offsetX + other) / 2);
  }

  private up(event: PointerEvent): void {
    this.pointers.delete(event.pointerId);
    const { drag } = this;
    this.drag = null;
    if (!drag) return;
    if (drag.measure) this.describe();
    else if (!drag.moved) this.select(this.hitAt(event.offsetX, event.offsetY));
  }

  private point(event: PointerEvent): void {
    const hit = this.hitAt(event.offsetX, event.offsetY);
    if (!hit) {
      this.hover.hidden = true;
      return;
    }
    const { lane, box } = hit;
    replace(this.hover, h("strong", { text: this.model.short[lane.name[box]].slice(0, 120) }), ` ${duration(lane.end[box] - lane.start[box])}`,
      lane.count[box] ? ` · ${plural(lane.count[box] + 1, "event")}` : "");
    this.hover.hidden = false;
    const left = Math.min(event.offsetX + 12, this.scene.width - this.hover.offsetWidth - 4);
    this.hover.style.left = `${Math.max(left, 4)}px`;
    this.hover.style.top = `${Math.min(event.offsetY + 16, this.scene.height - 28)}px`;
  }

  private timeAt(x: number): number {
    return this.scene.t0 + (x - this.scene.gutter) * this.scene.scale;
  }

  private hitAt(x: number, y: number): Hit | null {
    if (x < this.scene.gutter || y < AXIS) return null;
    const at = this.timeAt(x);
    for (const lane of this.model.lanes) {
      if (lane.hidden) continue;
      const h = ROW[lane.lane.kind];
      const row = Math.floor((y - AXIS - lane.top + this.scene.scroll) / h);
      if (row < 0 || row >= lane.shown) continue;
      return nearest(lane, row, at, 4 * this.scene.scale);
    }
    return null;
  }

  // ---- keys ------------------------------------------------------------------------------

  private key(event: KeyboardEvent): void {
    const actions: Record<string, () => void> = {
      ArrowLeft: () => this.pan(-this.plot * 0.15),
      ArrowRight: () => this.pan(this.plot * 0.15),
      ArrowUp: () => this.scrollBy(-45),
      ArrowDown: () => this.scrollBy(45),
      "+": () => this.zoom(1 / 1.6),
      "=": () => this.zoom(1 / 1.6),
      w: () => this.zoom(1 / 1.6),
      "-": () => this.zoom(1.6),
      s: () => this.zoom(1.6),
      a: () => this.pan(-this.plot * 0.15),
      d: () => this.pan(this.plot * 0.15),
      "0": () => this.zoomTo(0, this.model.end, 0.01),
      Home: () => this.zoomTo(...this.model.timeline.window, 0.01),
      ",": () => this.neighbour(-1),
      ".": () => this.neighbour(1),
      n: () => this.step(1),
      p: () => this.step(-1),
      l: () => this.followLink(),
      Enter: () => this.zoomToSelection(),
      Escape: () => this.clear(),
    };
    const action = event.ctrlKey || event.metaKey || event.altKey ? undefined : actions[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  }

  private scrollBy(pixels: number): void {
    this.scene.scroll += pixels;
    this.draw();
  }

  private clear(): void {
    this.scene.range = null;
    this.select(null);
  }

  private neighbour(by: number): void {
    const { selected } = this.scene;
    if (!selected) {
      const lane = this.model.lanes.find((l) => !l.hidden && l.size);
      if (lane) this.select({ lane, box: Math.max(lastAt(lane.start, 0, lane.rows[0].to, this.scene.t0 + (this.plot / 2) * this.scene.scale), 0) }, true);
      return;
    }
    const row = selected.lane.rows[selected.lane.rowOf(selected.box)];
    const box = Math.min(Math.max(selected.box + by, row.from), row.to - 1);
    this.select({ lane: selected.lane, box }, true);
  }

  private followLink(): void {
    const next = this.scene.linked[0];
    if (next) this.select(next, true);
  }

  private zoomToSelection(): void {
    const { selected, range } = this.scene;
    if (range) this.zoomTo(Math.min(...range), Math.max(...range), 0.02);
    else if (selected) this.zoomTo(selected.lane.start[selected.box], selected.lane.end[selected.box], 1);
  }

  // ---- search ----------------------------------------------------------------------------

  find(text: string): void {
    const needle = text.trim().toLowerCase();
    this.hits = [];
    this.hit = -1;
    if (!needle) {
      this.scene.matching = null;
      this.found.textContent = "";
      this.draw();
      return;
    }
    const matching = Uint8Array.from(this.model.names, (name) => (name.text.toLowerCase().includes(needle) ? 1 : 0));
    for (const lane of this.model.lanes) {
      if (lane.hidden) continue;
      for (let i = 0; i < lane.size; i++) if (matching[lane.name[i]]) this.hits.push({ lane, box: i });
    }
    this.hits.sort((a, b) => a.lane.start[a.box] - b.lane.start[b.box]);
    this.scene.matching = matching;
    this.found.textContent = this.hits.length ? plural(this.hits.length, "result") : "Nothing found";
    this.draw();
  }

  private step(by: number): void {
    if (!this.hits.length) return;
    if (this.hit < 0) {
      const middle = this.scene.t0;
      this.hit = Math.max(this.hits.findIndex((hit) => hit.lane.start[hit.box] >= middle), 0) - (by > 0 ? 1 : 0);
    }
    this.hit = (this.hit + by + this.hits.length) % this.hits.length;
    this.found.textContent = `${this.hit + 1} of ${plural(this.hits.length, "result")}`;
    this.select(this.hits[this.hit], true);
  }

  // ---- selection -------------------------------------------------------------------------

  private select(hit: Hit | null, reveal = false): void {
    const { scene } = this;
    scene.selected = hit;
    scene.linked = hit ? this.linksOf(hit) : [];
    if (hit) scene.range = null;
    if (hit && reveal) this.reveal(hit);
    this.describe();
    this.draw();
  }

  private linksOf(hit: Hit): Hit[] {
    if (hit.lane.lane.kind === "device") {
      const launch = this.model.launchOf(hit);
      return launch ? [launch] : [];
    }
    return hit.lane.lane.kind === "host" ? this.model.launchedBy(hit, 40) : [];
  }

  private reveal(hit: Hit): void {
    const { scene } = this;
    const { lane, box } = hit;
    const row = lane.rowOf(box);
    if (row >= lane.shown) {
      lane.expanded = true;
      this.layout();
    }
    const length = lane.end[box] - lane.start[box];
    const span = this.plot * scene.scale;
    if (length > span || length < span / 400) scene.scale = Math.max(length * 12, 2000) / this.plot;
    const now = this.plot * scene.scale;
    if (lane.start[box] < scene.t0 || lane.end[box] > scene.t0 + now) scene.t0 = lane.start[box] + length / 2 - now / 2;
    const y = lane.top + row * ROW[lane.lane.kind];
    if (y < scene.scroll || y + 30 > scene.scroll + scene.height - AXIS) scene.scroll = y - 60;
  }

  private describe(): void {
    const { selected, range } = this.scene;
    if (range && Math.abs(range[1] - range[0]) > 0) replace(this.panel, this.measured(Math.min(...range), Math.max(...range)));
    else if (selected) replace(this.panel, this.details(selected));
    else replace(this.panel, h("p", { class: "note", text: "Click an event to see what it is, where it was called and what it launched." }));
  }

  private details(hit: Hit): HTMLElement {
    const { lane, box } = hit;
    const { model } = this;
    const name = model.nameOf(hit);
    const length = lane.end[box] - lane.start[box];
    const list = h("dl", { class: "facts-list" });
    const add = (title: string, value: Node | string): void => list.append(h("div", {}, h("dt", { text: title }), h("dd", {}, value)));
    add("length", num(duration(length), DEF.length));
    add("start", num(duration(lane.start[box]), DEF.start));
    add("where", `rank ${lane.lane.rank}, ${lane.lane.label}`);
    const step = this.stepOf(lane, lane.start[box]);
    if (step !== null) add("step", String(step));
    if (lane.count[box]) {
      add("joined", num(`${plural(lane.count[box] + 1, "event")}, ${duration(length - lane.slack[box])} together`, DEF.merged));
    }
    const detail = lane.detail ? lane.detail[box] : -1;
    if (detail >= 0) add("detail", model.timeline.details[detail]);
    const box_ = h("div", {}, h("h3", {}, dot(model.colors[lane.name[box]]), name.text), h("p", { class: "note", text: kindWord(name.kind) }), list, this.linkList(hit), this.callers(hit));
    announce(`${name.text}, ${duration(length)}, ${lane.lane.label}`);
    return box_;
  }

  private linkList(hit: Hit): HTMLElement | null {
    const { linked } = this.scene;
    if (!linked.length) return null;
    const device = hit.lane.lane.kind === "device";
    const list = h("ul", { class: "links" });
    for (const other of linked.slice(0, 8)) {
      const gap = device ? hit.lane.start[hit.box] - other.lane.end[other.box] : other.lane.start[other.box] - hit.lane.end[hit.box];
      const button = h("button", { type: "button", class: "link", text: this.model.short[other.lane.name[other.box]] });
      button.addEventListener("click", () => this.select(other, true));
      list.append(h("li", {}, button, h("small", { text: gap >= 0 ? `${duration(gap)} between them` : "overlapping" })));
    }
    const title = device ? "Launched by" : `Launched${linked.length > 8 ? ` (8 of ${linked.length})` : ""}`;
    return h("div", {}, h("h4", { text: title }), list);
  }

  private callers(hit: Hit): HTMLElement | null {
    const launch = hit.lane.lane.kind === "device" ? this.scene.linked[0] : undefined;
    const chain = launch ? [...this.model.callersOf(launch), launch] : this.model.callersOf(hit);
    if (!chain.length) return null;
    const list = h("ol", { class: "callpath" });
    for (const caller of chain) {
      const button = h("button", { type: "button", class: "link", text: this.model.nameOf(caller).text });
      button.addEventListener("click", () => this.select(caller, true));
      list.append(h("li", {}, dot(this.model.colors[caller.lane.name[caller.box]]), button));
    }
    return h("details", {}, h("summary", { text: `Called from ${plural(chain.length, "event")}` }), list);
  }

  private measured(low: number, high: number): HTMLElement {
    const list = h("dl", { class: "facts-list" });
    for (const lane of this.model.lanes) {
      if (lane.hidden || lane.lane.kind === "host") continue;
      const { busy, events } = covered(lane, low, high);
      const word = lane.lane.kind === "idle" ? "idle" : "busy";
      list.append(h("div", {}, h("dt", { text: `${lane.lane.label}` }), h("dd", { text: `${word} ${percent(Math.min(busy / (high - low), 1))}, ${plural(events, "event")}` })));
    }
    announce(`Range of ${duration(high - low)}`);
    return h("div", {}, h("h3", { text: `Range of ${duration(high - low)}` }), h("p", { class: "note", text: `${duration(low)} to ${duration(high)} from the beginning. Enter zooms to it.` }), list);
  }

  private stepOf(lane: LaneModel, at: number): number | null {
    const steps = this.model.timeline.steps.find((s) => s.rank === lane.lane.rank);
    if (!steps) return null;
    const i = steps.edges.findIndex((edge) => edge > at) - 1;
    return i >= 0 ? steps.first + i : null;
  }
}

function covered(lane: LaneModel, low: number, high: number): { busy: number; events: number } {
  let busy = 0;
  let events = 0;
  for (let i = Math.max(lastAt(lane.start, 0, lane.rows[0].to, low) - 1, 0); i < lane.rows[0].to && lane.start[i] < high; i++) {
    const length = lane.end[i] - lane.start[i];
    const part = Math.min(lane.end[i], high) - Math.max(lane.start[i], low);
    if (part <= 0) continue;
    busy += length ? (part * (length - lane.slack[i])) / length : 0;
    events += lane.count[i] + 1;
  }
  return { busy, events };
}

/** The box of a row at a time, or the nearest within `reach` ns. */
function nearest(lane: LaneModel, row: number, at: number, reach: number): Hit | null {
  const { from, to } = lane.rows[row];
  const i = lastAt(lane.start, from, to, at);
  if (i >= from && lane.end[i] >= at) return { lane, box: i };
  let best: Hit | null = null;
  let distance = reach;
  for (const box of [i, i + 1]) {
    if (box < from || box >= to) continue;
    const away = box === i ? at - lane.end[box] : lane.start[box] - at;
    if (away <= distance) {
      distance = away;
      best = { lane, box };
    }
  }
  return best;
}

function findBox(model: Model, lane: LaneModel, focus: Focus): number {
  for (const row of lane.rows) {
    const i = lastAt(lane.start, row.from, row.to, focus.start_ns + 1);
    if (i >= row.from && Math.abs(lane.start[i] - focus.start_ns) < 2 && model.names[lane.name[i]].text.startsWith(focus.search.slice(0, 60))) return i;
  }
  return -1;
}
