// The stage of a flame graph: lays frames out, zooms, searches, moves by keyboard. What a frame is
// wide for and how it is painted is the business of the graph.

import { hierarchy, partition, type HierarchyRectangularNode } from "d3-hierarchy";
import { inkOn } from "./colors";
import type { Name } from "./data";
import { announce, h, replace } from "./dom";
import { inverted, merge, without, type Frame } from "./flame_tree";

export const HEIGHT = 20;
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

export type Node = HierarchyRectangularNode<Frame>;

/** How a frame looks, and what it says. */
export interface Paint {
  color: string;
  text: string;
  label: string;
  mark?: string;
}

export abstract class FlameStage {
  readonly element: HTMLElement = h("div");
  protected readonly stage: HTMLElement;
  protected readonly info = h("p", { class: "note", role: "status" });
  protected inverted = false;
  protected needle = "";
  private readonly levels = new Set(LEVELS.map(([name]) => name));
  private focus: string[] = [];

  constructor(protected readonly roots: Frame[], label: string) {
    this.stage = h("div", { class: "flame", role: "tree", "aria-label": label });
    this.stage.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.draw()).observe(this.element);
  }

  /** How wide a frame is for itself. */
  protected abstract width(frame: Frame): number;
  protected abstract paint(node: Node, whole: number): Paint;
  /** The line above: `matched` is what the frames that match the search are wide together. */
  protected abstract told(whole: number, matched: number | null): string;
  /** Called with the laid out tree before anything is painted. */
  protected prepare(_root: Node): void {}

  protected searchBox(label: string): HTMLElement {
    const search = h("input", { type: "search", placeholder: "Search frames", "aria-label": label });
    search.addEventListener("input", () => {
      this.needle = search.value.trim().toLowerCase();
      this.draw();
    });
    return search;
  }

  protected invertButton(): HTMLElement {
    const invert = h("button", { type: "button", class: "quiet", "aria-pressed": "false", text: "Invert" });
    invert.title = "From what takes the time to who calls it";
    invert.addEventListener("click", () => {
      this.inverted = !this.inverted;
      invert.setAttribute("aria-pressed", String(this.inverted));
      this.whole();
    });
    return invert;
  }

  protected resetButton(): HTMLElement {
    const reset = h("button", { type: "button", class: "quiet", text: "Everything" });
    reset.addEventListener("click", () => this.whole());
    return reset;
  }

  protected levelBoxes(): HTMLElement {
    const levels = h("fieldset", { class: "levels" }, h("legend", { class: "offscreen", text: "Levels shown" }));
    for (const [name] of LEVELS) {
      const box = h("input", { type: "checkbox", checked: true });
      box.addEventListener("change", () => {
        if (box.checked) this.levels.add(name);
        else this.levels.delete(name);
        this.whole();
      });
      levels.append(h("label", {}, box, ` ${name}`));
    }
    return levels;
  }

  /** Zooms out. */
  protected whole(): void {
    this.focus = [];
    this.draw();
  }

  private tree(): Frame {
    const hidden = new Set(LEVELS.filter(([name]) => !this.levels.has(name)).flatMap(([, kinds]) => kinds));
    let roots = hidden.size ? merge(this.roots.flatMap((root) => without(root, hidden))) : this.roots;
    if (this.inverted) roots = inverted(roots, (frame) => this.width(frame));
    return { name: { text: "all", kind: "other" }, own: (roots[0]?.own ?? []).map(() => 0), children: roots };
  }

  protected draw(): void {
    const width = this.stage.clientWidth;
    if (!width) return;
    const root = hierarchy(this.tree()).sum((frame) => this.width(frame)).sort((a, b) => (b.value ?? 0) - (a.value ?? 0));
    const whole = root.value || 1;
    const laid = partition<Frame>().size([width, (root.height + 1) * HEIGHT])(root);
    this.prepare(laid);
    const focus = this.follow(laid);
    const stretch = width / Math.max(focus.x1 - focus.x0, 1e-9);
    const boxes: HTMLElement[] = [];
    let matched = 0;
    let deepest = 0;
    laid.each((node) => {
      if (node.depth === 0 || boxes.length > MOST) return;
      const w = (node.x1 - node.x0) * stretch;
      const x = (node.x0 - focus.x0) * stretch;
      const hit = this.hit(node.data.name);
      if (hit && !node.ancestors().slice(1).some((a) => this.hit(a.data.name))) matched += node.value ?? 0;
      if (w < SMALLEST_PX || x > width || x + w < 0) return;
      deepest = Math.max(deepest, node.depth);
      boxes.push(this.box(node, Math.max(x, 0), Math.min(x + w, width) - Math.max(x, 0), this.paint(node, whole), hit));
    });
    replace(this.stage, ...boxes);
    if (boxes[0]) boxes[0].tabIndex = 0;
    this.stage.style.height = `${Math.max(deepest, 1) * HEIGHT + 2}px`;
    this.info.textContent = this.told(whole, this.needle ? matched : null);
  }

  private hit(name: Name): boolean {
    return this.needle !== "" && name.text.toLowerCase().includes(this.needle);
  }

  private follow(root: Node): Node {
    let node = root;
    for (const text of this.focus) {
      const next = node.children?.find((child) => child.data.name.text === text);
      if (!next) break;
      node = next;
    }
    return node;
  }

  private box(node: Node, x: number, w: number, paint: Paint, hit: boolean): HTMLElement {
    const found = this.needle ? (hit ? " hit" : " faint") : "";
    const element = h("div", {
      class: `frame${found}${paint.mark && w > 6 ? ` ${paint.mark}` : ""}`,
      role: "treeitem", tabindex: "-1", "aria-level": String(node.depth), "aria-label": paint.label, title: paint.label,
      ...(node.children ? { "aria-expanded": "true" } : {}),
    }, w > 30 ? paint.text : "");
    element.style.left = `${x}px`;
    element.style.width = `${Math.max(w - 1, 1)}px`;
    element.style.top = `${(node.depth - 1) * HEIGHT}px`;
    element.style.backgroundColor = paint.color;
    element.style.color = inkOn(paint.color);
    element.addEventListener("click", () => this.zoom(node, paint));
    return element;
  }

  private zoom(node: Node, paint: Paint): void {
    const path = node.ancestors().reverse().slice(1).map((a) => a.data.name.text);
    const same = path.join("\0") === this.focus.join("\0");
    this.focus = same ? path.slice(0, -1) : path;
    announce(paint.label);
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
    const next = this.neighbour(at, event.key);
    if (next === null) return;
    event.preventDefault();
    if (!next) return;
    at.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  }

  /** The frame that an arrow key leads to; undefined: there is none; null: no arrow key. */
  private neighbour(at: HTMLElement, key: string): HTMLElement | undefined | null {
    const boxes = [...this.stage.children] as HTMLElement[];
    const level = Number(at.getAttribute("aria-level"));
    const left = parseFloat(at.style.left);
    const right = left + parseFloat(at.style.width);
    const row = (l: number): HTMLElement[] => boxes.filter((b) => Number(b.getAttribute("aria-level")) === l);
    const x = (b: HTMLElement): number => parseFloat(b.style.left);
    if (key === "ArrowDown") return row(level + 1).filter((b) => x(b) >= left - 1 && x(b) < right)[0];
    if (key === "ArrowUp") return row(level - 1).filter((b) => x(b) <= left + 1).pop();
    if (key === "ArrowRight") return row(level).filter((b) => x(b) > left).sort((a, b) => x(a) - x(b))[0];
    if (key === "ArrowLeft") return row(level).filter((b) => x(b) < left).sort((a, b) => x(b) - x(a))[0];
    return null;
  }
}

/** A Python frame with its function in front. */
export function frameText(name: Name): string {
  if (name.kind !== "python" && name.kind !== "user") return name.text;
  const match = /^(.*?)([^/]*)\((\d+)\): (.*)$/s.exec(name.text);
  return match ? `${match[4]}  ${match[2]}:${match[3]}` : name.text;
}
