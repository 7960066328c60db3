"""What our own capture measured, for the analysis and for the result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from kinetoscope.analysis.core import Analysis
from kinetoscope.analysis.locate import Locator
from kinetoscope.analysis.measured import AnalysisOptions
from kinetoscope.analysis.recorded_lines import hottest
from kinetoscope.metrics.hardware import Peaks
from kinetoscope.result import CaptureInfo, Evidence, Finding, Location, NsRange, WindowInfo
from kinetoscope.trace.captured import Sampled, Sidecar
from kinetoscope.trace.frames import Frame
from kinetoscope.trace.trace import Trace

_COMPILE_CODES = {
    "FW510": "graph_break",
    "FW534": "graph_break",
    "FW511": "recompile",
    "FW512": "recompile",
}
_WORKER_CODES = ("DL101", "DL102", "DL108", "DL111", "DL116")
"""Findings about work that loader workers do; a trace has no events of those processes."""


def options_for(
    trace: Trace,
    *,
    real_step_ns: int | None,
    source_root: Path | None,
    device_peaks: Peaks | None = None,
) -> AnalysisOptions:
    """What is known better than the trace: by the caller, else by the capture's baseline."""
    captured = trace.sidecar
    if real_step_ns is not None or captured is None or captured.baseline is None:
        return AnalysisOptions(
            real_step_ns=real_step_ns, source_root=source_root, device_peaks=device_peaks
        )
    base = captured.baseline
    return AnalysisOptions(
        real_step_ns=base.step_ns,
        real_range=NsRange(base.low_ns, base.step_ns, base.high_ns),
        source_root=source_root,
        device_peaks=device_peaks,
    )


def capture_info(analysis: Analysis) -> CaptureInfo | None:
    """The part of the result that says how the recording was made; None for other recordings."""
    captured = analysis.trace.sidecar
    if captured is None:
        return None
    base = captured.baseline
    return CaptureInfo(
        step_source=captured.steps.source,
        step_label=captured.steps.label,
        steady=captured.steps.steady,
        baseline_steps=base.steps if base else 0,
        baseline_ns=NsRange(base.low_ns, base.step_ns, base.high_ns) if base else None,
        baseline_cpu_ns=base.process_cpu_ns if base else 0,
        windows=_windows(captured, analysis.step_ns),
        facts=captured.facts,
        problems=tuple(captured.problems),
    )


def _windows(captured: Sidecar, step_ns: int) -> tuple[WindowInfo, ...]:
    """What the windows cost. The last one is the recording itself, with steps of `step_ns`.

    The host's clock is asked only where no recording is left: it may issue a short window's steps
    long before the device has done them.
    """
    base = captured.baseline
    rows = []
    for index, window in enumerate(captured.windows, start=1):
        own = step_ns if index == len(captured.windows) else window.step_ns
        step = own or window.host_step_ns
        overhead = round(step / base.step_ns - 1.0, 4) if base and base.step_ns > 0 else None
        rows.append(WindowInfo(window.name, window.steps, step, overhead))
    return tuple(rows)


def capture_notes(info: CaptureInfo | None) -> tuple[str, ...]:
    """How the step time was measured, what each window cost, and what went wrong."""
    if info is None:
        return ()
    notes = [f"{text[:1].upper()}{text[1:].rstrip('.')}." for text in info.problems]
    if info.baseline_ns is not None:
        windows = ", ".join(
            f"{window.name} window {100 * window.overhead:+.0f} %"
            for window in info.windows
            if window.overhead is not None
        )
        notes.insert(
            0,
            f"The step time is measured, without a profiler, over {info.baseline_steps:,} steps "
            f"marked by {info.step_label}. Against that, recorded steps took: "
            f"{windows or 'not known'}.",
        )
    return tuple(notes)


def with_worker_lines(analysis: Analysis, findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Add the hottest lines of the loader's worker processes to the findings about them."""
    captured = analysis.trace.sidecar
    if captured is None or not captured.lines.workers:
        return findings
    places = worker_places(captured.lines.workers, analysis.locator)
    return tuple(_with(finding, places) for finding in findings)


def worker_places(
    samples: list[Sampled], locator: Locator, *, top: int = 2
) -> tuple[Location, ...]:
    """The functions that the workers spend their time in, innermost first, at their hottest line.

    Samples count every frame of the program on the stack once, so outer functions have more of
    them; of functions with nearly the most, the one first seen innermost is the cause.
    """
    functions: dict[tuple[str, int, str], int] = {}
    for file, first, function, _, count in samples:
        key = (file, first, function)
        functions[key] = functions.get(key, 0) + count
    most = max(functions.values(), default=0)
    heavy = [key for key, count in functions.items() if count >= 0.5 * most]
    places = []
    for file, first, function in sorted(heavy, key=lambda key: functions[key])[:top]:
        line = hottest(samples, Frame(file, first, function))
        count = functions[file, first, function]
        places.append(locator.at(file, line or first, function, count, exact=line is not None))
    return tuple(places)


def with_compile_lines(analysis: Analysis, findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Put the lines and reasons that Dynamo gave to the findings about compilation."""
    captured = analysis.trace.sidecar
    events = captured.facts.get("compile_events") if captured else None
    if not isinstance(events, list):
        return findings
    changed = []
    for finding in findings:
        kind = _COMPILE_CODES.get(finding.code)
        rows = [e for e in events if isinstance(e, dict) and e.get("kind") == kind]
        explained = _explained(finding, rows, analysis.locator) if kind and rows else finding
        changed.append(explained)
    return tuple(changed)


def _explained(finding: Finding, rows: list[dict[str, Any]], locator: Locator) -> Finding:
    rows = sorted(rows, key=lambda row: -int(row.get("count", 0)))[:3]
    places = tuple(
        locator.at(
            str(row.get("file")),
            int(row.get("guard_line") or row.get("line") or 1),
            str(row.get("function") or "") or None,
            int(row.get("count", 1)),
            exact=row.get("kind") == "graph_break" or "guard_line" in row,
        )
        for row in rows
    )
    reasons = tuple(
        Evidence(f"reason at line {place.line}", str(row.get("reason")), "text")
        for row, place in zip(rows, places, strict=True)
        if row.get("reason")
    )
    return replace(_led_by(finding, places), evidence=finding.evidence + reasons)


def _with(finding: Finding, places: tuple[Location, ...]) -> Finding:
    return _led_by(finding, places) if finding.code in _WORKER_CODES else finding


def _led_by(finding: Finding, places: tuple[Location, ...]) -> Finding:
    """The finding with these places first, and each line once."""
    lines = {(place.file, place.line) for place in places}
    others = tuple(p for p in finding.locations if (p.file, p.line) not in lines)
    return replace(finding, locations=places + others)
