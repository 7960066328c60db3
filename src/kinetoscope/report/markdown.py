"""The result as Markdown that fits a comment on a pull request."""

from __future__ import annotations

import re
from collections import Counter

from kinetoscope import units
from kinetoscope.report import RenderOptions, phrases
from kinetoscope.report.comparison import words
from kinetoscope.report.text import clean, clean_lines
from kinetoscope.result import Diagnosis, Finding, Location
from kinetoscope.result.comparison import Comparison

SHOWN_FINDINGS = 5
SHOWN_PLACES = 3

_SPECIAL = re.compile(r"([\\`*\[\]#|~]|(?<!\w)_|_(?!\w))")
_MENTION = re.compile(r"([@#])(?=\w)")


def escape(text: str) -> str:
    """Return cleaned text that Markdown shows as it is: no markup, HTML, mention or table cut."""
    text = clean(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = _SPECIAL.sub(r"\\\1", text)
    return _MENTION.sub(r"\1<!-- -->", text)


def code(text: str) -> str:
    """Return cleaned text as a code span, whatever backticks it holds; not for a table."""
    text = clean(text)
    fence = "`" * (max((len(run) for run in re.findall("`+", text)), default=0) + 1)
    pad = " " if len(fence) > 1 or text.startswith(" ") else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def render(diagnosis: Diagnosis, options: RenderOptions) -> str:
    """Return the page, with a newline at the end."""
    everything = options.all_findings or options.verbose
    shown = diagnosis.findings if everything else diagnosis.findings[:SHOWN_FINDINGS]
    parts = [_headline(diagnosis), _since(options.comparison), _budget(diagnosis)]
    parts += [_finding(finding, number) for number, finding in enumerate(shown, 1)]
    if not diagnosis.findings:
        parts.append("No findings.")
    if len(shown) < len(diagnosis.findings):
        parts.append(f"{len(diagnosis.findings) - len(shown)} more with `--all-findings`.")
    together = phrases.together(diagnosis)
    parts += [f"**Together,** {escape(together)}." if together else ""]
    parts += [_notes(diagnosis), f"**Next:** {_next(diagnosis)}"]
    return "\n\n".join(part for part in parts if part) + "\n"


def _next(diagnosis: Diagnosis) -> str:
    pieces = phrases.next_step(diagnosis).split("`")
    return "".join(code(p) if i % 2 else escape(p) for i, p in enumerate(pieces) if p)


def _headline(diagnosis: Diagnosis) -> str:
    verdict, step = diagnosis.verdict, diagnosis.step
    name = "healthy" if verdict.healthy else phrases.CLASSES[verdict.bottleneck]
    sources = "<br>\n".join(escape(line) for line in phrases.inputs(diagnosis.inputs))
    use = phrases.utilisation(diagnosis)
    return (
        f"## Kinetoscope: {name}\n\n"
        f"**{escape(verdict.sentence)}**\n\n"
        f"{phrases.standing(diagnosis)[0].upper()}{escape(phrases.standing(diagnosis)[1:])}. "
        f"Step time **{phrases.step_time(step)}**; {phrases.step_detail(step)}."
        f"{use and f' {use}.'}\n\n"
        f"{sources}"
    )


def _since(comparison: Comparison | None) -> str:
    if comparison is None:
        return ""
    return "\n".join(f"* **{label}:** {escape(text)}" for label, text in words.loop(comparison))


def _budget(diagnosis: Diagnosis) -> str:
    if not diagnosis.budget:
        return ""
    rows = ["| share | time | class | where the step goes |", "|--:|--:|---|---|"]
    rows += [
        f"| {units.percent(line.share)} | {units.duration(line.ns)} "
        f"| {phrases.CLASSES[line.class_]} | {escape(line.label)} |"
        for line in diagnosis.budget
    ]
    return "\n".join(rows)


def _finding(finding: Finding, number: int) -> str:
    rank = f", rank {finding.rank}" if finding.rank is not None else ""
    parts = [
        f"### {number}. {escape(finding.code)} {escape(finding.name)} ({finding.severity}{rank})",
        escape(finding.message),
    ]
    if finding.evidence:
        rows = ["| evidence | value | origin |", "|---|--:|---|"]
        rows += [
            f"| {escape(phrases.evidence_name(item))} "
            f"| {escape(units.quantity(item.value, item.unit))} | {item.origin} |"
            for item in finding.evidence
        ]
        parts.append("\n".join(rows))
    lines = [_place(at) for at in finding.locations[:SHOWN_PLACES]]
    if len(finding.locations) > SHOWN_PLACES:
        lines.append(f"* {units.plural(len(finding.locations) - SHOWN_PLACES, 'more place')}")
    if finding.fix.summary:
        lines.append(f"* **fix:** {escape(finding.fix.summary)}{_reference(finding)}")
    then = phrases.then(finding)
    more = f"; {then}" if then else ""
    lines.append(f"* **gain:** {escape(phrases.gain(finding) + more)}")
    parts.append("\n".join(lines))
    parts.append(_block(finding.fix.snippet))
    return "\n\n".join(part for part in parts if part)


def _place(location: Location) -> str:
    detail = phrases.place_detail(location)
    return f"* **where:** {code(phrases.place(location))}{f' ({detail})' if detail else ''}"


def _reference(finding: Finding) -> str:
    url = finding.fix.reference
    if re.fullmatch(r"https://[\w./#?=&%~:+-]+", url, re.ASCII):
        return f" ([reference]({url}))"
    return f" ({escape(url)})" if url else ""


def _block(snippet: str) -> str:
    lines = clean_lines(snippet)
    if not lines:
        return ""
    longest = max((len(run) for run in re.findall("`+", snippet)), default=0)
    fence = "`" * max(3, longest + 1)
    return "\n".join([f"{fence}python", *lines, fence])


def _notes(diagnosis: Diagnosis) -> str:
    lines = [f"* {escape(line)}" for line in phrases.damage(diagnosis)]
    lines += [f"* {escape(note)}" for note in diagnosis.notes]
    if diagnosis.rules:
        outcomes: Counter[str] = Counter(outcome.status for outcome in diagnosis.rules)
        lines.append(f"* {phrases.counted(outcomes)}")
    lines += [
        f"* {escape(phrases.skipped_line(reason, codes))}"
        for reason, codes in phrases.skipped(diagnosis)
    ]
    lines += [f"* {escape(line)}" for line in phrases.withheld(diagnosis)]
    lines += [
        f"* {escape(f'{o.code} failed: {o.reason}')}"
        for o in diagnosis.rules
        if o.status == "errored"
    ]
    if not lines:
        return ""
    body = "\n".join(lines)
    return f"<details><summary>Notes and rules</summary>\n\n{body}\n\n</details>"
