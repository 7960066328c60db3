"""The result as a page for a terminal, from 40 columns up, with or without colour."""

from __future__ import annotations

from collections import Counter

from rich.cells import cell_len
from rich.text import Text

from kinetoscope import units
from kinetoscope.report import RenderOptions, phrases
from kinetoscope.report.budget_lines import CLASS_STYLES, add_budget
from kinetoscope.report.comparison.words import loop
from kinetoscope.report.finding_lines import add_finding
from kinetoscope.report.layout import Page
from kinetoscope.report.text import clean, to_ascii
from kinetoscope.result import DeviceTimeline, Diagnosis
from kinetoscope.result.comparison import Comparison

SHOWN_FINDINGS = 5
SHOWN_REASONS = 4
SHOWN_WITHHELD = 2


def render(diagnosis: Diagnosis, options: RenderOptions) -> str:
    """Return the page, with a newline at the end."""
    page = Page(width=options.width, color=options.color)
    _headline(page, diagnosis)
    _step(page, diagnosis)
    add_budget(page, diagnosis.budget, verbose=options.verbose)
    _devices(page, diagnosis, options)
    if options.verbose and diagnosis.critical_path:
        page.blank()
        _label(page, "Path", phrases.critical_path(diagnosis.critical_path))
    if options.comparison is not None:
        _since(page, options.comparison)
    _findings(page, diagnosis, options)
    _recording(page, diagnosis)
    _rules(page, diagnosis, options)
    _next(page, diagnosis)
    text = page.text()
    return text if options.unicode else to_ascii(text)


def _input(page: Page, line: str) -> None:
    """One input; a path that would be broken, and could not be copied, has a line of its own."""
    path, dot, rest = line.partition(" · ")
    if cell_len(line) <= page.measure or cell_len(path) <= page.measure // 2:
        page.prose(line, style="dim")
        return
    page.whole(Text(path, style="dim"))
    if dot:
        page.prose(rest, indent=2, style="dim")


def _headline(page: Page, diagnosis: Diagnosis) -> None:
    verdict = diagnosis.verdict
    for line in phrases.inputs(diagnosis.inputs):
        _input(page, line)
    page.blank()
    name = phrases.CLASSES[verdict.bottleneck]
    color = "green" if verdict.healthy else CLASS_STYLES[verdict.bottleneck]
    word = "HEALTHY" if verdict.healthy else name.upper()
    badge = Text(f" {word} ", style=f"bold reverse {color}")
    sentence = Text(clean(verdict.sentence), style="bold")
    if page.narrow:
        page.whole(badge)
        page.prose(sentence)
    else:
        page.hanging(badge, sentence, indent=0, column=cell_len(badge.plain) + 1)
    page.prose(phrases.standing(diagnosis), indent=0 if page.narrow else 1, style="dim")


def _column(page: Page) -> int:
    return 2 if page.narrow else 10


def _label(page: Page, label: str, text: Text | str) -> None:
    page.hanging(Text(label, style="bold"), text, indent=0, column=_column(page))


def _bullet(page: Page, text: Text | str, style: str = "") -> None:
    page.hanging("•", text, indent=_column(page), column=2, style=style)


def _step(page: Page, diagnosis: Diagnosis) -> None:
    page.blank()
    _label(page, "Step", Text(phrases.step_time(diagnosis.step), style="bold"))
    page.prose(phrases.step_detail(diagnosis.step), indent=_column(page), style="dim")


def _since(page: Page, comparison: Comparison) -> None:
    page.blank()
    last = ""
    for label, text in loop(comparison):
        _label(page, label if label != last else "", text)
        last = label


def _devices(page: Page, diagnosis: Diagnosis, options: RenderOptions) -> None:
    used = [row for row in diagnosis.device_timeline if row.span_ns > 0]
    if not used:
        return
    page.blank()
    if len(used) > 2 and not options.verbose:
        low = min(used, key=lambda row: row.busy_ns / row.span_ns)
        high = max(used, key=lambda row: row.busy_ns / row.span_ns)
        text = (
            f"{len(used)} devices were busy {_share(low, low.busy_ns)} (rank {low.rank}) to "
            f"{_share(high, high.busy_ns)} (rank {high.rank}) of the recording"
        )
        _label(page, "Devices", text)
        return
    for row in used:
        name = f"rank {row.rank} device {row.device}" if len(used) > 1 else f"device {row.device}"
        mfu = phrases.utilisation(diagnosis, row)
        _label(page, "Device", f"{name} {_device(row)}{mfu and f'; {mfu}'}")


def _share(row: DeviceTimeline, ns: int) -> str:
    return units.percent(ns / row.span_ns)


def _device(row: DeviceTimeline) -> str:
    parts = [f"compute {_share(row, row.compute_ns)}"]
    if row.comm_ns:
        exposed = _share(row, row.exposed_comm_ns)
        parts.append(f"communication {_share(row, row.comm_ns)} ({exposed} not hidden)")
    if row.memcpy_ns:
        exposed = _share(row, row.exposed_memcpy_ns)
        parts.append(f"copies {_share(row, row.memcpy_ns)} ({exposed} not hidden)")
    span = units.duration(row.span_ns)
    return f"busy {_share(row, row.busy_ns)} of {span}: {'; '.join(parts)}"


def _findings(page: Page, diagnosis: Diagnosis, options: RenderOptions) -> None:
    findings = diagnosis.findings
    page.blank()
    if not findings:
        _label(page, "Findings", "none")
        return
    everything = options.all_findings or options.verbose
    shown = findings if everything else findings[:SHOWN_FINDINGS]
    _label(page, "Findings", f"{len(findings):,}, best first")
    for number, finding in enumerate(shown, 1):
        page.blank()
        add_finding(page, finding, number=number, verbose=options.verbose)
    if len(shown) < len(findings):
        page.blank()
        page.prose(f"{len(findings) - len(shown)} more: --all-findings", style="bold")
    together = phrases.together(diagnosis)
    if together:
        page.blank()
        _label(page, "Together", together)


def _recording(page: Page, diagnosis: Diagnosis) -> None:
    lines = phrases.damage(diagnosis) + [clean(note) for note in diagnosis.notes]
    if not lines:
        return
    page.blank()
    page.whole(Text("Notes", style="bold"))
    for line in lines:
        style = "yellow" if line.startswith("lost: ") else ""
        _bullet(page, line, style=style)


def _rules(page: Page, diagnosis: Diagnosis, options: RenderOptions) -> None:
    if not diagnosis.rules:
        return
    page.blank()
    outcomes: Counter[str] = Counter(outcome.status for outcome in diagnosis.rules)
    _label(page, "Rules", phrases.counted(outcomes).partition(": ")[2])
    reasons = phrases.skipped(diagnosis)
    shown = reasons if options.verbose else reasons[:SHOWN_REASONS]
    for reason, codes in shown:
        text = Text(phrases.skipped_line(reason, codes))
        if options.verbose:
            text.append(f" ({', '.join(codes)})", style="dim")
        _bullet(page, text)
    if len(shown) < len(reasons):
        rest = sum(len(codes) for _, codes in reasons[SHOWN_REASONS:])
        _bullet(page, f"{rest} for other reasons: --verbose")
    _withheld(page, diagnosis, options)
    for outcome in diagnosis.rules:
        if outcome.status == "errored":
            text = Text(f"{clean(outcome.code)} failed: {clean(outcome.reason or 'no reason')}")
            _bullet(page, text, style="red")


def _withheld(page: Page, diagnosis: Diagnosis, options: RenderOptions) -> None:
    found = phrases.withheld(diagnosis, small=options.verbose)
    for line in found if options.verbose else found[:SHOWN_WITHHELD]:
        _bullet(page, line)
    if len(found) > SHOWN_WITHHELD and not options.verbose:
        more = units.plural(len(found) - SHOWN_WITHHELD, "more finding", "more findings")
        _bullet(page, f"{more} withheld: --verbose")
    for outcome in diagnosis.rules if options.verbose else ():
        if outcome.status == "silent" and outcome.reason and outcome.reason.startswith("explained"):
            _bullet(page, Text(f"{clean(outcome.code)}: {clean(outcome.reason)}", style="dim"))


def _next(page: Page, diagnosis: Diagnosis) -> None:
    page.blank()
    _label(page, "Next", phrases.next_step(diagnosis))
