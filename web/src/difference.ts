// Difference flame graph: both sides as one tree. Width is time, colour is change; a sign and a
// number say the same as the colour, and frames that only one side has are hatched or outlined.

import { kindWord, rgb } from "./colors";
import type { ComparisonView, FlameDifference, Opened } from "./data";
import { append, h, replace } from "./dom";
import { FlameStage, frameText, type Node, type Paint } from "./flame_stage";
import { read, total, type Frame } from "./flame_tree";
import { change, changeShare, duration, percent } from "./units";

type Clock = "device" | "host";
type Width = "both" | "after" | "before";
type Scale = "step" | "frame";

/** Where the columns of a clock stand among the sums of a frame: before, after. */
const PLACES: Record<Clock, [number, number]> = { host: [0, 1], device: [2, 3] };
const CALLS = [4, 5];

/** Blue and orange, which colour-blind readers tell apart; grey where nothing changed. */
const FASTER = "#1a6fb5";
const SLOWER = "#d95f0e";
const NEUTRAL = "#ccd1d6";
/** A frame that takes half or twice the time has the full colour of the relative scale. */
const FULL_FACTOR = 2;

export class DifferenceView extends FlameStage {
  private readonly legend = h("p", { class: "scale" });
  private readonly hasDevice: boolean;
  private clock: Clock;
  private wide: Width = "both";
  private scale: Scale = "step";
  private sums = new Map<Frame, number[]>();
  private largest = 1;

  constructor(private readonly flame: FlameDifference, opened: Opened<ComparisonView>) {
    super(
      read(flame, [flame.before_host_ns, flame.after_host_ns, flame.before_device_ns, flame.after_device_ns, flame.before_calls, flame.after_calls], opened),
      "Difference flame graph",
    );
    this.hasDevice = this.roots.some((root) => PLACES.device.some((i) => total(root)[i] > 0));
    this.clock = this.hasDevice ? "device" : "host";
    append(this.element, [
      this.tools(), this.info, this.legend, h("div", { class: "scroll" }, this.stage),
      ...flame.notes.map((note) => h("p", { class: "note", text: note })),
    ]);
  }

  private tools(): HTMLElement {
    const clock = this.choice<Clock>("Time on", this.clock, [
      ["device", "Time of the device, with idle time"], ["host", "Time of the host"],
    ], (value) => (this.clock = value));
    if (!this.hasDevice) clock.querySelector<HTMLOptionElement>("option[value=device]")!.disabled = true;
    return h("div", { class: "tools" },
      this.searchBox("Search the difference flame graph"),
      clock,
      this.choice<Width>("Width", this.wide, [
        ["both", "Width: the longer of both"], ["after", "Width: after"], ["before", "Width: before"],
      ], (value) => (this.wide = value)),
      this.choice<Scale>("Colour", this.scale, [
        ["step", "Colour: time gained or lost"], ["frame", "Colour: change of each frame in %"],
      ], (value) => (this.scale = value)),
      this.invertButton(), this.resetButton(), this.levelBoxes());
  }

  private choice<T extends string>(label: string, chosen: T, options: [T, string][], set: (value: T) => void): HTMLSelectElement {
    const select = h("select", { "aria-label": label }, ...options.map(([value, text]) => h("option", { value, text })));
    select.value = chosen;
    select.addEventListener("change", () => {
      set(select.value as T);
      this.whole();
    });
    return select;
  }

  private times(sums: number[]): [number, number] {
    const [before, after] = PLACES[this.clock];
    return [sums[before], sums[after]];
  }

  protected width(frame: Frame): number {
    const [before, after] = this.times(frame.own);
    return this.wide === "before" ? before : this.wide === "after" ? after : Math.max(before, after);
  }

  protected override prepare(root: Node): void {
    this.sums = new Map();
    this.largest = 1;
    root.eachAfter((node) => {
      const sum = [...node.data.own];
      for (const child of node.children ?? []) this.sums.get(child.data)!.forEach((value, i) => (sum[i] += value));
      this.sums.set(node.data, sum);
      const [before, after] = this.times(sum);
      this.largest = Math.max(this.largest, Math.abs(after - before));
    });
    this.drawLegend();
  }

  /** Whether a change says something: what two runs of one program differ by does not. */
  private beyondNoise(before: number, after: number): boolean {
    const ratio = this.clock === "device" ? this.flame.device_noise_ratio : this.flame.host_noise_ratio;
    const [b, a] = this.whole_();
    return Math.abs(after - before) > Math.max(ratio * Math.max(before, after), this.flame.smallest_ratio * Math.max(a, b));
  }

  private whole_(): [number, number] {
    let sums: [number, number] = [0, 0];
    for (const root of this.roots) {
      const [before, after] = this.times(total(root));
      sums = [sums[0] + before, sums[1] + after];
    }
    return sums;
  }

  /** -1 (all of it gained) .. 0 .. 1. */
  private strength(before: number, after: number): number {
    if (!this.beyondNoise(before, after)) return 0;
    const sign = Math.sign(after - before);
    if (this.scale === "step") return sign * Math.sqrt(Math.abs(after - before) / this.largest);
    const factor = Math.abs(Math.log(Math.max(after, 1) / Math.max(before, 1))) / Math.log(FULL_FACTOR);
    return sign * Math.max(Math.min(factor, 1), 0.15);
  }

  protected paint(node: Node, _whole: number): Paint {
    const { name } = node.data;
    const sums = this.sums.get(node.data)!;
    const [before, after] = this.times(sums);
    const [step] = this.whole_();
    const clear = this.beyondNoise(before, after);
    const fate = before === 0 && after > 0 ? "added" : after === 0 && before > 0 ? "gone" : "";
    const moved = `${change(after - before)}, ${fate || changeShare(before, after)}`;
    const ofStep = step ? `; ${change(after - before)[0]}${percent(Math.abs(after - before) / step)} of the step before` : "";
    const calls = CALLS.map((i) => (sums[i] / 100).toLocaleString("en-US", { maximumFractionDigits: 1 }));
    const times = fate === "added" ? `not there before, ${duration(after)} a step after`
      : fate === "gone" ? `${duration(before)} a step before, not there after`
        : `${duration(before)} before, ${duration(after)} after, a step`;
    const label = `${name.text}: ${times} (${moved}${clear ? ofStep : "; within noise"}). `
      + `Calls a step, with those below: ${calls[0]} before, ${calls[1]} after. ${kindWord(name.kind)}`;
    const sign = clear ? `${after < before ? "▼" : "▲"} ` : "";
    const text = `${sign}${frameText(name)}${clear ? `  ${moved}` : ""}`;
    return { color: mixed(this.strength(before, after)), text, label, ...(clear && fate ? { mark: fate } : {}) };
  }

  protected told(whole: number, matched: number | null): string {
    if (matched !== null) return `${percent(matched / whole)} of the width lies in frames that match.`;
    const [before, after] = this.whole_();
    const what = this.clock === "device" ? "device work and idle time" : "all host threads together";
    return `${duration(before)} a step before, ${duration(after)} after (${change(after - before)}, ${changeShare(before, after)}), as recorded: ${what}. Click a frame to zoom.`;
  }

  private drawLegend(): void {
    const steps = [-1, -0.6, -0.3, 0, 0.3, 0.6, 1].map((t) => {
      const box = h("span", { class: "swatch", "aria-hidden": "true" });
      box.style.backgroundColor = mixed(t);
      return box;
    });
    const ends = this.scale === "step"
      ? [`▼ ${change(-this.largest)} a step`, `▲ ${change(this.largest)} a step`]
      : ["▼ half the time or less", "▲ twice the time or more"];
    replace(this.legend, ends[0], ...steps, ends[1], " · grey: no change beyond noise · ",
      h("span", { class: "swatch gone key", "aria-hidden": "true" }), "gone ",
      h("span", { class: "swatch added key", "aria-hidden": "true" }), "added");
  }
}

function mixed(strength: number): string {
  const goal = rgb(strength < 0 ? FASTER : SLOWER);
  const from = rgb(NEUTRAL);
  const part = Math.abs(strength);
  const mix = from.map((c, i) => Math.round(c + (goal[i] - c) * part));
  return `#${mix.map((c) => c.toString(16).padStart(2, "0")).join("")}`;
}
