// Findings in full: evidence, place, call path, fix, gain; and what could not be looked at.

import type { Document_, Finding, FindingWords, Focus } from "./data";
import { boxColor, kindWord } from "./colors";
import { across, copyButton, h } from "./dom";
import { dot, gainDrawn, severity } from "./overview";
import { section } from "./section";
import { DEF } from "./texts";
import { num } from "./tip";
import { plural } from "./units";

export interface FindingHooks {
  focusOf(finding: number): Focus | undefined;
  showInTimeline(focus: Focus): void;
}

const ORIGINS: Record<string, string> = {
  measured: DEF.measured,
  derived: DEF.derived,
  estimated: DEF.estimated,
};

export function findings(page: Document_): HTMLElement {
  const { result, words } = page;
  const box = section("findings", "Findings", "");
  if (!result.findings.length) {
    box.append(h("p", { text: "No rule found a cause. The rules below say what they looked for and what they lacked." }));
  }
  const most = Math.max(1.2, ...result.findings.map((f) => f.gain.high));
  result.findings.forEach((finding, i) => box.append(one(page, finding, i, words.findings[i], most)));
  box.append(rules(page));
  return box;
}

function one(page: Document_, finding: Finding, i: number, words: FindingWords, most: number): HTMLElement {
  const rank = finding.rank === null ? null : h("span", { class: "code", text: `rank ${finding.rank}` });
  return h(
    "article",
    { class: `finding ${finding.severity}`, id: `finding-${i}`, tabindex: "-1", "aria-labelledby": `finding-${i}-title` },
    h(
      "header",
      {},
      h("p", { class: "kicker" }, severity(finding.severity), h("span", { class: "code", text: `${finding.code} ${finding.name}` }), rank,
        num(words.confidence, DEF.confidence)),
      h("h3", { id: `finding-${i}-title`, text: finding.message }),
    ),
    h(
      "div",
      { class: "columns" },
      h("div", {}, evidence(finding, words), places(finding, words), h("div", { class: "path", id: `path-${i}` })),
      h("div", {}, fix(finding), gainBlock(page, finding, words, most)),
    ),
  );
}

function evidence(finding: Finding, words: FindingWords): HTMLElement | null {
  if (!finding.evidence.length) return null;
  const list = h("dl", { class: "evidence" });
  finding.evidence.forEach((item, i) => {
    const { name, value } = words.evidence[i];
    const cell = h("dd", {}, num(value, `${name}. ${ORIGINS[item.origin] ?? ""}`));
    if (item.unit === "ratio" && typeof item.value === "number" && item.value <= 1) {
      const bar = h("span", { class: "minibar", "aria-hidden": "true" });
      bar.append(across(h("span", {}), 0, item.value));
      cell.append(bar);
    }
    if (item.origin !== "measured") cell.append(h("small", { text: item.origin }));
    list.append(h("div", {}, h("dt", { text: name }), cell));
  });
  return h("div", {}, h("h4", { text: "Evidence" }), list);
}

function places(finding: Finding, words: FindingWords): HTMLElement | null {
  if (!finding.locations.length) return null;
  const list = h("ul", { class: "places" });
  finding.locations.slice(0, 5).forEach((_, i) => {
    const lines = words.code_lines[i];
    list.append(
      h(
        "li",
        {},
        h("code", { text: words.places[i] }),
        words.place_details[i] ? h("small", { text: words.place_details[i] }) : null,
        lines.length ? h("pre", {}, h("code", { text: lines.join("\n") })) : null,
      ),
    );
  });
  return h("div", {}, h("h4", { text: "Where" }), list);
}

function fix(finding: Finding): HTMLElement {
  const { summary, snippet, reference } = finding.fix;
  const box = h("div", { class: "fix" }, h("h4", { text: "Fix" }), h("p", { text: summary || "See the rule's page." }));
  if (snippet) {
    box.append(
      h("div", { class: "snippet" }, h("pre", { tabindex: "0", "aria-label": "Code of the fix" }, h("code", { text: snippet })), copyButton("Copy", () => snippet)),
    );
  }
  // Only addresses that are plainly one become a link; the reader decides whether to follow it.
  if (/^https:\/\/[\w./#?=&%~:+-]+$/.test(reference)) {
    box.append(h("p", { class: "note" }, h("a", { href: reference, rel: "noreferrer noopener", target: "_blank", text: reference })));
  } else if (reference) {
    box.append(h("p", { class: "note", text: reference }));
  }
  box.append(h("p", { class: "note" }, h("code", { text: `kinetoscope rules ${finding.code}` }), " explains the rule."));
  return box;
}

/** Null for findings about the recording itself: there is no time to gain. */
function gainBlock(page: Document_, finding: Finding, words: FindingWords, most: number): HTMLElement | null {
  if (finding.class === "quality" && finding.gain.basis === "none") return null;
  const box = h("div", {}, h("h4", { text: "Gain" }), gainDrawn(finding.gain, most, words.gain));
  if (words.expected && page.result.step.time_ns.mid) {
    box.append(h("p", { class: "note" }, "A step should then take ", num(words.expected, DEF.expected), "."));
  }
  return box;
}

/** Adds to the findings what only the recording knows: the call path, and the way to the timeline.
 * `found` need not be in the page yet. */
export function connect(page: Document_, found: HTMLElement, hooks: FindingHooks): void {
  page.result.findings.forEach((_, i) => {
    const focus = hooks.focusOf(i);
    const box = found.querySelector(`#path-${i}`);
    if (!focus || !box) return;
    if (focus.path.length > 1) {
      const list = h("ol", { class: "callpath" });
      for (const step of focus.path) {
        list.append(h("li", {}, dot(boxColor(step)), h("span", { class: "kind", text: kindWord(step.kind) }), h("code", { text: step.text })));
      }
      box.append(h("details", {}, h("summary", { text: `Call path, ${plural(focus.path.length, "step")}` }), list));
    }
    const button = h("button", { type: "button", class: "quiet", text: "Show in timeline" });
    button.addEventListener("click", () => hooks.showInTimeline(focus));
    box.append(button);
  });
}

/** More codes than this in one line are only shown on demand. */
const MOST_CODES = 12;

function rules(page: Document_): HTMLElement {
  const { result, words } = page;
  const box = h("div", { class: "rules" }, h("h3", { text: "What was looked at" }), h("p", { text: `${words.rules}.` }));
  if (words.skipped.length) {
    const list = h("ul");
    for (const { text, codes } of words.skipped) {
      const named = h("small", { text: codes.join(", ") });
      const folded = codes.length > MOST_CODES ? h("details", {}, h("summary", { text: "Which" }), named) : named;
      list.append(h("li", {}, text, folded));
    }
    box.append(h("h4", { text: "To let more rules look, record" }), list);
  }
  const quiet = result.rules.filter((rule) => rule.status === "silent" && rule.reason);
  const broken = result.rules.filter((rule) => rule.status === "errored");
  if (broken.length) {
    const list = h("ul");
    for (const rule of broken) list.append(h("li", { text: `${rule.code} failed: ${rule.reason ?? ""}` }));
    box.append(h("h4", { text: "Rules that failed" }), list);
  }
  if (quiet.length) {
    const list = h("ul", { class: "withheld" });
    for (const rule of quiet) {
      const found = rule.withheld ? `${rule.withheld} ` : "";
      list.append(h("li", {}, h("code", { text: rule.code }), ` ${found}(${rule.reason})`));
    }
    box.append(h("details", {}, h("summary", { text: `Withheld: ${plural(quiet.length, "rule")} found too little, and why` }), list));
  }
  return box;
}
