"""A comparison as Markdown: a comment on a pull request, the summary of a CI job."""

from __future__ import annotations

from kinetoscope import units
from kinetoscope.report import RenderOptions, phrases
from kinetoscope.report.comparison import words
from kinetoscope.report.markdown import code, escape
from kinetoscope.result.comparison import Comparison, FindingChange, Side

SHOWN_ROWS = 10


def render(comparison: Comparison, options: RenderOptions) -> str:
    """Return the page, with a newline at the end."""
    most = 1000 if options.verbose else SHOWN_ROWS
    parts = [
        _headline(comparison),
        _scaling(comparison),
        _budget(comparison, most),
        _findings(comparison),
        _costs(comparison, most),
        _details(comparison),
        f"**Next:** {_ticked(words.next_step(comparison))}",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _ticked(text: str) -> str:
    pieces = text.split("`")
    return "".join(code(p) if i % 2 else escape(p) for i, p in enumerate(pieces) if p)


def _headline(comparison: Comparison) -> str:
    verdict = comparison.verdict
    rows = ["| | step | speed-up | |", "|---|--:|--:|---|", _side("before", comparison.before, "")]
    speedup = verdict.speedup
    text = f"{speedup.mid:.3g}x ({speedup.low:.3g}x to {speedup.high:.3g}x)" if speedup else ""
    rows.append(_side("after", comparison.after, text))
    table = "\n".join(rows)
    return (
        f"## Kinetoscope: {words.OUTCOMES[verdict.outcome]}\n\n"
        f"**{escape(words.after_badge(verdict))}**\n\n{table}"
    )


def _side(name: str, side: Side, speedup: str) -> str:
    runs = units.plural(side.runs, "run")
    limit = phrases.CLASSES[side.bottleneck]
    return f"| {name} | {units.duration(side.step_ns)} | {speedup} | {runs}, {limit} |"


def _scaling(comparison: Comparison) -> str:
    scaling = comparison.scaling
    if scaling is None:
        return ""
    rows = ["| ranks | step | speed-up | efficiency |", "|--:|--:|--:|--:|"]
    rows += [
        f"| {p.ranks} | {units.duration(p.step_ns)} | {units.times(p.speedup)} "
        f"| {units.percent(p.efficiency)} |"
        for p in scaling.points
    ]
    fit = words.scale_fit(scaling)
    return "\n".join([escape(scaling.sentence), "", *rows, *(["", escape(fit)] if fit else [])])


def _budget(comparison: Comparison, most: int) -> str:
    rows = [row for row in comparison.budget if row.change != "same"][:most]
    if not rows:
        return ""
    head = ["| change | before | after | class | where the step goes |", "|--:|--:|--:|---|---|"]
    return "\n".join(
        head
        + [
            f"| {words.signed(row.change_ns)} | {_time(row.before_ns, 'new')} "
            f"| {_time(row.after_ns, 'gone')} | {phrases.CLASSES[row.class_]} "
            f"| {escape(row.label)} |"
            for row in rows
        ]
    )


def _time(ns: int, without: str) -> str:
    """A time of one side; what the side does not have took no 0 ns."""
    return units.duration(ns) if ns else without


def _findings(comparison: Comparison) -> str:
    changes = comparison.findings
    lines = [
        *_group("gone", changes.gone),
        *_group("stayed", changes.stayed),
        *_group("new", changes.new),
        *(f"* {escape(words.prediction(item))}" for item in comparison.predictions),
    ]
    return "\n".join(lines)


def _group(word: str, items: tuple[FindingChange, ...]) -> list[str]:
    return [f"* **{word}:** {escape(words.finding(item))}" for item in items]


def _costs(comparison: Comparison, most: int) -> str:
    rows = words.changed(comparison.operators, most)
    if not rows:
        return ""
    head = ["| change | what | time a step |", "|--:|---|---|"]
    body = [
        f"| {words.signed(row.change_ns)} | {escape(words.cost(row))} | {words.cost_times(row)} |"
        for row in rows
    ]
    table = "\n".join(head + body)
    return f"<details><summary>Operators, kernels, modules</summary>\n\n{table}\n\n</details>"


def _details(comparison: Comparison) -> str:
    lines = [f"* {escape(words.likeness(comparison.comparable))}"]
    lines += [f"* {escape(words.difference(d))}" for d in comparison.comparable.differences]
    lines += [f"* {escape(note)}" for note in comparison.notes]
    lines += [
        f"* {name}: {code(words.paths(side))}"
        for name, side in (("before", comparison.before), ("after", comparison.after))
    ]
    body = "\n".join(lines)
    return f"<details><summary>Comparable? Notes</summary>\n\n{body}\n\n</details>"
