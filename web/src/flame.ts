// Flame graph: call paths with their time on the host or the device, from the top or inverted.

import { boxColor, kindWord } from "./colors";
import type { Flame, Opened } from "./data";
import { append, h } from "./dom";
import { FlameStage, frameText, type Node, type Paint } from "./flame_stage";
import { read, total, type Frame } from "./flame_tree";
import { duration, percent, plural } from "./units";

const MEASURES = ["host", "device"];
const HOST = 0;
const DEVICE = 1;

export class FlameView extends FlameStage {
  private readonly perMeasure: [number, number];
  private readonly hasDevice: boolean;
  private measure: number;

  constructor(flame: Flame, opened: Opened) {
    super(read(flame, [flame.host_ns, flame.device_ns], opened), "Flame graph");
    this.perMeasure = [Math.max(flame.host_steps, 1), Math.max(flame.steps, 1)];
    this.hasDevice = this.roots.some((root) => total(root)[DEVICE] > 0);
    this.measure = this.hasDevice ? DEVICE : HOST;
    append(this.element, [this.tools(), this.info, h("div", { class: "scroll" }, this.stage)]);
  }

  private tools(): HTMLElement {
    const measure = h("select", { "aria-label": "Time on" },
      h("option", { value: MEASURES[DEVICE], text: "Time of the device, with idle time", disabled: !this.hasDevice }),
      h("option", { value: MEASURES[HOST], text: "Time of the host" }));
    measure.value = MEASURES[this.measure];
    measure.addEventListener("change", () => {
      this.measure = MEASURES.indexOf(measure.value);
      this.whole();
    });
    return h("div", { class: "tools" }, this.searchBox("Search the flame graph"), measure, this.invertButton(), this.resetButton(), this.levelBoxes());
  }

  private get steps(): number {
    return this.perMeasure[this.measure];
  }

  protected width(frame: Frame): number {
    return frame.own[this.measure];
  }

  protected paint(node: Node, whole: number): Paint {
    const { name } = node.data;
    const value = node.value ?? 0;
    const label = `${name.text}: ${duration(value / this.steps)} a step, ${percent(value / whole)} (${kindWord(name.kind)})`;
    return { color: boxColor(name), text: frameText(name), label };
  }

  protected told(whole: number, matched: number | null): string {
    return matched !== null
      ? `${percent(matched / whole)} of the time lies in frames that match.`
      : `${duration(whole / this.steps)} a step, ${this.measure === DEVICE ? "device work and idle time" : "all host threads together"}, mean of ${plural(this.steps, "step")}. Click a frame to zoom.`;
  }
}
