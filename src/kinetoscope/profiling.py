"""From a capture to a result: completes the recording, diagnoses it, writes what is asked for."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from kinetoscope.capture.outcome import Recording
from kinetoscope.errors import InputError, KinetoscopeError
from kinetoscope.result import Diagnosis

if TYPE_CHECKING:
    from kinetoscope.engine import Examined
    from kinetoscope.metrics.hardware import Peaks
    from kinetoscope.result.view import View

TRACE_SUFFIXES = (".trace.json.gz", ".pt.trace.json.gz", ".json.gz")
"""An output with one of these is the recording itself."""


class NothingRecordedError(KinetoscopeError):
    """The program ended before anything was recorded."""


@dataclass
class Captured:
    """The outcome of a capture.

    Attributes:
        trace: the completed recording; None when there is none.
        light: the light window's own recording, for people who want to look at it.
        problems: what went wrong or is missing.
    """

    trace: Path | None
    light: Path | None = None
    problems: list[str] = field(default_factory=list)


def complete(recording: Recording, say: Callable[[str], None]) -> Captured:
    """Put the facts into the recorded windows and return the one to diagnose."""
    packers = recording.recorder.packers
    facts = dict(recording.facts)
    lights = [window for window in facts["windows"] if window["name"] == "light"]
    light = _finished(packers.get("light"), {"version": 1, "windows": lights}, recording, say)
    if light is not None and "full" not in packers:
        return Captured(_light_only(light, facts), light, recording.problems)
    if light is not None:
        _add_light(facts, light)
    full = _finished(packers.get("full"), facts, recording, say)
    if full is not None:
        full = full.rename(full.with_name(full.name.replace(".full.json", ".json")))
    return Captured(full, light, recording.problems)


def _finished(
    packer: Any, facts: dict[str, Any], recording: Recording, say: Callable[[str], None]
) -> Path | None:
    if packer is None:
        return None
    try:
        path: Path = packer.finish(facts)
    except OSError as error:
        if packer.error is None:  # else it was said when it happened
            text = f"the trace could not be completed ({error.strerror}); it is used as it is"
            recording.problems.append(text)
            say(text)
        return packer.plain if packer.plain.exists() else None
    return path


def _light_only(light: Path, facts: dict[str, Any]) -> Path:
    """The program ended before the full window: the light one is all there is.

    Its file is complete already; the facts are appended to a copy of the events.
    """
    import gzip

    from kinetoscope.capture.files import KEY, Packer

    text = gzip.decompress(light.read_bytes())
    cut = text.rindex(f',\n"{KEY}":'.encode())
    plain = light.with_name("light-alone.json")
    plain.write_bytes(text[:cut] + b"\n}")
    return Packer(plain).finish(facts)


def _add_light(facts: dict[str, Any], light: Path) -> None:
    """Device times of a step from the light window, and both windows' step times."""
    from kinetoscope.analysis import Analysis, AnalysisOptions
    from kinetoscope.analysis.light import light_summary
    from kinetoscope.trace.readers import read

    try:
        trace = read(light)
    except InputError:
        return
    analysis = Analysis(trace, AnalysisOptions())
    facts["light"] = light_summary(analysis)
    for window in facts.get("windows", ()):
        if window["name"] == "light":
            window["step_ns"] = analysis.step_ns


def examine_capture(
    traces: Sequence[Path],
    names: dict[str, str],
    root: Path | None = None,
    *,
    device_peaks: Peaks | None = None,
) -> Examined:
    """Diagnose what a capture recorded.

    Args:
        traces: the recordings, one a rank.
        names: what the user knows each of them by: the files themselves are temporary.
        root: folder of the sources.
        device_peaks: of a device that is not known.

    Raises:
        InputError: the recording holds no events.
    """
    from kinetoscope.engine import DiagnoseOptions, examine

    options = DiagnoseOptions(source_root=root, device_peaks=device_peaks)
    found = examine(list(traces), options=options)
    return replace(found, diagnosis=_renamed(found.diagnosis, names))


def view_of(found: Examined) -> View:
    """What a page draws of the recording, which is gone soon."""
    from kinetoscope import viewdata

    return viewdata.build(found.lead, found.ranks, found.diagnosis.findings)


def is_trace_output(name: str) -> bool:
    """Does this output ask for the recording rather than for a result?"""
    return name.lower().endswith(TRACE_SUFFIXES)


def copy_trace(trace: Path, to: Path) -> None:
    """Write the recording where it was asked for, at once."""
    part = to.with_name(f".{to.name}.part")
    shutil.copyfile(trace, part)
    part.replace(to)


def _renamed(result: Diagnosis, names: dict[str, str]) -> Diagnosis:
    inputs = tuple(
        msgspec.structs.replace(info, path=names.get(info.path, info.path))
        for info in result.inputs
    )
    return msgspec.structs.replace(result, inputs=inputs)
