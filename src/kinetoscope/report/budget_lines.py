"""The budget on a terminal page: one stacked bar, and a row for each of its parts."""

from __future__ import annotations

from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

from kinetoscope import units
from kinetoscope.report import bar, phrases
from kinetoscope.report.layout import MEASURE, Page
from kinetoscope.report.text import clean
from kinetoscope.result import Budget

CLASS_STYLES = {
    "compute": "green",
    "memory": "magenta",
    "data_loading": "yellow",
    "communication": "blue",
    "framework": "red",
    "unattributed": "bright_black",
    "undetermined": "bright_black",
}

SMALL_SHARE = 0.01


@dataclass(frozen=True)
class _Row:
    """A part of the bar."""

    name: str
    label: str
    style: str
    ns: int
    share: float


def add_budget(page: Page, budget: tuple[Budget, ...], *, verbose: bool) -> None:
    """Add the bar and its rows; rows below one percent become one unless `verbose`."""
    rows = [_row(line) for line in budget]
    if not verbose:
        rows = _folded(rows)
    if not rows:
        return
    page.blank()
    stripe = Text()
    counts = bar.cells([row.share for row in rows], min(page.width, MEASURE))
    for index, (row, count) in enumerate(zip(rows, counts, strict=True)):
        stripe.append(bar.fill(index) * count, style=row.style)
    page.whole(stripe)
    _add_rows(page, rows)


def _row(line: Budget) -> _Row:
    name, style = phrases.CLASSES[line.class_], CLASS_STYLES[line.class_]
    return _Row(name=name, label=clean(line.label), style=style, ns=line.ns, share=line.share)


def _folded(rows: list[_Row]) -> list[_Row]:
    small = [row for row in rows if row.share < SMALL_SHARE]
    if len(small) < 2:
        return rows
    rest = _Row(
        name="several",
        label=f"{len(small)} lines below 1 %: --verbose",
        style=CLASS_STYLES["unattributed"],
        ns=sum(row.ns for row in small),
        share=sum(row.share for row in small),
    )
    return [*(row for row in rows if row.share >= SMALL_SHARE), rest]


def _add_rows(page: Page, rows: list[_Row]) -> None:
    times = [units.duration(row.ns) for row in rows]
    shares = [units.percent(row.share) for row in rows]
    time_width, share_width = max(map(len, times)), max(map(len, shares))
    name_width = max(len(row.name) for row in rows)
    for index, row in enumerate(rows):
        head = Text()
        head.append(bar.fill(index) * 2, style=row.style)
        head.append(f" {shares[index]:>{share_width}}", style="bold")
        head.append(f"  {times[index]:>{time_width}}  ")
        label = row.label
        if not page.narrow:
            head.append(f"{row.name:<{name_width}}  ")
        elif row.name not in row.label.lower():
            label = f"{row.name}: {row.label}"
        page.hanging(head, label, indent=0, column=cell_len(head.plain))
