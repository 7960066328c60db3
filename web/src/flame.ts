// Flame graph: call paths with their time on the host or the device, from the top or inverted.

import { hierarchy, partition, type HierarchyRectangularNode } from "d3-hierarchy";
import { boxColor, inkOn, kindWord } from "./colors";
import type { Flame, Name, Opened } from "./data";
import { announce, h, replace } from "./dom";
import { duration, percent, plural } from "./units";

type Measure = "device" | "host";

export interface Frame {
  name: Name;
  host: number;
  device: number;
  calls: number;
  children: Frame[];
}

const HEIGHT = 20;
const SMALLEST_PX = 1.5;
const MOST = 2_500;
const LEVELS: [string, string[]][] = [
  ["Python", ["python", "user"]],
  ["Modules", ["module"]],
  ["Operators", ["op"]],
  ["Calls", ["call", "launch", "sync", "copy_call", "range", "loader", "collective_call"]],
  ["Kernels", ["gemm", "attention", "elementwise", "reduction", "optimizer", "kernel", "collective", "copy"]],
  ["Idle", ["idle_compute", "idle_memory", "idle_data_loading", "idle_communication", "idle_framework", "idle_unattributed"]],
];

export class FlameView {
  readonly element: HTMLElement;
  private readonly stage = h("div", { class: "flame", role: "tree", "aria-label": "Flame graph" });
  private readonly info = h("p", { class: "note", role: "status" });
  private readonly roots: Frame[];
  private readonly steps: number;
  private measure: Measure;
  private inverted = false;
  private needle = "";
  private readonly levels = new Set(LEVELS.map(([name]) => name));
  private focus: string[] = [];
  private readonly hasDevice: boolean;

  constructor(flame: Flame, opened: Opened) {
    this.roots = read(flame, opened);
    this.steps = Math.max(flame.steps, 1);
    this.hasDevice = this.roots.some((root) => total(root, "device") > 0);
    this.measure = this.hasDevice ? "device" : "host";
    this.element = h("div", {}, this.tools(), this.info, h("div", { class: "scroll" }, this.stage));
    new ResizeObserver(() => this.draw()).observe(this.element);
    this.stage.addEventListener("keydown", (event) => this.key(event));
  }

  private tools(): HTMLElement {
    const search = h("input", { type: "search", placeholder: "Search frames", "aria-label": "Search the flame graph" });
    search.addEventListener("input", () => {
      this.needle = search.value.trim().toLowerCase();
      this.draw();
    });
    const measure = h("select", { "aria-label": "Time on" },
      h("option", { value: "device", text: "Time of the device, with idle time", disabled: !this.hasDevice }),
      h("option", { value: "host", text: "Time of the host" }));
    measure.value = this.measure;
    measure.addEventListener("change", () => {
      this.measure = measure.value as Measure;
      this.focus = [];
      this.draw();
    });
    const invert = h("button", { type: "button", class: "quiet", "aria-pressed": "false", text: "Invert" });
    invert.title = "From what takes the time to who calls it";
    invert.addEventListener("click", () => {
      this.inverted = !this.inverted;
      invert.setAttribute("aria-pressed", String(this.inverted));
      this.focus = [];
      this.draw();
    });
    const reset = h("button", { type: "button", class: "quiet", text: "Everything" });
    reset.addEventListener("click", () => {
      this.focus = [];
      this.draw();
    });
    const levels = h("fieldset", { class: "levels" }, h("legend", { class: "offscreen", text: "Levels shown" }));
    for (const [name] of LEVELS) {
      const box = h("input", { type: "checkbox", checked: true });
      box.addEventListener("change", () => {
        if (box.checked) this.levels.add(name);
        else this.levels.delete(name);
        this.focus = [];
        this.draw();
      });
      levels.append(h("label", {}, box, ` ${name}`));
    }
    return h("div", { class: "tools" }, search, measure, invert, reset, levels);
  }

  private tree(): Frame {
    const hidden = new Set(LEVELS.filter(([name]) => !this.levels.has(name)).flatMap(([, kinds]) => kinds));
    let roots = hidden.size ? merge(this.roots.flatMap((root) => without(root, hidden))) : this.roots;
    if (this.inverted) roots = inverted(roots, this.measure);
    return { name: { text: "all", kind: "other" }, host: 0, device: 0, calls: 0, children: roots };
  }

  private draw(): void {
    const width = this.stage.clientWidth;
    if (!width) return;
    const all = this.tree();
    const root = hierarchy(all).sum((frame) => frame[this.measure]).sort((a, b) => (b.value ?? 0) - (a.value ?? 0));
    const whole = root.value || 1;
    const laid = partition<Frame>().size([width, (root.height + 1) * HEIGHT])(root);
    const focus = this.follow(laid);
    const stretch = width / Math.max(focus.x1 - focus.x0, 1e-9);
    const boxes: HTMLElement[] = [];
    let matched = 0;
    let deepest = 0;
    laid.each((node) => {
      if (node.depth === 0 || boxes.length > MOST) return;
      const w = (node.x1 - node.x0) * stretch;
      const x = (node.x0 - focus.x0) * stretch;
      const hit = this.needle !== "" && node.data.name.text.toLowerCase().includes(this.needle);
      if (hit && !node.ancestors().slice(1).some((a) => a.data.name.text.toLowerCase().includes(this.needle))) matched += node.value ?? 0;
      if (w < SMALLEST_PX || x > width || x + w < 0) return;
      deepest = Math.max(deepest, node.depth);
      boxes.push(this.box(node, Math.max(x, 0), Math.min(x + w, width) - Math.max(x, 0), whole, hit));
    });
    replace(this.stage, ...boxes);
    if (boxes[0]) boxes[0].tabIndex = 0;
    this.stage.style.height = `${Math.max(deepest, 1) * HEIGHT + 2}px`;
    this.info.textContent = this.needle
      ? `${percent(matched / whole)} of the time lies in frames that match.`
      : `${duration(whole / this.steps)} a step, ${this.measure === "device" ? "device work and idle time" : "all host threads together"}, mean of ${plural(this.steps, "step")}. Click a frame to zoom.`;
  }

  private follow(root: HierarchyRectangularNode<Frame>): HierarchyRectangularNode<Frame> {
    let node = root;
    for (const text of this.focus) {
      const next = node.children?.find((child) => child.data.name.text === text);
      if (!next) break;
      node = next;
    }
    return node;
  }

  private box(node: HierarchyRectangularNode<Frame>, x: number, w: number, whole: number, hit: boolean): HTMLElement {
    const { name } = node.data;
    const value = node.value ?? 0;
    const label = `${name.text}: ${duration(value / this.steps)} a step, ${percent(value / whole)} (${kindWord(name.kind)})`;
    const color = boxColor(name);
    const element = h("div", {
      class: this.needle ? (hit ? "frame hit" : "frame faint") : "frame",
      role: "treeitem", tabindex: "-1", "aria-level": String(node.depth), "aria-label": label, title: label,
      ...(node.children ? { "aria-expanded": "true" } : {}),
    }, w > 30 ? label_(name) : "");
    element.style.left = `${x}px`;
    element.style.width = `${Math.max(w - 1, 1)}px`;
    element.style.top = `${(node.depth - 1) * HEIGHT}px`;
    element.style.background = color;
    element.style.color = inkOn(color);
    element.addEventListener("click", () => this.zoom(node));
    return element;
  }

  private zoom(node: HierarchyRectangularNode<Frame>): void {
    const path = node.ancestors().reverse().slice(1).map((a) => a.data.name.text);
    const same = path.join("\0") === this.focus.join("\0");
    this.focus = same ? path.slice(0, -1) : path;
    announce(`${node.data.name.text}, ${duration((node.value ?? 0) / this.steps)} a step`);
    this.draw();
  }

  private key(event: KeyboardEvent): void {
    const at = document.activeElement;
    if (!(at instanceof HTMLElement) || !this.stage.contains(at)) return;
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      at.click();
      (this.stage.firstElementChild as HTMLElement | null)?.focus();
      return;
    }
    const boxes = [...this.stage.children] as HTMLElement[];
    const level = Number(at.getAttribute("aria-level"));
    const left = parseFloat(at.style.left);
    const right = left + parseFloat(at.style.width);
    const row = (l: number): HTMLElement[] => boxes.filter((b) => Number(b.getAttribute("aria-level")) === l);
    const x = (b: HTMLElement): number => parseFloat(b.style.left);
    let next: HTMLElement | undefined;
    if (event.key === "ArrowDown") next = row(level + 1).filter((b) => x(b) >= left - 1 && x(b) < right)[0];
    else if (event.key === "ArrowUp") next = row(level - 1).filter((b) => x(b) <= left + 1).pop();
    else if (event.key === "ArrowRight") next = row(level).filter((b) => x(b) > left).sort((a, b) => x(a) - x(b))[0];
    else if (event.key === "ArrowLeft") next = row(level).filter((b) => x(b) < left).sort((a, b) => x(b) - x(a))[0];
    else return;
    event.preventDefault();
    if (!next) return;
    at.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  }
}

function label_(name: Name): string {
  if (name.kind !== "python" && name.kind !== "user") return name.text;
  const match = /^(.*?)([^/]*)\((\d+)\): (.*)$/s.exec(name.text);
  return match ? `${match[4]}  ${match[2]}:${match[3]}` : name.text;
}

function read(flame: Flame, opened: Opened): Frame[] {
  const name = opened.numbers(flame.name);
  const depth = opened.numbers(flame.depth);
  const host = opened.numbers(flame.host_ns);
  const device = opened.numbers(flame.device_ns);
  const calls = opened.numbers(flame.calls);
  const roots: Frame[] = [];
  const stack: Frame[] = [];
  for (let i = 0; i < name.length; i++) {
    const frame: Frame = { name: flame.names[name[i]], host: host[i], device: device[i], calls: calls[i], children: [] };
    stack.length = depth[i];
    (depth[i] ? stack[depth[i] - 1].children : roots).push(frame);
    stack.push(frame);
  }
  return roots;
}

function total(frame: Frame, measure: Measure): number {
  return frame.children.reduce((sum, child) => sum + total(child, measure), frame[measure]);
}

/** A tree without some kinds of frames: their time goes to the caller, their callees move up. */
function without(frame: Frame, hidden: Set<string>): Frame[] {
  const children = frame.children.flatMap((child) => without(child, hidden));
  if (!hidden.has(frame.name.kind)) {
    const gone = frame.children.filter((child) => hidden.has(child.name.kind));
    return [{
      ...frame,
      host: frame.host + gone.reduce((sum, child) => sum + child.host, 0),
      device: frame.device + gone.reduce((sum, child) => sum + child.device, 0),
      children: merge(children),
    }];
  }
  return children;
}

/** Equal neighbours as one. */
function merge(frames: Frame[]): Frame[] {
  const byName = new Map<string, Frame>();
  for (const frame of frames) {
    const key = `${frame.name.kind}\0${frame.name.text}`;
    const known = byName.get(key);
    if (!known) byName.set(key, { ...frame });
    else {
      known.host += frame.host;
      known.device += frame.device;
      known.calls += frame.calls;
      known.children = known.children.concat(frame.children);
    }
  }
  const merged = [...byName.values()];
  for (const frame of merged) frame.children = merge(frame.children);
  return merged;
}

const CALLERS = 12;

/** From frames with own time to their callers. */
export function inverted(roots: Frame[], measure: Measure): Frame[] {
  const top = new Map<string, Frame>();
  const visit = (frame: Frame, callers: Frame[]): void => {
    if (frame[measure] > 0) add(top, frame, callers, measure);
    const chain = [frame, ...callers];
    for (const child of frame.children) visit(child, chain);
  };
  for (const root of roots) visit(root, []);
  return [...top.values()];
}

function add(top: Map<string, Frame>, frame: Frame, callers: Frame[], measure: Measure): void {
  const key = frame.name.text;
  let at = top.get(key);
  if (!at) top.set(key, (at = { name: frame.name, host: 0, device: 0, calls: 0, children: [] }));
  const chain = callers.slice(0, CALLERS);
  for (const caller of chain) {
    let next: Frame | undefined = at.children.find((child) => child.name.text === caller.name.text);
    if (!next) at.children.push((next = { name: caller.name, host: 0, device: 0, calls: 0, children: [] }));
    at = next;
  }
  at[measure] += frame[measure];
}
