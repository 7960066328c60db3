"""Where the step goes: a budget by class whose lines sum to the step.

The device's timeline is cut into compute, exposed communication, exposed copies and idle time;
idle time that the host caused is cut further by what the host was doing. A host-only recording
is cut by what the main thread was doing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kinetoscope.metrics.activity import Activity, Cause
from kinetoscope.metrics.comm import cpu_collective_ranges
from kinetoscope.metrics.device import DeviceActivity
from kinetoscope.metrics.idle import LONGEST_LATENCY_NS, SHORT_GAP_NS, Gaps, IdlePieces
from kinetoscope.metrics.intervals import (
    Intervals,
    clip,
    intersect,
    measure,
    overlaps,
    subtract,
    union,
)
from kinetoscope.metrics.step_time import StepTimes
from kinetoscope.result.vocabulary import BudgetClass
from kinetoscope.trace.frames import is_generated_file
from kinetoscope.trace.kinds import CopyKind, Family, Kind
from kinetoscope.trace.links import rows_of
from kinetoscope.trace.op_names import op_families
from kinetoscope.trace.trace import IntArray, Trace


@dataclass(frozen=True)
class Line:
    """One line of the budget over the whole window.

    Attributes:
        host: True for idle time that the host caused: profiling inflates it.
    """

    class_: BudgetClass
    label: str
    ns: int
    host: bool = False


UNSEEN_LABEL = "host code that was not recorded"

#: What idle time means, by what the host was doing.
IDLE_LINES: dict[Cause, tuple[BudgetClass, str]] = {
    Cause.LOADER: ("data_loading", "waiting for the DataLoader"),
    Cause.COMPILE: ("framework", "compiling"),
    Cause.CHECKPOINT: ("framework", "writing a checkpoint"),
    Cause.GC: ("framework", "Python garbage collection"),
    Cause.COLLECTIVE: ("communication", "host inside collective calls"),
    Cause.SYNC: ("framework", "returning from synchronisation"),
    Cause.ALLOC: ("memory", "allocating device memory"),
    Cause.COPY: ("memory", "host inside copy calls"),
    Cause.LAUNCH: ("framework", "launching kernels"),
    Cause.OP: ("framework", "operators on the host"),
    Cause.PYTHON: ("framework", "Python code"),
    Cause.ANNOTATION: ("framework", UNSEEN_LABEL),
    Cause.NOTHING: ("framework", UNSEEN_LABEL),
    Cause.WAIT: ("framework", "host waiting (lock, queue, sleep)"),
    Cause.AUTOGRAD: ("framework", "autograd engine"),
}
BANDWIDTH_LABEL = "kernels limited by memory bandwidth"
ARITHMETIC_LABEL = "matrix products, convolutions, attention"
HOST_BANDWIDTH_LABEL = "operators limited by memory bandwidth"
HOST_WORK_LABELS = (ARITHMETIC_LABEL, HOST_BANDWIDTH_LABEL)
HOST_COLLECTIVE_LABEL = "collectives on the processor, or waiting in them"
INPUT_LABEL = "preparing the input on the host"
ROUNDTRIP_LABEL = "device-host round trip"

#: Kernels that a device does at the speed of its arithmetic; the others at that of its memory.
COMPUTE_FAMILIES = (Family.GEMM, Family.CONV, Family.ATTENTION, Family.RNN, Family.FFT)


def device_lines(
    trace: Trace,
    device: DeviceActivity,
    times: StepTimes,
    compute_share: float,
) -> list[Line]:
    """Lines for the time in which the device works.

    Args:
        trace: the recording.
        device: its busiest device.
        times: the step window.
        compute_share: part of the compute time whose kernels are limited by arithmetic.
    """
    inside = device.within(*times.window)
    rows = rows_of(trace, Kind.COPY)
    rows = rows[trace.column("device")[rows] == inside.device]
    start = trace.column("ts_ns")[rows]
    end = start + trace.column("dur_ns")[rows]
    return work_lines(trace, inside, compute_share, copies=(rows, (start, end)))


def work_lines(
    trace: Trace,
    inside: DeviceActivity,
    compute_share: float,
    *,
    copies: tuple[IntArray, Intervals],
) -> list[Line]:
    """The same for activity at hand: recorded, or replayed at other times.

    Args:
        trace: the recording.
        inside: activity of the device in the window.
        compute_share: part of the compute time whose kernels are limited by arithmetic.
        copies: rows of the copies, with the start and the end of each.
    """
    compute = measure(inside.compute)
    arithmetic = int(compute * compute_share)
    return [
        Line("compute", ARITHMETIC_LABEL, arithmetic),
        Line("memory", BANDWIDTH_LABEL, compute - arithmetic),
        Line("communication", "communication that nothing hides", measure(inside.exposed_comm)),
        *_copy_lines(trace, *copies, exposed=inside.exposed_memcpy),
    ]


def family_compute_share(trace: Trace, times: StepTimes) -> float:
    """Share of kernel time in families limited by arithmetic; what to use without shapes."""
    rows = rows_of(trace, Kind.KERNEL)
    ts = trace.column("ts_ns")[rows]
    rows = rows[(ts >= times.window[0]) & (ts < times.window[1])]
    dur = trace.column("dur_ns")[rows]
    total = int(dur.sum())
    if total == 0:
        return 0.0
    return float(dur[by_arithmetic(trace, rows)].sum() / total)


def by_arithmetic(trace: Trace, kernels: IntArray) -> npt.NDArray[np.bool_]:
    """Which kernels are of a family that is limited by arithmetic."""
    return np.isin(trace.column("family")[kernels], COMPUTE_FAMILIES)


_TO_DEVICE = (CopyKind.H2D_PAGEABLE, CopyKind.H2D_PINNED, CopyKind.H2D_UNKNOWN)
_TO_HOST = (CopyKind.D2H_PAGEABLE, CopyKind.D2H_PINNED, CopyKind.D2H_UNKNOWN)


def _copy_lines(
    trace: Trace, rows: IntArray, extent: Intervals, *, exposed: Intervals
) -> list[Line]:
    """Exposed copies by direction; time in which two directions run counts for the first."""
    start, end = extent
    copy_kind = trace.column("copy_kind")[rows]
    loader = bool(rows_of(trace, Kind.LOADER).size)
    h2d: BudgetClass = "data_loading" if loader else "memory"
    groups: list[tuple[BudgetClass, str, npt.NDArray[np.bool_]]] = [
        (h2d, "copies from host to device", np.isin(copy_kind, _TO_DEVICE)),
        ("memory", "copies from device to host", np.isin(copy_kind, _TO_HOST)),
    ]
    lines = []
    for class_, label, mine in groups:
        part = union(start[mine], end[mine])
        found = overlaps(exposed, part)
        lines.append(Line(class_, label, int((found.end - found.start).sum())))
        exposed = subtract(exposed, part)
    lines.append(Line("memory", "copies on the device", measure(exposed)))
    return lines


def idle_lines(
    gaps: Gaps,
    pieces: IdlePieces,
    owner: dict[int, tuple[BudgetClass, str]],
    weights: IntArray,
    blocked: npt.NDArray[np.bool_],
) -> list[Line]:
    """Lines for the time in which the device does nothing.

    Args:
        gaps: the idle gaps.
        pieces: their host-caused part.
        owner: gaps that something bigger explains (a round trip, the preparation of the input),
            by gap index.
        weights: length of each piece, ns.
        blocked: gaps in which the host was blocked too.
    """
    lines = []
    keys = list(dict.fromkeys(owner.values()))
    owner_of_gap = np.full(gaps.start.size, -1, dtype=np.int64)
    for gap, key in owner.items():
        owner_of_gap[gap] = keys.index(key)
    owned = owner_of_gap[pieces.gap] >= 0
    causes = pieces.cause
    for cause in np.unique(causes):
        mine = (causes == cause) & (~owned | np.isin(causes, (Cause.LOADER, Cause.COMPILE)))
        class_, label = IDLE_LINES[Cause(cause)]
        lines.append(Line(class_, label, int(weights[mine].sum()), host=True))
    rest = owned & ~np.isin(causes, (Cause.LOADER, Cause.COMPILE))
    for number, key in enumerate(keys):
        mine = rest & (owner_of_gap[pieces.gap] == number)
        lines.append(Line(key[0], key[1], int(weights[mine].sum()), host=True))
    return lines + _device_side_lines(gaps, blocked)


def _device_side_lines(gaps: Gaps, blocked: npt.NDArray[np.bool_]) -> list[Line]:
    """The part of the gaps for which the host is not to blame."""
    known = gaps.launch >= 0
    late = known & (gaps.host_end > gaps.start)
    rest = gaps.end - gaps.host_end
    short = known & ~late & (rest < SHORT_GAP_NS)
    latency = late & (rest < LONGEST_LATENCY_NS)
    waiting = known & ~latency & ~short
    unknown = ~known & (gaps.event >= 0)
    return [
        Line("framework", "launch latency", int(rest[latency].sum()), host=True),
        Line("framework", "between kernels", int(rest[short].sum())),
        Line("framework", "host and device both waiting", int(rest[waiting & blocked].sum())),
        Line(
            "unattributed",
            "device waiting, its work already launched",
            int(rest[waiting & ~blocked].sum()),
        ),
        Line("unattributed", "idle before work without a launch record", int(rest[unknown].sum())),
    ]


def host_lines(trace: Trace, activity: Activity, times: StepTimes) -> list[Line]:
    """Lines of a host-only recording: what the main thread did."""
    low, high = times.host_window
    thread = main_thread(trace)
    part = activity.of_thread(thread)
    start = np.clip(activity.start[part], low, high)
    end = np.clip(activity.end[part], low, high)
    length = np.maximum(end - start, 0)
    cause, row = activity.cause[part], activity.row[part]
    # Kernels that the compiler wrote for a processor leave no event but the frame that calls them.
    compiled = (cause == Cause.PYTHON) & _in_generated_code(trace, row)
    lines = []
    for value in np.unique(cause):
        if value in (Cause.OP, Cause.AUTOGRAD):
            continue
        class_, label = IDLE_LINES[Cause(value)]
        mine = (cause == value) & ~compiled
        lines.append(Line(class_, label, int(length[mine].sum()), host=True))
    lines.append(Line("memory", HOST_BANDWIDTH_LABEL, int(length[compiled].sum())))
    lines += _operator_lines(trace, row[cause == Cause.OP], length[cause == Cause.OP])
    lines += _backward_lines(trace, activity, times, thread)
    covered = sum(line.ns for line in lines)
    lines.append(Line("framework", UNSEEN_LABEL, max(high - low - covered, 0), True))
    return lines


def _in_generated_code(trace: Trace, rows: IntArray) -> npt.NDArray[np.bool_]:
    frames = trace.tree.frames.items()
    generated = [i for i, frame in frames if frame and is_generated_file(frame.file)]
    names = trace.column("name_id")[np.maximum(rows, 0)]
    return np.asarray((rows >= 0) & np.isin(names, generated))


def _operator_lines(trace: Trace, rows: IntArray, length: IntArray) -> list[Line]:
    family = op_families(trace)[trace.column("name_id")[rows]]
    heavy = np.isin(family, COMPUTE_FAMILIES)
    tiny = ~heavy & (trace.column("dur_ns")[rows] < 5000)
    return [
        Line("compute", ARITHMETIC_LABEL, int(length[heavy].sum())),
        Line("memory", HOST_BANDWIDTH_LABEL, int(length[~heavy & ~tiny].sum())),
        Line("framework", "small operators", int(length[tiny].sum()), host=True),
    ]


def _backward_lines(trace: Trace, activity: Activity, times: StepTimes, thread: int) -> list[Line]:
    """What the autograd threads did while the main thread waited in `backward()`."""
    low, high = times.host_window
    part = activity.of_thread(thread)
    waits = activity.cause[part] == Cause.AUTOGRAD
    windows = clip(union(activity.start[part][waits], activity.end[part][waits]), low, high)
    waiting = measure(windows)
    if waiting == 0:
        return []
    lines: list[Line] = []
    left = windows
    for other in _autograd_threads(trace, thread):
        piece = activity.of_thread(other)
        found = overlaps(left, (activity.start[piece], activity.end[piece]))
        length = found.end - found.start
        cause, row = activity.cause[piece][found.right], activity.row[piece][found.right]
        is_op = cause == Cause.OP
        lines += _operator_lines(trace, row[is_op], length[is_op])
        for value in np.unique(cause[~is_op]):
            class_, label = IDLE_LINES[Cause(value)]
            lines.append(Line(class_, label, int(length[cause == value].sum()), host=True))
        left = subtract(left, union(found.start, found.end))
    inside = clip(cpu_collective_ranges(trace), low, high)
    waited = intersect(left, inside)
    lines.append(Line("communication", HOST_COLLECTIVE_LABEL, measure(waited), host=True))
    left = subtract(left, inside)
    lines.append(Line("framework", "autograd engine", measure(left), host=True))
    return lines


def _autograd_threads(trace: Trace, main: int) -> list[int]:
    rows = rows_of(trace, Kind.CPU_OP)
    threads, counts = np.unique(trace.column("thread")[rows], return_counts=True)
    order = threads[np.argsort(-counts)]
    return [int(t) for t in order if t != main]


def main_thread(trace: Trace) -> int:
    """The thread that carries the steps, else the one with most operators, else 0."""
    if trace.steps.thread >= 0:
        return trace.steps.thread
    rows = rows_of(trace, Kind.CPU_OP)
    if rows.size == 0:
        rows = np.flatnonzero(trace.column("device") < 0)
    threads = trace.column("thread")[rows]
    return int(np.bincount(threads).argmax()) if threads.size else 0


def merged(lines: Iterable[Line]) -> list[Line]:
    """Lines with the same class and label added up, longest first, empty ones dropped."""
    total: dict[tuple[BudgetClass, str, bool], int] = {}
    for line in lines:
        key = line.class_, line.label, line.host
        total[key] = total.get(key, 0) + line.ns
    result = [Line(c, label, ns, host) for (c, label, host), ns in total.items() if ns > 0]
    return sorted(result, key=lambda line: -line.ns)
