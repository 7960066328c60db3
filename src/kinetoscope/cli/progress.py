"""Progress on stderr; on a terminal it is gone when the work is done."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.progress import ProgressColumn

Progress = Callable[[str, int, int], None]
Tell = Callable[[str], None]

_WIDEST = 100


@contextmanager
def progress() -> Iterator[Progress | None]:
    """Give a callback `(stage, done, total)`; None when nobody watches."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("starting", total=None)

        def update(stage: str, done: int, total: int) -> None:
            bars.update(task, description=stage, completed=done, total=total or None)

        yield update


@contextmanager
def within(budget_s: float) -> Iterator[Tell]:
    """Give a callback that is told what happens now, in work that has a budget of time.

    On a terminal one line shows it, with the time so far and the budget. Elsewhere each stage gets
    a line: a log that says nothing for minutes looks like a program that hangs.
    """
    if not sys.stderr.isatty():
        yield _lines(budget_s)
        return
    from rich.console import Console
    from rich.progress import Progress as Bars
    from rich.progress import SpinnerColumn, TextColumn
    from rich.table import Column

    cut = Column(ratio=1, no_wrap=True, overflow="ellipsis")
    text = TextColumn("{task.description}", markup=False, table_column=cut)
    columns = (SpinnerColumn(), text, _clock(budget_s))
    console = Console(stderr=True)
    console.width = min(console.width, _WIDEST)  # the time next to what it is about
    with Bars(*columns, console=console, transient=True, expand=True) as bars:
        task = bars.add_task("starting", total=None)
        yield lambda now: bars.update(task, description=now)


def _lines(budget_s: float) -> Tell:
    start, last = time.monotonic(), ""
    click.echo(f"measuring for {_minutes(budget_s)} (--budget), or less", err=True)

    def tell(now: str) -> None:
        nonlocal last
        stage, _, run = now.partition(", run ")
        if stage == last:
            return
        what = stage if not run else f"{stage}, {run.partition(':')[0].partition(' of ')[2]} runs"
        click.echo(f"[{_spent(time.monotonic() - start, budget_s)}] {what}", err=True)
        last = stage

    return tell


def _clock(budget_s: float) -> ProgressColumn:
    from rich.progress import ProgressColumn, Task
    from rich.text import Text

    class Clock(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(_spent(task.elapsed or 0.0, budget_s), no_wrap=True)

    return Clock()


def _spent(seconds: float, budget_s: float) -> str:
    """`0:42 of 5:00`; once that is over, nothing new begins."""
    if seconds > budget_s:
        return f"{_minutes(seconds)}, ending"
    return f"{_minutes(seconds)} of {_minutes(budget_s)}"


def _minutes(seconds: float) -> str:
    """`4:05`."""
    whole = int(seconds)
    return f"{whole // 60}:{whole % 60:02d}"
