// The page of `verify` and `tune`: which changes help this program, as measured.

import type { ExperimentDocument, Trial, TrialWords } from "./data";
import { across, copyButton, h } from "./dom";
import { section } from "./section";
import { DEF } from "./texts";
import { num } from "./tip";
import { duration, plural } from "./units";

export function experimentTop(page: ExperimentDocument): HTMLElement {
  const { experiment, words } = page;
  const box = h("section", { id: "verdict", class: "verdict", "aria-labelledby": "verdict-title", tabindex: "-1" },
    h("h1", { id: "verdict-title", text: experiment.sentence }),
    h("p", { class: "note", text: words.setting }));
  if (experiment.combination && words.combination) {
    box.append(h("h2", { text: experiment.combination.title === "together" ? "Together" : "Best" }), trial(experiment.combination, words.combination, most(page)));
  }
  for (const note of experiment.notes) box.append(h("p", { class: "note", text: note }));
  return box;
}

export function experimentSections(page: ExperimentDocument): HTMLElement[] {
  const { experiment, words } = page;
  const all = experiment.trials.map((one, i) => ({ one, told: words.trials[i] }));
  const group = (id: string, title: string, lead: string, statuses: string[]): HTMLElement | null => {
    const mine = all.filter(({ one }) => statuses.includes(one.status));
    if (!mine.length) return null;
    const box = section(id, title, lead);
    box.append(...mine.map(({ one, told }) => trial(one, told, most(page))));
    return box;
  };
  // The list of sections follows the order in which they are made.
  const groups = [
    group("accepted", "Accepted", "Faster beyond noise, and the results stay the same.", ["accepted"]),
    group("rejected", "Measured and rejected", "No gain, harmful, much more memory, or the program computes something else.", ["no_gain", "harmful", "changes_result", "too_much_memory", "failed"]),
    group("undecided", "Undecided", "The time budget was spent before the interval was narrow enough.", ["undecided"]),
  ];
  const skipped = all.filter(({ one }) => one.status === "not_applicable");
  const last = skipped.length ? section("skipped", "Do not apply", "What was not tried, and why.") : null;
  last?.append(h("ul", { class: "checks" }, ...skipped.map(({ one }) => h("li", {}, h("strong", { text: one.remedy }), ` ${one.reason}`))));
  return [...groups, last].filter((part) => part !== null);
}

function most(page: ExperimentDocument): number {
  return Math.max(1.2, ...page.experiment.trials.map((one) => one.speedup?.high ?? 1));
}

function trial(one: Trial, told: TrialWords, largest: number): HTMLElement {
  const box = h("article", { class: "finding" },
    h("header", {},
      h("p", { class: "kicker" }, h("span", { class: "chip", text: told.status }), ...one.codes.map((code) => h("span", { class: "code", text: code }))),
      h("h3", { text: `${one.remedy}: ${one.title}` })));
  const left = h("div", {});
  if (one.speedup) left.append(measured(one, told, largest));
  if (one.reason && !(one.speedup && one.status === "accepted")) left.append(h("p", { class: "note", text: one.reason }));
  if (told.extras) left.append(h("p", { class: "note", text: told.extras }));
  const right = h("div", {}, guards(one), told.lines.length && one.status === "accepted" ? lines(told.lines) : null);
  box.append(h("div", { class: "columns" }, left, right));
  return box;
}

/** The speed-up on a logarithmic axis on which 1x has its own mark. */
function measured(one: Trial, told: TrialWords, largest: number): HTMLElement {
  const { low, mid, high } = one.speedup!;
  const least = Math.min(0.8, low);
  const at = (factor: number): number => Math.log(Math.max(factor, least) / least) / Math.log((largest * 1.05) / least);
  const track = h("div", { class: "track", "aria-hidden": "true" },
    across(h("div", { class: "band" }), at(low), at(high)),
    across(h("div", { class: "mark hollow" }), at(1), at(1)),
    across(h("div", { class: "mark" }), at(mid), at(mid)));
  return h("div", { class: "gain" },
    h("p", { class: "gainline" }, num(told.speedup, DEF.speedup, "strong"),
      h("span", { class: "note", text: `${duration(one.before_ns)} without, ${duration(one.after_ns)} with; ${plural(one.runs, "run")} a side` })),
    track,
    h("p", { class: "note", text: "Left of the hollow mark it is slower than before, right of it faster." }),
    told.predicted ? h("p", { class: "note", text: `predicted ${told.predicted}` }) : null);
}

function guards(one: Trial): HTMLElement | null {
  if (!one.guards.length) return null;
  const list = h("ul", { class: "checks" });
  for (const { name, status, detail } of one.guards) {
    const state = status === "passed" ? "✓" : status === "failed" ? "✗" : "·";
    list.append(h("li", { class: status === "passed" ? "good" : status === "failed" ? "lacking" : "" },
      h("span", { class: "state", text: state }), `${name}: ${status.replaceAll("_", " ")}${detail ? `, ${detail}` : ""}`));
  }
  return h("div", {}, h("h4", { text: "What must not get worse" }), list);
}

function lines(text: string[]): HTMLElement {
  return h("div", {}, h("h4", { text: "Put into the program" }),
    h("div", { class: "snippet" }, h("pre", { tabindex: "0", text: text.join("\n") }), copyButton("Copy", () => text.join("\n"))));
}
