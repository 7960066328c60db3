// The first screen: what is wrong, how long a step takes, where it goes, what to do.

import { CLASS_COLORS, reserveReason, shade, SHADES } from "./colors";
import type { Document_, Finding, Gain } from "./data";
import { across, h } from "./dom";
import { DEF } from "./texts";
import { explain, num } from "./tip";
import { duration, percent, plural, times } from "./units";

export function overview(page: Document_): HTMLElement {
  const { result, words } = page;
  const verdict = result.verdict;
  const box = h("section", { id: "verdict", class: "verdict", "aria-labelledby": "verdict-title", tabindex: "-1" });
  const chip = h(
    "span",
    { class: "chip" },
    dot(CLASS_COLORS[verdict.bottleneck]),
    (verdict.healthy ? "healthy · " : "") + (words.classes[verdict.bottleneck] ?? verdict.bottleneck),
  );
  box.append(
    h("div", { class: "kicker" }, chip, num(words.confidence, DEF.confidence)),
    h("h1", { id: "verdict-title", text: verdict.sentence }),
    h("div", { class: "facts" }, stepTime(page), budget(page)),
  );
  return box;
}

export function todo(page: Document_): HTMLElement {
  const { result, words } = page;
  const timed = result.findings.filter((f) => f.class !== "quality" || f.severity !== "info");
  const first = (timed.length ? timed : result.findings).slice(0, 3);
  const box = h("section", { class: "todo", "aria-labelledby": "todo-title" });
  box.append(h("h2", { id: "todo-title", text: first.length ? "What to do first" : "What to do" }));
  const most = Math.max(1.2, ...first.map((f) => f.gain.high));
  if (first.length) {
    const list = h("ol", { class: "cards" });
    for (const finding of first) list.append(card(page, finding, most));
    box.append(list);
  }
  const next = h("p", { class: "next" }, h("strong", { text: "Next. " }));
  words.next.split("`").forEach((part, i) => next.append(i % 2 ? h("code", { text: part }) : part));
  box.append(next);
  return box;
}

export function dot(color: string): HTMLElement {
  const element = h("span", { class: "dot", "aria-hidden": "true" });
  element.style.background = color;
  return element;
}

function stepTime(page: Document_): HTMLElement {
  const { step } = page.result;
  const { low, mid, high } = step.time_ns;
  const box = h("div", { class: "fact step" }, h("h2", { class: "small", text: "One step takes" }));
  if (!mid) {
    box.append(h("p", { class: "big", text: "not known" }));
    return box;
  }
  box.append(
    h("p", { class: "big" }, num(duration(mid), DEF.step)),
    range(low, mid, high, Math.max(high, step.recorded_ns), step.recorded_ns),
    h(
      "p",
      { class: "note" },
      low === high ? "" : `between ${duration(low)} and ${duration(high)}; `,
      page.words.step_detail,
    ),
  );
  return box;
}

/** A range on an axis from zero, with the recorded value as a hollow mark. */
function range(low: number, mid: number, high: number, most: number, recorded: number): HTMLElement {
  const track = h("div", { class: "track", "aria-hidden": "true" });
  const full = most * 1.06;
  track.append(across(h("div", { class: "band" }), low / full, high / full));
  if (recorded && recorded !== mid) {
    track.append(across(h("div", { class: "mark hollow" }), recorded / full, recorded / full));
  }
  track.append(across(h("div", { class: "mark" }), mid / full, mid / full));
  return track;
}

function budget(page: Document_): HTMLElement {
  const { budget: lines } = page.result;
  const box = h(
    "div",
    { class: "fact budget" },
    h("h2", { class: "small" }, explain(h("button", { type: "button", class: "num", text: "Where it goes" }), DEF.budget)),
  );
  if (!lines.length) {
    box.append(h("p", { class: "missing", text: "Nothing was recorded to split the step by." }));
    return box;
  }
  const bar = h("div", { class: "bar", role: "img", "aria-label": "Shares of the step; the list below says the same." });
  const list = h("ul", { class: "legend" });
  const used: Record<string, number> = {};
  const shown = lines.filter((line) => line.share >= 0.01).slice(0, 8);
  for (const line of shown) {
    const nth = (used[line.class] = (used[line.class] ?? -1) + 1);
    const color = shade(CLASS_COLORS[line.class] ?? CLASS_COLORS.unattributed, SHADES[nth % SHADES.length]);
    reserveReason(line.label, color);
    const part = h("span", { class: "part" });
    part.style.background = color;
    part.style.flexGrow = String(Math.max(line.share, 0.002));
    part.title = `${line.label}: ${percent(line.share)}`;
    bar.append(part);
    list.append(
      h(
        "li",
        {},
        dot(color),
        num(percent(line.share), DEF.budgetShare, "share"),
        num(duration(line.ns), DEF.budgetNs, "time"),
        h("span", { class: "what" }, line.label, h("small", { text: page.words.classes[line.class] ?? "" })),
      ),
    );
  }
  const rest = lines.slice(shown.length);
  if (rest.length) list.append(restLine(rest));
  box.append(bar, list);
  return box;
}

function restLine(rest: { ns: number; share: number; label: string }[]): HTMLElement {
  const share = rest.reduce((sum, line) => sum + line.share, 0);
  const ns = rest.reduce((sum, line) => sum + line.ns, 0);
  const names = rest.map((line) => `${line.label} ${duration(line.ns)}`).join("; ");
  return h(
    "li",
    {},
    dot("transparent"),
    num(percent(share), DEF.budgetShare, "share"),
    num(duration(ns), DEF.budgetNs, "time"),
    h("span", { class: "what" }, explain(h("button", { type: "button", class: "num", text: plural(rest.length, "smaller line") }), names)),
  );
}

function card(page: Document_, finding: Finding, most: number): HTMLElement {
  const number = page.result.findings.indexOf(finding);
  const words = page.words.findings[number];
  const place = finding.locations.length ? h("code", { class: "place", text: words.places[0] }) : null;
  return h(
    "li",
    { class: `card ${finding.severity}` },
    h(
      "p",
      { class: "kicker" },
      severity(finding.severity),
      h("span", { class: "code", text: finding.code }),
    ),
    h("p", { class: "message", text: finding.message }),
    place,
    h("p", { class: "fix", text: finding.fix.summary }),
    gainDrawn(finding.gain, most, words.gain),
    h("a", { href: `#finding-${number}`, class: "more", text: "How we know, and the fix" }),
  );
}

export function severity(word: string): HTMLElement {
  return h("span", { class: `severity ${word}`, text: word });
}

/** The gain as a range on an axis that starts at "no faster". */
export function gainDrawn(gain: Gain, most: number, wordsForIt: string): HTMLElement {
  if (gain.basis === "none") return h("p", { class: "gain none", text: wordsForIt });
  const at = (factor: number): number => Math.log(Math.max(factor, 1)) / Math.log(Math.max(most, 1.05) * 1.05);
  const track = h("div", { class: "track gain", "aria-hidden": "true" });
  track.append(across(h("div", { class: "band" }), at(gain.low), at(gain.high)));
  track.append(across(h("div", { class: "mark" }), at(gain.mid), at(gain.mid)));
  return h(
    "div",
    { class: "gain" },
    h("p", { class: "gainline" }, num(times(gain.mid), DEF.gain, "strong"), h("span", { class: "note", text: wordsForIt })),
    track,
    h("p", { class: "ends", "aria-hidden": "true" }, h("span", { text: "1x, as now" }), h("span", { text: times(Math.max(most, 1.05)) })),
  );
}
