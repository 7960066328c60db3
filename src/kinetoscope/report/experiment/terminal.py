"""An experiment as a page for a terminal."""

from __future__ import annotations

from rich.cells import cell_len
from rich.text import Text

from kinetoscope.report import RenderOptions
from kinetoscope.report.experiment import words
from kinetoscope.report.layout import Page
from kinetoscope.report.text import clean, clean_lines, to_ascii
from kinetoscope.result.experiment import Experiment, Trial


def render(experiment: Experiment, options: RenderOptions) -> str:
    """Return the page, with a newline at the end."""
    page = Page(width=options.width, color=options.color)
    page.prose(Text(clean(experiment.sentence), style="bold"))
    page.prose(words.setting(experiment), style="dim")
    measured = [t for t in experiment.trials if t.status != "not_applicable"]
    if measured:
        page.blank()
        _table(page, measured, options)
    _combination(page, experiment)
    _skipped(page, experiment, options)
    for note in experiment.notes:
        page.blank()
        page.prose(Text(clean(note), style="yellow"))
    text = page.text()
    return text if options.unicode else to_ascii(text)


def _table(page: Page, trials: list[Trial], options: RenderOptions) -> None:
    width = max(cell_len(clean(t.remedy)) for t in trials)
    for trial in trials:
        head = Text(clean(trial.remedy), style="bold")
        text = Text(words.STATUSES[trial.status], style=words.STYLES[trial.status])
        parts = [words.speedup(trial), words.guard(trial), words.extras(trial)]
        if trial.speedup is None or trial.status in words.REJECTED:
            parts.append(clean(trial.reason))
        promise, codes = words.predicted(trial), ", ".join(trial.codes)
        if codes:
            parts.append(f"{codes} predicted {promise}" if promise else f"recommended by {codes}")
        text.append("".join(f"; {part}" for part in parts if part), style="")
        column = 4 if page.narrow or 2 * width > page.width else width + 2
        page.hanging(head, text, indent=0, column=column)
        if options.verbose:
            for guard in trial.guards:
                status = guard.status.replace("_", " ")
                page.prose(f"{guard.name}: {status}, {clean(guard.detail)}", indent=column)


def _combination(page: Page, experiment: Experiment) -> None:
    best = experiment.combination
    if best is None:
        return
    page.blank()
    page.prose(Text(f"{words.best(best)}: {clean(best.remedy)}", style="bold"))
    parts = [words.STATUSES[best.status], words.speedup(best), words.guard(best)]
    page.prose("; ".join(part for part in parts if part), indent=2)
    if best.status == "accepted":
        page.prose("Put into the program:", indent=2)
        for line in clean_lines(best.snippet):
            page.whole(Text(line), indent=4)


def _skipped(page: Page, experiment: Experiment, options: RenderOptions) -> None:
    skipped = [t for t in experiment.trials if t.status == "not_applicable"]
    if all(t.reason in experiment.sentence for t in skipped):
        return
    page.blank()
    if not options.verbose:
        names = ", ".join(clean(t.remedy) for t in skipped)
        page.prose(Text(f"Do not apply (--verbose says why): {names}", style="dim"))
        return
    for trial in skipped:
        page.prose(Text(f"{clean(trial.remedy)}: {clean(trial.reason)}", style="dim"))
