"""Shared by the rules about steps that the host cannot launch fast enough."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.activity import Cause
from kinetoscope.metrics.intervals import Intervals, intersect, measure, merge, subtract, union
from kinetoscope.metrics.ownership import owned_gaps
from kinetoscope.metrics.passes import passes_per_step
from kinetoscope.metrics.updates import update_time
from kinetoscope.metrics.waits import Wait
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Gain, Location
from kinetoscope.result.finding import Severity
from kinetoscope.rules.framework._python import torchs_own
from kinetoscope.rules.framework._waiting import avoidable
from kinetoscope.trace.calltree import nearest
from kinetoscope.trace.compiled_frames import compiled_region
from kinetoscope.trace.frames import is_graph_call
from kinetoscope.trace.kinds import DEVICE_WORK, Kind
from kinetoscope.trace.trace import IntArray, Trace

_LAUNCH_CAUSES = (
    Cause.OP,
    Cause.LAUNCH,
    Cause.COPY,
    Cause.PYTHON,
    Cause.ANNOTATION,
    Cause.NOTHING,
    Cause.AUTOGRAD,
)

#: Time between two nodes of a replayed graph: 0.3 to 1 µs inside graphs of an H200, 1.5 µs where
#: the dependencies between them branch.
NODE_GAP_NS = (1500, 700, 400)
_GRAPH_CALL_NS = (40_000, 20_000, 10_000)
"""What replaying a graph and copying its inputs costs the host."""


@dataclass(frozen=True)
class LaunchBound:
    """A step whose device waits for launches.

    Attributes:
        idle: idle time of the device in which the host was launching.
        share: that as a share of the step as recorded.
        launches: rows of the launches in the steady steps.
        events: device events that they started.
        per_step: number of these events a step.
        kernel_ns: median length of a kernel.
        ending: launches that ended a gap, and how long the device had waited for each.
    """

    idle: Intervals
    share: float
    launches: IntArray
    events: IntArray
    per_step: float
    kernel_ns: int
    ending: tuple[IntArray, IntArray]


def launch_bound(analysis: Analysis, *, min_share: float, min_launches: int) -> LaunchBound | None:
    """The facts when launching explains most of the device's idle time; None when it does not."""
    if analysis.device is None:
        return None
    pieces = analysis.pieces
    owned = np.array(sorted(owned_gaps(analysis.trace, analysis.gaps, pieces)), dtype=np.int64)
    mine = np.isin(pieces.cause, _LAUNCH_CAUSES) & ~np.isin(pieces.gap, owned)
    idle = intersect(union(pieces.start[mine], pieces.end[mine]), analysis.host_time.launching)
    span = max(analysis.window[1] - analysis.window[0], 1)
    share = measure(idle) / span
    caused = int(pieces.ns.sum())
    if share < min_share or measure(idle) < 0.5 * caused:
        return None
    launches, events = _launched(analysis)
    per_step = events.size / analysis.steps_on_host
    if per_step < min_launches:
        return None
    kernels = events[analysis.trace.column("kind")[events] == Kind.KERNEL]
    if kernels.size == 0 or _replayed(analysis, kernels) > 0.5:
        return None
    dur = analysis.trace.column("dur_ns")[kernels]
    return LaunchBound(
        idle, share, launches, events, per_step, int(np.median(dur)), _ending(analysis)
    )


def _launched(analysis: Analysis) -> tuple[IntArray, IntArray]:
    """Launches inside the steady steps, and their device events."""
    trace = analysis.trace
    events = analysis.rows(*DEVICE_WORK)
    launch = trace.links.launch[events]
    ts = trace.column("ts_ns")[np.maximum(launch, 0)]
    low, high = analysis.times.host_window
    inside = (launch >= 0) & (ts >= low) & (ts < high)
    return np.unique(launch[inside]).astype(np.int64), events[inside]


def _replayed(analysis: Analysis, kernels: IntArray) -> float:
    """Share of the kernels that a captured graph launched."""
    launch = analysis.trace.links.launch[kernels]
    return float((analysis.trace.column("kind")[launch] == Kind.GRAPH_LAUNCH).mean())


def _ending(analysis: Analysis) -> tuple[IntArray, IntArray]:
    gaps = analysis.gaps
    late = (gaps.launch >= 0) & (gaps.host_end > gaps.start)
    return gaps.launch[late], (gaps.host_end - gaps.start)[late]


_COMPILED_CALL_NS = (250_000, 150_000, 80_000)
"""The same through `torch.compile`: guards, wrappers and the choice among the recorded graphs are
Python. On a slow host a call that replays a graph took 270 µs of unprofiled time."""


def graph_changes(
    analysis: Analysis, bound: LaunchBound, *, compiled_calls: float = 0.0
) -> tuple[Change, Change, Change]:
    """The step replayed as captured graphs: at worst, likely, at best.

    With `compiled_calls`, as that many graphs a step which `torch.compile` replays; else as one.

    The device events follow each other at the pace of the graph; the host keeps what is neither
    launching nor torch's own. The cautious end keeps the optimizer's step out of the graph. A read
    by the host ends a graph, so each read costs one more call.
    """
    graphs = 1 + reads_per_step(analysis)
    calls = [
        own * graphs + through * compiled_calls
        for through, own in zip(_COMPILED_CALL_NS, _GRAPH_CALL_NS, strict=True)
    ]
    cut = analysis.host_time.launching
    kept = analysis.get(update_time)
    all_of_it = merge(cut, torchs_own(analysis))
    low, mid, high = (
        Change(
            host_cut=part,
            durations=_spaced(analysis, bound.events, gap),
            step_floor_ns=int(call + bound.per_step * gap),
        )
        for part, gap, call in zip(
            (subtract(cut, kept), all_of_it, all_of_it), NODE_GAP_NS, calls, strict=True
        )
    )
    return low, mid, high


def reads_per_step(analysis: Analysis) -> float:
    """Values and shapes that the host reads from the device in a step."""
    waits = avoidable(analysis, Wait.SCALAR, Wait.SHAPE)
    return np.unique(waits.op).size / analysis.steps_on_host


def graph_gain(analysis: Analysis, bound: LaunchBound, *, compiled_calls: float = 0.0) -> Gain:
    """Gain of replaying the step as captured graphs."""
    return analysis.gain(*graph_changes(analysis, bound, compiled_calls=compiled_calls))


def _spaced(analysis: Analysis, events: IntArray, gap: int) -> tuple[IntArray, IntArray]:
    return events, analysis.trace.column("dur_ns")[events].astype(np.int64) + gap


def most_severe(analysis: Analysis, bound: LaunchBound, gain: Gain) -> Severity:
    """Without a gain at the cautious end all of it may be the profiler's own cost."""
    if gain.low < _SURE_GAIN:
        return "medium"
    worst = analysis.speedup(graph_changes(analysis, bound)[1], _WORST_OVERHEAD)
    return "critical" if worst >= _LEAST_AT_WORST else "medium"


def worth_a_word(gain: Gain) -> bool:
    """A small gain that the profiler's own cost may explain is none."""
    return gain.low >= _SURE_GAIN or gain.mid >= _UNSURE_GAIN


_WORST_OVERHEAD = 2.2
"""Profiling never cost more than this many times the model, on recordings whose unprofiled step
was known."""
_LEAST_AT_WORST = 1.1
_SURE_GAIN = 1.05
_UNSURE_GAIN = 1.15
"""Below this, a gain that vanishes at the cautious end did not come true on known programs."""


def has_compiled_code(trace: Trace) -> bool:
    """Does the recording contain any region of `torch.compile`?"""
    return bool(_compiled_names(trace).any())


def _compiled_names(trace: Trace) -> npt.NDArray[np.bool_]:
    return trace.name_flags(lambda n: is_graph_call(n) or compiled_region(n) is not None)


def compiled_share(analysis: Analysis, bound: LaunchBound) -> float:
    """Part of the launches that compiled code issued."""
    trace, tree = analysis.trace, analysis.trace.tree
    flags = _compiled_names(trace)
    if not flags.any():
        return 0.0
    region = nearest(flags[trace.column("name_id")[tree.rows]], tree.parent)
    node = tree.node_of[bound.launches]
    return float((region[node[node >= 0]] >= 0).mean()) if (node >= 0).any() else 0.0


def evidence(analysis: Analysis, bound: LaunchBound) -> tuple[Evidence, ...]:
    """The numbers of a launch-bound step."""
    return (
        Evidence("launches_per_step", round(bound.per_step, 1), "count"),
        Evidence("launch_idle_share", round(min(bound.share, 1.0), 4), "ratio", "derived"),
        Evidence("median_kernel", bound.kernel_ns, "ns"),
        Evidence("device_busy", analysis.busy_per_step_ns, "ns"),
    )


def places(analysis: Analysis, bound: LaunchBound) -> tuple[Location, ...]:
    """Where the late launches come from, and who calls the outermost modules."""
    rows, weights = bound.ending
    return with_caller(analysis, analysis.locations(rows, weights, top=3))


def with_caller(analysis: Analysis, inner: tuple[Location, ...]) -> tuple[Location, ...]:
    """These places, and the function that calls the outermost modules: where a graph begins."""
    outer = analysis.locations(_outermost_modules(analysis), top=1)
    known = {(place.file, place.function) for place in inner}
    return inner + tuple(p for p in outer if (p.file, p.function) not in known)


_SEVERAL_PASSES = 4
"""Passes in a step from which on the parts of a batch may be too small."""


def larger_parts(analysis: Analysis) -> str:
    """What a step that runs its model many times, forward and backward, can do besides."""
    passes = analysis.get(passes_per_step)
    if passes < _SEVERAL_PASSES:
        return ""
    return (
        f" The step runs the model {passes:,.0f} times, forward and backward: fewer, larger parts "
        "of the batch need fewer launches, as far as memory allows."
    )


def _outermost_modules(analysis: Analysis) -> IntArray:
    tree = analysis.trace.tree
    above = np.where(tree.parent >= 0, tree.module[np.maximum(tree.parent, 0)], -1)
    rows = tree.rows[(tree.kind == Kind.MODULE) & (above < 0)]
    return analysis.in_steps(rows)
