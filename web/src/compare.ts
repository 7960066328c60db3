// The page of a comparison: did it help, by how much, where, and as predicted?

import { CLASS_COLORS, shade, SHADES } from "./colors";
import { DIFFERENCE_VERSION, type BudgetChange, type ComparisonDocument, type ComparisonView, type ComparisonWords, type Opened, type Scaling } from "./data";
import { DifferenceView } from "./difference";
import { across, h } from "./dom";
import { findingChanges, loopTracks } from "./loop";
import { dot } from "./overview";
import { missing, section } from "./section";
import { tables } from "./table";
import { DEF } from "./texts";
import { explain, num } from "./tip";
import { change, duration, percent, plural, times } from "./units";

export const OUTCOME_COLORS: Record<string, string> = {
  faster: "#1a6fb5",
  slower: "#d95f0e",
  no_difference: "#7b8794",
  inconclusive: "#d9a62e",
  not_comparable: "#7b8794",
  scaling: "#7b8794",
};

/** The first screen. */
export function comparisonTop(page: ComparisonDocument): HTMLElement {
  const { comparison, words } = page;
  const { verdict } = comparison;
  const chip = h("span", { class: "chip" }, dot(OUTCOME_COLORS[verdict.outcome] ?? OUTCOME_COLORS.scaling), words.outcome);
  const times_ = h("div", { class: "fact" }, h("h2", { class: "small", text: "One step takes" }), loopTracks(page));
  if (words.speedup && !comparison.scaling) times_.append(h("p", {}, "Speed-up ", num(words.speedup, DEF.speedup, "strong")));
  const next = h("p", { class: "next" }, h("strong", { text: "Next. " }));
  words.next.split("`").forEach((part, i) => next.append(i % 2 ? h("code", { text: part }) : part));
  return h("section", { id: "verdict", class: "verdict", "aria-labelledby": "verdict-title", tabindex: "-1" },
    h("div", { class: "kicker" }, chip),
    h("h1", { id: "verdict-title", text: comparison.scaling ? firstSentence(verdict.sentence) : verdict.sentence }),
    h("div", { class: "facts even" }, times_, budgets(page)),
    next);
}

/** The section on scaling holds all of them. */
function firstSentence(text: string): string {
  const end = text.search(/[.:] (?=\D)/);
  return end < 0 ? text : text.slice(0, end + 1);
}

/** Both budgets on one scale, and what became of each line. */
function budgets(page: ComparisonDocument): HTMLElement {
  const { comparison, words } = page;
  const box = h("div", { class: "fact" },
    h("h2", { class: "small" }, explain(h("button", { type: "button", class: "num", text: "Where it goes" }), DEF.budget)));
  if (!comparison.budget.length) {
    box.append(missing("Not compared: the two sides answer different questions."));
    return box;
  }
  const rows = [...comparison.budget].sort((a, b) => Math.max(b.before_ns, b.after_ns) - Math.max(a.before_ns, a.after_ns));
  const colors = lineColors(rows);
  const sum = (key: "before_ns" | "after_ns"): number => rows.reduce((total, row) => total + row[key], 0);
  const most = Math.max(sum("before_ns"), sum("after_ns"), 1);
  const bars = h("div", { class: "twobars" });
  for (const [label, key] of [["Before", "before_ns"], ["After", "after_ns"]] as const) {
    const bar = h("div", { class: "bar", role: "img", "aria-label": `Budget ${label.toLowerCase()}; the table below says the same.` });
    rows.forEach((row, i) => {
      if (row[key] <= 0) return;
      const part = h("span", { class: "part", title: `${row.label}: ${duration(row[key])}` });
      part.style.background = colors[i];
      part.style.flexGrow = String(row[key]);
      bar.append(part);
    });
    const holder = across(h("div", { class: "holder" }), 0, sum(key) / most);
    holder.append(bar);
    bars.append(h("span", { class: "label", text: label }), h("div", { class: "rail" }, holder));
  }
  box.append(bars, budgetTable(rows, colors, words.classes));
  return box;
}

function lineColors(rows: BudgetChange[]): string[] {
  const used: Record<string, number> = {};
  return rows.map((row) => {
    const nth = (used[row.class] = (used[row.class] ?? -1) + 1);
    return shade(CLASS_COLORS[row.class] ?? CLASS_COLORS.unattributed, SHADES[nth % SHADES.length]);
  });
}

const SHOWN_LINES = 8;

/** What one side does not have took no 0 ns there. */
const timeOr = (ns: number, without: string): string => (ns ? duration(ns) : without);

function budgetTable(rows: BudgetChange[], colors: string[], classes: Record<string, string>): HTMLElement {
  const order = rows.map((_, i) => i).sort((a, b) => Math.abs(rows[b].change_ns) - Math.abs(rows[a].change_ns));
  const body = h("tbody");
  for (const i of order.slice(0, SHOWN_LINES)) {
    const row = rows[i];
    const same = row.change === "same";
    body.append(h("tr", {},
      h("th", { scope: "row" }, dot(colors[i]), ` ${row.label} `, h("small", { text: classes[row.class] ?? row.class })),
      h("td", { class: "number", text: timeOr(row.before_ns, same ? "–" : "new") }),
      h("td", { class: "number", text: timeOr(row.after_ns, same ? "–" : "gone") }),
      h("td", { class: `number ${same ? "zero" : row.change_ns < 0 ? "less" : "more"}` },
        same ? "noise" : `${row.change_ns < 0 ? "▼" : "▲"} ${change(row.change_ns)}`)));
  }
  const head = h("tr", {}, h("th", { scope: "col", text: "Line of the budget" }), ...["Before", "After", "Change"].map((text) => h("th", { scope: "col", class: "number", text })));
  const more = order.slice(SHOWN_LINES).map((i) => `${rows[i].label}: ${timeOr(rows[i].before_ns, "nothing")} before, ${timeOr(rows[i].after_ns, "nothing")} after`);
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Budget before and after, table" },
    h("table", { class: "plain" }, h("caption", { class: "offscreen", text: "Budget of a step before and after" }), h("thead", {}, head), body),
    more.length ? explain(h("button", { type: "button", class: "num", text: plural(more.length, "smaller line") }), more.join("; ")) : null);
}

/** Everything below the first screen. */
export function comparisonSections(page: ComparisonDocument, opened: Opened<ComparisonView> | null, without: string): HTMLElement[] {
  const { comparison, words } = page;
  const all: HTMLElement[] = [];
  const add = (id: string, title: string, lead: string, ...content: (HTMLElement | null)[]): void => {
    const box = section(id, title, lead);
    box.append(...content.filter((part) => part !== null));
    all.push(box);
  };
  if (comparison.scaling) add("scaling", "Scaling", "How the throughput grows with the number of ranks, and what eats the rest.", ...scalingView(comparison.scaling, words));
  add("comparable", "Comparable?", "Whether both sides answer the same question.", comparable(page));
  add("findings", "Findings", "What went away, what stayed, what is new; and whether what was predicted came true.", findingChanges(page));
  if (!comparison.scaling) {
    const view = opened && opened.view.version === DIFFERENCE_VERSION ? opened.view : null;
    const lead = "Both sides as one tree: width is time, colour is change.";
    if (!comparison.comparable.answer) add("flame", "Difference flame graph", lead, missing("Not drawn: the two sides answer different questions."));
    else if (view?.flame) add("flame", "Difference flame graph", lead, new DifferenceView(view.flame, opened!).element);
    else add("flame", "Difference flame graph", lead, missing(view?.flame_missing || without));
    add("tables", "Operators, kernels, modules", "What became of each, largest change first. Click a heading to sort; hover it for what it means.",
      page.tables.length ? tables(page.tables) : missing("Not compared: the two sides answer different questions."));
  }
  add("sides", "The two sides", "What was compared.", sides(page));
  return all;
}

function comparable(page: ComparisonDocument): HTMLElement {
  const { words } = page;
  const list = h("ul", { class: "checks" });
  list.append(h("li", {}, h("span", { class: "state", text: "=" }), words.likeness));
  for (const { text, effect } of words.differences) {
    const state = effect === "refused" ? "✗" : effect === "corrected" ? "~" : "·";
    list.append(h("li", { class: effect === "refused" ? "lacking" : "" }, h("span", { class: "state", text: state }), text));
  }
  if (!words.differences.length) list.append(h("li", { class: "good" }, h("span", { class: "state", text: "✓" }), "Nothing else differs: devices, ranks, profiler options, meaning of a step."));
  return list;
}

function sides(page: ComparisonDocument): HTMLElement {
  const { comparison, words } = page;
  const box = h("div", { class: "columns" });
  for (const [title, key] of [["Before", "before"], ["After", "after"]] as const) {
    const side = comparison[key];
    const files = h("ul", { class: "files" });
    for (const path of side.paths) files.append(h("li", {}, h("code", { text: path })));
    if (words[key].more_paths) files.append(h("li", { text: `and ${plural(words[key].more_paths, "more file")}` }));
    box.append(h("div", {}, h("h3", { text: title }), h("p", { text: words[key].side }), h("p", { class: "note", text: side.sentence }), runs(side.run_ns), files));
  }
  return h("div", { class: "block" }, box, ...comparison.notes.map((note) => h("p", { class: "note", text: note })));
}

function runs(times_: number[]): HTMLElement | null {
  if (times_.length < 2) return null;
  return h("p", { class: "note", text: `Step time of each run: ${times_.map((ns) => duration(ns)).join(", ")}` });
}

function scalingView(scaling: Scaling, { classes, efficiency, fit }: ComparisonWords): HTMLElement[] {
  const most = Math.max(...scaling.points.map((point) => point.step_ns), 1);
  const used = [...new Set(scaling.points.flatMap((point) => Object.keys(point.by_class).filter((name) => point.by_class[name] > 0)))];
  const list = h("ol", { class: "ranks" });
  scaling.points.forEach((point, i) => {
    const bar = h("div", { class: "bar", "aria-hidden": "true" });
    for (const name of used) {
      if (!point.by_class[name]) continue;
      const part = h("span", { class: "part", title: `${classes[name] ?? name}: ${duration(point.by_class[name])}` });
      part.style.background = CLASS_COLORS[name] ?? CLASS_COLORS.unattributed;
      part.style.flexGrow = String(point.by_class[name]);
      bar.append(part);
    }
    const holder = across(h("div", { class: "holder" }), 0, point.step_ns / most);
    holder.append(bar);
    list.append(h("li", {}, h("span", { text: plural(point.ranks, "rank") }),
      h("div", {}, h("div", { class: "rail" }, holder),
        h("p", { class: "note", text: `${duration(point.step_ns)} a step; throughput ${times(point.speedup)}; ${percent(point.efficiency)} of perfect scaling (${efficiency[i]})` }))));
  });
  const keys = h("ul", { class: "keys" });
  for (const name of used) keys.append(h("li", {}, dot(CLASS_COLORS[name] ?? CLASS_COLORS.unattributed), classes[name] ?? name));
  return [h("p", { text: scaling.sentence }), list, keys, ...(fit ? [h("p", { class: "note", text: fit })] : [])];
}
