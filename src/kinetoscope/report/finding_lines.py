"""One finding on a terminal page."""

from __future__ import annotations

import re

from rich.cells import cell_len
from rich.text import Text

from kinetoscope import units
from kinetoscope.report import phrases
from kinetoscope.report.layout import Page
from kinetoscope.report.text import clean, clean_lines, shorten
from kinetoscope.result import Evidence, Finding, Location

SEVERITY_STYLES = {
    "critical": "bold red",
    "high": "red",
    "medium": "yellow",
    "low": "blue",
    "info": "dim",
}

SHOWN_EVIDENCE = 6
SHOWN_PLACES = 3
_DEFINITION = re.compile(r"\s*(async\s+)?def\s")
"""The first line of a function says no more than its name, which stands above it."""

LONGEST_NAME = 40
LONGEST_VALUE = 160
"""Kernel names have hundreds of characters; --verbose shows them whole."""


def add_finding(page: Page, finding: Finding, *, number: int, verbose: bool) -> None:
    """Add a finding: what, how we know, where, what to do, what it gains."""
    _title(page, finding, number)
    indent = 2 if page.narrow else 3
    page.prose(Text(clean(finding.message)), indent=indent)
    _evidence(page, finding.evidence, indent=indent, verbose=verbose)
    _places(page, finding, indent=indent, verbose=verbose)
    _fix(page, finding, indent=indent)
    if finding.class_ != "quality":  # a better recording gains no time, and says so itself
        _gain(page, finding, indent=indent)
    if verbose:
        _row(page, "sure", phrases.confidence(finding.confidence), indent=indent)


def _gain(page: Page, finding: Finding, *, indent: int) -> None:
    words = Text(phrases.gain(finding))
    if finding.gain.basis != "none":
        words.stylize("bold", 0, words.plain.rfind(" ("))
    _row(page, "gain", words, indent=indent)
    then = phrases.then(finding)
    if then:
        _row(page, "", Text(then, style="dim"), indent=indent)


def _title(page: Page, finding: Finding, number: int) -> None:
    title = Text(f"{number}", style="bold")
    title.append(" " if page.narrow else "  ")
    title.append(finding.severity.upper(), style=SEVERITY_STYLES[finding.severity])
    title.append(f"  {clean(finding.code)} ", style="bold")
    title.append(clean(finding.name))
    if finding.rank is not None:
        title.append(f"  rank {finding.rank}", style="dim")
    page.hanging(Text(), title, indent=0, column=0)


def _row(page: Page, label: str, text: Text | str, *, indent: int) -> None:
    """Add wrapped text with its label."""
    if page.narrow:
        head = Text(f"{label}:" if label else "", style="dim")
        page.hanging(head, text, indent=indent, column=2)
    else:
        page.hanging(Text(label, style="dim"), text, indent=indent, column=7)


def _whole_row(page: Page, label: str, text: Text, *, indent: int) -> None:
    """Add a line that is never broken, with its label; `label` may be empty."""
    head = Text(f"{label}: " if page.narrow and label else label.ljust(0 if page.narrow else 7))
    head.stylize("dim")
    head.append_text(text)
    page.whole(head, indent)


def _code(page: Page, snippet: str, *, indent: int) -> None:
    for line in clean_lines(snippet):
        text = Text("│ ", style="dim")
        text.append(line, style="not dim cyan")
        _whole_row(page, "", text, indent=indent)


def _evidence(page: Page, evidence: tuple[Evidence, ...], *, indent: int, verbose: bool) -> None:
    shown = evidence if verbose else evidence[:SHOWN_EVIDENCE]
    if not shown:
        return
    names = [shorten(phrases.evidence_name(item), LONGEST_NAME) for item in shown]
    values = [clean(units.quantity(item.value, item.unit)) for item in shown]
    if not verbose:
        values = [shorten(value, LONGEST_VALUE) for value in values]
    name_width = max(map(cell_len, names))
    numbers = [v for v, item in zip(values, shown, strict=True) if not isinstance(item.value, str)]
    value_width = max(map(cell_len, numbers), default=0)
    inset = indent + 2
    for item, name, value in zip(shown, names, values, strict=True):
        origin = "" if item.origin == "measured" else f"  {item.origin}"
        aligned = not page.narrow and not isinstance(item.value, str)
        text = Text(value.rjust(value_width) if aligned else value)
        text.append(origin, style="dim")
        label = Text(name if page.narrow else name.ljust(name_width), style="dim")
        page.hanging(label, text, indent=inset, column=2 if page.narrow else name_width + 2)
    if len(shown) < len(evidence):
        page.prose(f"{len(evidence) - len(shown)} more: --verbose", indent=inset, style="dim")


def _places(page: Page, finding: Finding, *, indent: int, verbose: bool) -> None:
    places = finding.locations
    shown = places if verbose else places[:SHOWN_PLACES]
    for index, at in enumerate(shown):
        _place(page, at, label="where" if index == 0 else "", indent=indent)
    if len(shown) < len(places):
        number = units.plural(len(places) - len(shown), "more place")
        more = Text(f"{number}: --verbose", style="dim")
        _whole_row(page, "", more, indent=indent)


def _place(page: Page, at: Location, *, label: str, indent: int) -> None:
    text = Text(phrases.place(at), style="bold")
    detail = phrases.place_detail(at)
    if not at.file:  # nothing that an editor or a shell must find in one piece
        _row(page, label, f"{text.plain}, {detail}" if detail else text, indent=indent)
    elif not detail:
        _whole_row(page, label, text, indent=indent)
    elif page.narrow or indent + 9 + cell_len(text.plain) + cell_len(detail) > page.width:
        _whole_row(page, label, text, indent=indent)
        _row(page, "", Text(detail, style="dim"), indent=indent)
    else:
        text.append(f"  {detail}", style="not bold dim")
        _whole_row(page, label, text, indent=indent)
    if at.snippet and (at.exact or not _DEFINITION.match(at.snippet)):
        _code(page, at.snippet, indent=indent)


def _fix(page: Page, finding: Finding, *, indent: int) -> None:
    fix = finding.fix
    if fix.summary:
        _row(page, "fix", Text(clean(fix.summary)), indent=indent)
    if fix.snippet:
        _code(page, fix.snippet, indent=indent)
    if fix.reference:
        _whole_row(page, "", Text(clean(fix.reference), style="dim"), indent=indent)
