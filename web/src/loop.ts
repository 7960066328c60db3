// Before, prediction, after: the step times of the loop on one axis.

import type { ComparisonDocument, Fate, FindingChange } from "./data";
import { across, h } from "./dom";
import { severity } from "./overview";
import { DEF } from "./texts";
import { num } from "./tip";
import { duration } from "./units";

interface Track {
  label: string;
  low: number;
  mid: number;
  high: number;
  told: string;
  definition: string;
  kind: "before" | "predicted" | "after";
}

const MOST_PREDICTIONS = 3;

/** Step times before and after, and what was predicted in between. */
export function loopTracks(page: ComparisonDocument): HTMLElement {
  const { comparison, words } = page;
  const side = (word: "before" | "after", definition: string): Track => {
    const { low_ns, step_ns, high_ns } = comparison[word];
    return { label: word === "before" ? "Before" : "After", low: low_ns, mid: step_ns, high: high_ns, told: span(low_ns, step_ns, high_ns), definition, kind: word };
  };
  const predicted = words.predictions.slice(0, MOST_PREDICTIONS).map((item): Track => ({
    label: `Predicted: ${item.code}`, ...item.step_ns, told: `${item.step} (${item.gain})`, definition: DEF.predictedStep, kind: "predicted",
  }));
  const tracks = [side("before", DEF.stepBefore), ...predicted, side("after", DEF.stepAfter)];
  const most = Math.max(...tracks.map((track) => track.high), 1) * 1.04;
  const list = h("ol", { class: "loop" });
  for (const track of tracks) list.append(drawn(track, most));
  return list;
}

function span(low: number, mid: number, high: number): string {
  return low === high || duration(low) === duration(high) ? "" : `${duration(mid)}, between ${duration(low)} and ${duration(high)}`;
}

function drawn(track: Track, most: number): HTMLElement {
  const line = h("div", { class: "track", "aria-hidden": "true" },
    across(h("div", { class: "band" }), track.low / most, track.high / most),
    across(h("div", { class: "mark" }), track.mid / most, track.mid / most));
  return h("li", { class: track.kind },
    h("span", { class: "label", text: track.label }),
    num(duration(track.mid), track.definition, "strong"),
    line,
    h("small", { text: track.told }));
}

/** What became of the findings, in a few lines each. */
export function findingChanges(page: ComparisonDocument): HTMLElement {
  const { comparison, words } = page;
  const box = h("div", { class: "fates" });
  const groups: [Fate, string][] = [["gone", "Gone"], ["stayed", "Stayed"], ["new", "New"]];
  for (const [fate, title] of groups) {
    const items = comparison.findings[fate];
    const list = h("ul", {});
    items.forEach((item, i) => list.append(finding(item, words.findings[fate][i], fate === "gone" ? kept(page, item.code) : "")));
    box.append(h("div", { class: `fate ${fate}` }, h("h3", { text: `${title} (${items.length})` }),
      items.length ? list : h("p", { class: "note", text: "none" })));
  }
  return box;
}

function kept(page: ComparisonDocument, code: string): string {
  const item = page.words.predictions.find((prediction) => prediction.code === code);
  return item ? `predicted ${item.gain}, achieved ${item.achieved}: ${item.kept}` : "";
}

function finding(item: FindingChange, words: { place: string; gain: string }, promise: string): HTMLElement {
  return h("li", {},
    h("p", { class: "kicker" }, severity(item.severity), h("span", { class: "code", text: item.code }), h("span", { text: item.name.replaceAll("-", " ") })),
    words.place ? h("code", { class: "place", text: words.place }) : null,
    h("p", { class: "note", text: promise || `predicted gain: ${words.gain}` }));
}
