"""Python between the launches keeps the device waiting.

## What it finds
Long stretches of the step in which the launching thread runs Python and neither an operator nor a
launch, while the device is idle. Loaders, waits, compilers, checkpoints and the preparation of
the input are left to their own rules.

## Why it matters
Python runs on the thread that launches. While it sorts a list or walks over a dictionary, nothing
is queued for the device.

## How to fix it
Do the work on tensors (one `topk` or `index_copy_` instead of a loop over a list), do it once
instead of in each step, or move it to a thread or process that runs beside the step. What only
logs or prints belongs behind `if step % 100 == 0`.

## Limits
Recording Python frames costs about 0.7 µs a frame, so Python-heavy code looks up to six times
slower than it is; the prediction takes that off. Without stacks the code is not named. A stretch
that waits for a lock, a queue or a socket is named by its wait. Python of a training library
(Lightning, Transformers) around the steps is the library's: its call is no place to change.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.activity import Cause
from kinetoscope.metrics.intervals import (
    Coverage,
    Intervals,
    clip,
    intersect,
    measure,
    merge,
    subtract,
    union,
)
from kinetoscope.metrics.ownership import owned_gaps
from kinetoscope.metrics.stretches import launching_threads
from kinetoscope.metrics.updates import update_time
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix, Location
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.cold import COLD_NS, with_cold_start
from kinetoscope.rules.framework._library_python import library_python, of_library
from kinetoscope.rules.framework._python import MOSTLY, program_share
from kinetoscope.trace.frames import is_capture_mark
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import duration, percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


_REFERENCE = "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html"
_MOSTLY_WAITS = 0.5
"""From this part of the stretches on, the host is said to wait, not to run Python."""


class Thresholds(Options, frozen=True):
    """When Python is worth a word."""

    min_share: float = 0.03
    """Python in long stretches as a share of the step, profiling overhead taken off; RULES of
    thumb say 5 %, of the recorded step."""
    min_exposed: float = 0.3
    """Part of it in which the device is idle."""
    min_stretch_ns: int = 200_000
    """Shorter stretches are the Python of a model's `forward`, and FW501 counts them."""
    min_blank_ns: int = 1_500_000
    """The same without stacks, where the hand-over to the autograd threads and the profiler's
    own step (up to 1.3 ms in recordings of an H200) cannot be told from the program's code."""
    cautious: float = 0.8
    """Part of it that goes away at the cautious end: vectorised work is not free."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Find long stretches of Python, leave out what others own, replay without them."""
    if not analysis.has("stacks") and not (analysis.device and analysis.has("steps")):
        return
    long = _own(analysis, options)
    net = _net(analysis, long)
    per_step = min(net // analysis.steps_on_host, analysis.step_time.mid)
    if per_step < options.min_share * analysis.step_time.mid:
        return
    seen = clip(long, *analysis.window)
    pieces = union(analysis.pieces.start, analysis.pieces.end)
    exposed = measure(intersect(seen, pieces)) / max(measure(seen), 1)
    if analysis.device and exposed < options.min_exposed:
        return
    rows, weights = _python(analysis, long)
    library, own = library_python(analysis, rows, weights)
    places = analysis.locations(rows[own], weights[own]) if own.any() else ()
    name = library.name if library else _first(places)
    waits = _waiting_share(analysis, long)
    device = analysis.device is not None
    share = per_step / max(analysis.step_time.mid, 1)
    idle = (Evidence("device_idle", round(min(exposed, 1.0), 6), "ratio", "derived"),)
    yield Hit(
        message=_message(per_step, share, name, waits, device=device),
        evidence=(
            Evidence("python_time", per_step, "ns", "estimated"),
            Evidence("python_time_recorded", measure(long) // analysis.steps_on_host, "ns"),
            *(idle if device else ()),
            Evidence("stretches", int(long[0].size), "count"),
        ),
        locations=places,
        fix=of_library(library) if library else _fix(places, waits),
        gain=analysis.gain(
            Change(host_cut=long, host_cut_factor=options.cautious),
            *(Change(host_cut=with_cold_start(long, cold)) for cold in COLD_NS),
        ),
        confidence=0.7 if rows.size else 0.4,
        claims=long,
        at_most="critical" if rows.size else "medium",
    )


def _message(per_step: int, share: float, place: str | None, waits: float, *, device: bool) -> str:
    doing = "waits, outside any operator," if waits > _MOSTLY_WAITS else "runs Python"
    where = f" (most of it in `{place}`)" if place else ""
    what = doing if place or waits > _MOSTLY_WAITS else "runs code that was not recorded"
    between, meanwhile = ("launches", ", and the device waits") if device else ("operators", "")
    return (
        f"Between the {between} the host {what} for {duration(per_step)} of each step{where}, "
        f"{percent(min(share, 1.0))} of it{meanwhile}."
    )


def _fix(places: tuple[Location, ...], waits: float) -> Fix:
    name = places[0].function if places else None
    if name and waits > _MOSTLY_WAITS:
        return Fix(
            summary=f"Start what `{name}` waits for a step earlier, in the background, and only "
            "collect it in the step.",
            snippet="pending = pool.submit(prepare, next_batch)   # before this step's work\n"
            "...\nready = pending.result()   # after it",
            reference=_REFERENCE,
        )
    return Fix(
        summary=(
            f"Move {_work_of(name)} out of the step, onto tensors, or into a thread."
            if name
            else "Find out what runs there: record with with_stack=True. Then move it out of "
            "the step, onto tensors, or into a thread."
        ),
        snippet="pool = concurrent.futures.ThreadPoolExecutor(1)\n"
        "pending = pool.submit(bookkeeping, batch)   # runs beside the step",
        reference=_REFERENCE,
    )


def _work_of(name: str) -> str:
    """What nobody can call by a name, as the top level of a script, is where it is."""
    return "that work" if name.startswith("<") else f"the work of `{name}`"


def _first(places: tuple[Location, ...]) -> str | None:
    return places[0].function if places else None


def _own(analysis: Analysis, options: Thresholds) -> Intervals:
    """Long stretches of the steady steps that are the program's: not torch's, not another rule's.

    Torch's own Python (the optimizer's loops over parameters, hooks of FSDP, the profiler's step)
    belongs to launching; what `kinetoscope run` does at a step is nobody's.
    """
    time, trace = analysis.host_time, analysis.trace
    stacks = analysis.has("stacks")
    enough = time.long_most >= (options.min_stretch_ns if stacks else options.min_blank_ns)
    long = time.long[0][enough], time.long[1][enough]
    if stacks:
        own = program_share(analysis, long) >= MOSTLY
        long = long[0][own], long[1][own]
    gaps = analysis.gaps
    owned = np.array(sorted(owned_gaps(trace, gaps, analysis.pieces)), dtype=np.int64)
    others = union(gaps.start[owned], gaps.end[owned])
    optimizer = analysis.get(update_time)
    capture = analysis.extent(analysis.matching(is_capture_mark))
    return clip(subtract(long, merge(others, optimizer, capture)), *analysis.times.host_window)


def _net(analysis: Analysis, stretches: Intervals) -> int:
    """Their length without the modelled profiling overhead."""
    time = analysis.host_time
    ratio = time.long_net / np.maximum(time.long[1] - time.long[0], 1)
    kept = Coverage(stretches).between(*time.long)
    return int((kept * ratio).sum())


def _python(analysis: Analysis, stretches: Intervals) -> tuple[IntArray, IntArray]:
    """Rows of the Python inside the stretches, and how long each ran."""
    activity = analysis.activity
    mine = np.isin(activity.thread, launching_threads(analysis.trace))
    mine &= np.isin(activity.cause, (Cause.PYTHON, Cause.WAIT)) & (activity.row >= 0)
    start, end = activity.start[mine], activity.end[mine]
    inside = Coverage(stretches).between(start, end)
    hit = inside > 0
    return activity.row[mine][hit], inside[hit]


def _waiting_share(analysis: Analysis, stretches: Intervals) -> float:
    """Part of the stretches in which the thread only waits (lock, queue, sleep)."""
    activity = analysis.activity
    mine = np.isin(activity.thread, launching_threads(analysis.trace))
    mine &= activity.cause == Cause.WAIT
    waiting = union(activity.start[mine], activity.end[mine])
    return measure(intersect(waiting, stretches)) / max(measure(stretches), 1)


def _bookkeeping(t: TraceBuilder) -> None:
    for step in range(4):
        at = step * 10_000.0
        t.step(at, 10_000)
        t.python("train.py(10): step", at + 5, 9_990)
        t.kernel("gemm", at + 30, 2_000, launch_at=at + 10, op="aten::mm")
        t.python("train.py(40): count_words", at + 40, 9_900)


def _beside_the_device(t: TraceBuilder) -> None:
    for step in range(4):
        at = step * 10_000.0
        t.step(at, 10_000)
        t.python("train.py(10): step", at + 5, 9_990)
        t.kernel("gemm", at + 30, 9_970, launch_at=at + 10, op="aten::mm")
        t.python("train.py(40): count_words", at + 40, 9_900)


RULE = Rule(
    code="FW517",
    name="python-gap",
    class_="framework",
    summary="Python between the launches keeps the device waiting.",
    check=check,
    options=Thresholds(),
    evidence="TE",
    references=(_REFERENCE,),
    examples=(
        Example("8 ms of Python after 2 ms of device work", _bookkeeping, fires=True),
        Example("the same Python while the device is busy", _beside_the_device, fires=False),
    ),
)
