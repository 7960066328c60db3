// What the recording lacks, what was repaired, what was joined for this page.

import type { Document_, View } from "./data";
import { h } from "./dom";
import { section } from "./section";
import { DEF } from "./texts";
import { num } from "./tip";
import { duration, percent, plural } from "./units";

export function devices(page: Document_): HTMLElement | null {
  const rows = page.result.device_timeline;
  if (!rows.length) return null;
  const list = h("ul", { class: "devices" });
  const use = page.result.utilisation;
  for (const row of rows.slice(0, 16)) {
    const share = (ns: number): string => percent(ns / (row.span_ns || 1));
    list.append(h("li", {},
      `rank ${row.rank}, device ${row.device}: busy `, num(share(row.busy_ns), DEF.busy), " of ", num(duration(row.span_ns), DEF.span),
      "; compute ", num(share(row.compute_ns), DEF.compute),
      row.comm_ns ? h("span", {}, ", communication that nothing hides ", num(share(row.exposed_comm_ns), DEF.exposedComm)) : null,
      row.memcpy_ns ? h("span", {}, ", copies that nothing hides ", num(share(row.exposed_memcpy_ns), DEF.exposedCopy)) : null,
      ", idle ", num(share(row.idle_ns), DEF.idle),
      use && use.rank === row.rank && use.device === row.device
        ? h("span", {}, "; MFU ", num(`${use.lower_bound ? "at least " : ""}${percent(use.mfu)}`, DEF.mfu), `, FLOP known for ${percent(use.coverage)} of kernel time`)
        : null));
  }
  if (rows.length > 16) list.append(h("li", { text: `and ${rows.length - 16} more` }));
  return h("div", {}, h("h3", { text: "Devices over the whole recording" }), list);
}

export function quality(page: Document_, view: View | null): HTMLElement {
  const { result, words } = page;
  const box = section("quality", "Data quality", "What the recording holds, what it lacks, what was repaired, and what this page leaves out.");
  const inputs = h("ul");
  for (const line of words.inputs) inputs.append(h("li", { text: line }));
  box.append(h("h3", { text: "Recording" }), inputs);
  if (view) {
    const list = h("ul", { class: "checks" });
    for (const fact of view.facts) {
      const word = fact.good === null ? "" : fact.good ? "good" : "lacking";
      list.append(h("li", { class: word }, h("span", { class: "state", text: fact.good === null ? "·" : fact.good ? "✓" : "!", title: word }), h("strong", { text: fact.title }), ` ${fact.text}`));
    }
    box.append(list);
  }
  const rows = devices(page);
  if (rows) box.append(rows);
  box.append(h("h3", { text: "Repaired or lost in reading" }));
  if (words.damage.length) {
    const list = h("ul");
    for (const line of words.damage) list.append(h("li", { text: line }));
    box.append(list);
  } else box.append(h("p", { text: "Nothing: the file was read whole, and nothing in it had to be repaired." }));
  if (result.notes.length) {
    const list = h("ul");
    for (const line of result.notes) list.append(h("li", { text: line }));
    box.append(h("h3", { text: "Notes" }), list);
  }
  if (view?.timeline) box.append(h("h3", { text: "This page" }), joined(view));
  return box;
}

function joined(view: View): HTMLElement {
  const t = view.timeline!;
  const list = h("ul");
  if (t.merged_below_ns) {
    list.append(h("li", {}, `The timeline stands for ${plural(t.events, "event")}. `, num(plural(t.merged_events, "event"), DEF.merged),
      ` shorter than ${duration(t.merged_below_ns)} are joined into ${plural(t.merged_boxes, "box", "boxes")}`,
      t.kept ? `; from ${duration(t.kept[0])} to ${duration(t.kept[1])} every event is there.` : "."));
  } else list.append(h("li", { text: `The timeline holds all ${plural(t.events, "event")} of the lanes that it shows.` }));
  list.append(h("li", { text: "Idle gaps below 200 µs are drawn with their main reason only." }));
  for (const line of t.left_out) list.append(h("li", { text: `Not drawn: ${line}.` }));
  if (view.flame) list.append(h("li", { text: "Call paths below 0.04 % of the time count for their caller in the flame graph." }));
  return list;
}
