"""A comparison as a page for a terminal."""

from __future__ import annotations

from rich.cells import cell_len
from rich.text import Text

from kinetoscope.report import RenderOptions, phrases
from kinetoscope.report.comparison import words
from kinetoscope.report.layout import Page
from kinetoscope.report.text import clean, to_ascii
from kinetoscope.result.comparison import BudgetChange, Comparison, FindingChange

SHOWN_ROWS = 8
_COLUMN = 12
_ROW = 84
"""Columns that a row of the scaling takes."""


def render(comparison: Comparison, options: RenderOptions) -> str:
    """Return the page, with a newline at the end."""
    page = Page(width=options.width, color=options.color)
    most = 1000 if options.verbose else SHOWN_ROWS
    _headline(page, comparison)
    _comparable(page, comparison)
    if comparison.scaling is not None:
        _scaling(page, comparison)
    _budget(page, comparison, most)
    _costs(page, comparison, most)
    _findings(page, comparison)
    _notes(page, comparison)
    page.blank()
    _label(page, "Next", Text(words.next_step(comparison), style="bold"))
    text = page.text()
    return text if options.unicode else to_ascii(text)


def _label(page: Page, label: str, text: Text | str) -> None:
    page.hanging(Text(label, style="bold"), text, indent=0, column=2 if page.narrow else _COLUMN)


def _row(page: Page, text: Text | str, style: str = "") -> None:
    page.hanging("•", text, indent=2 if page.narrow else _COLUMN, column=2, style=style)


def _headline(page: Page, comparison: Comparison) -> None:
    verdict = comparison.verdict
    badge = Text(
        f" {words.OUTCOMES[verdict.outcome].upper()} ",
        style=f"bold reverse {words.STYLES[verdict.outcome]}",
    )
    sentence = Text(words.after_badge(verdict), style="bold")
    if page.narrow:
        page.whole(badge)
        page.prose(sentence)
    else:
        page.hanging(badge, sentence, indent=0, column=cell_len(badge.plain) + 1)
    page.blank()
    for label, side in (("Before", comparison.before), ("After", comparison.after)):
        head = Text(f"{label} " if page.narrow else f"{label:<{_COLUMN}}", style="bold")
        page.whole(head.append(words.paths(side), style="dim"))  # a broken path cannot be copied
        page.prose(words.side(side), indent=2 if page.narrow else _COLUMN)


def _comparable(page: Page, comparison: Comparison) -> None:
    page.blank()
    _label(page, "Comparable", words.likeness(comparison.comparable))
    for item in comparison.comparable.differences:
        style = {"refused": "red", "corrected": "yellow"}.get(item.effect, "")
        _row(page, words.difference(item), style)


def _scaling(page: Page, comparison: Comparison) -> None:
    scaling = comparison.scaling
    if scaling is None:
        return
    page.blank()
    _label(page, "Scaling", Text(clean(scaling.sentence), style="bold"))
    for point in scaling.points:
        row = words.scale_row(point)
        if page.width < _ROW:  # words that wrap instead of columns
            row = " ".join(row.split())
        page.prose(row, indent=2 if page.narrow else _COLUMN)
    fit = words.scale_fit(scaling)
    if fit:
        _row(page, fit)


def _budget(page: Page, comparison: Comparison, most: int) -> None:
    rows = [row for row in comparison.budget if row.change != "same"][:most]
    if not comparison.budget:
        return
    page.blank()
    if not rows:
        _label(page, "Where", "every line of the budget changed less than noise")
        return
    _label(page, "Where", "budget of a step, largest change first")
    for row in rows:
        style = "red" if row.change_ns > 0 else "green"
        head = Text(f"{words.signed(row.change_ns):>9}", style=style)
        page.hanging(head, _budget_text(row), indent=2, column=_COLUMN)


def _budget_text(row: BudgetChange) -> str:
    times = words.times(row.before_ns, row.after_ns)
    return f"{phrases.CLASSES[row.class_]}: {clean(row.label)} ({times})"


def _costs(page: Page, comparison: Comparison, most: int) -> None:
    rows = words.changed(comparison.operators, most)
    if not rows:
        return
    page.blank()
    _label(page, "Costs", "operators, kernels and modules beyond noise, time a step")
    for row in rows:
        style = "red" if row.change_ns > 0 else "green"
        head = Text(f"{words.signed(row.change_ns):>9}", style=style)
        text = f"{words.cost(row)}: {words.cost_times(row)}"
        page.hanging(head, text, indent=2, column=_COLUMN)


def _findings(page: Page, comparison: Comparison) -> None:
    changes = comparison.findings
    groups: tuple[tuple[str, tuple[FindingChange, ...], str], ...] = (
        ("Gone", changes.gone, "green"),
        ("Stayed", changes.stayed, ""),
        ("New", changes.new, "yellow"),
    )
    if not any(items for _, items, _ in groups):
        return
    page.blank()
    for label, items, style in groups:
        for number, item in enumerate(items):
            _label(page, label if number == 0 else "", Text(words.finding(item), style=style))
    for number, promise in enumerate(comparison.predictions):
        _label(page, "Promised" if number == 0 else "", words.prediction(promise))


def _notes(page: Page, comparison: Comparison) -> None:
    if not comparison.notes:
        return
    page.blank()
    for number, note in enumerate(comparison.notes):
        _label(page, "Notes" if number == 0 else "", Text(clean(note), style="dim"))
