"""What-if for loops: all iterations become one call that works on all the data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.cost import kernel_costs
from kinetoscope.metrics.device_ops import DeviceOps, device_ops
from kinetoscope.metrics.intervals import Coverage, Intervals, clip, measure, subtract, union
from kinetoscope.metrics.loops import Loop
from kinetoscope.replay import Change
from kinetoscope.result import Gain, Location
from kinetoscope.rules._host_work import host_work
from kinetoscope.rules.cold import COLD_NS, with_cold_start
from kinetoscope.trace.kinds import RUNTIME_KINDS, Family, Kind
from kinetoscope.trace.op_names import short_name
from kinetoscope.trace.trace import IntArray

_RATE = 0.5
"""Share of the device's peak that the batched call reaches."""
_NEARLY_ALL = 0.9
"""From this share of the step on, what remains without the loop is less than the recording can
tell from profiling: the gain lies between the replay's and the number of iterations."""
_IDLE = 0.5
"""That holds only where the device waits for the host, and is not busier than this."""
_LARGE_NS = 50_000
"""A kernel this long fills the device by itself; batching it saves nothing."""
_MARGIN = (2.0, 1.2, 1.0)
"""Factor on what remains of the loop: iterations worth of host time, and device time."""
_CELL = (1.0, 1.2, 0.6)
"""Time of one step of a recurrent network inside a library call, at worst as a share of all of
the step's kernels, else of the longest of them."""
_CELL_GAP_NS = 1_000
"""At worst the library's kernels follow each other with this distance."""


@dataclass(frozen=True)
class Collapsed:
    """The device events of loops.

    Attributes:
        keep: positions (in `DeviceOps`) of the last iteration's events (the first one is slower).
        repeats: iterations of the loop that each belongs to.
        group: number of loop and direction (forward, backward) that each belongs to.
        cut: host time of all iterations but the last.
        drop: calls that vanish with it.
    """

    keep: IntArray
    repeats: IntArray
    group: IntArray
    cut: Intervals
    drop: IntArray


def host_time(loops: Sequence[Loop]) -> Intervals:
    """Host time from the first to the last operator of each loop."""
    return union(
        np.array([loop.starts[0] for loop in loops], dtype=np.int64),
        np.array([loop.end for loop in loops], dtype=np.int64),
    )


def host_share(analysis: Analysis, loops: Sequence[Loop]) -> float:
    """Host time of the loops as a share of the steady steps."""
    low, high = analysis.times.host_window
    return measure(clip(host_time(loops), low, high)) / max(high - low, 1)


def collapse_gain(analysis: Analysis, loops: Sequence[Loop], *, cell: bool = False) -> Gain:
    """Gain of doing each loop in one call; of a library's recurrent network with `cell`."""
    work = analysis.get(device_ops)
    found = _collapsed(analysis, work, loops)
    times = _cell_ns(work, found) if cell else _batched_ns(analysis, work, found)
    repeats = float(np.mean([loop.repeats for loop in loops]))
    rows = work.rows[found.keep]
    changes = [
        Change(
            host_cut=with_cold_start(subtract(found.cut, stays), cold),
            host_cut_factor=max(1.0 - (margin - 1.0) / max(repeats - 1.0, 1.0), 0.0),
            drop_calls=found.drop,
            durations=(rows, np.asarray(new, dtype=np.int64)),
        )
        for margin, new, cold, stays in zip(
            _MARGIN, times, (0, *COLD_NS), host_work(analysis), strict=True
        )
    ]
    gain = analysis.gain(*changes)
    busy = analysis.busy_per_step_ns / max(analysis.step_ns, 1)
    if cell or busy > _IDLE or host_share(analysis, loops) < _NEARLY_ALL:
        return gain
    low = min(gain.low, repeats)
    mid = (min(gain.mid, repeats) * (low * repeats) ** 0.5) ** 0.5
    return msgspec.structs.replace(
        gain, low=round(low, 3), mid=round(mid, 3), high=round(repeats, 3)
    )


def _collapsed(analysis: Analysis, work: DeviceOps, loops: Sequence[Loop]) -> Collapsed:
    tree, links = analysis.trace.tree, analysis.trace.links
    anchor = np.maximum(work.anchor, 0)
    which, iteration = _iteration(tree.thread[anchor], tree.start[anchor], loops)
    which = np.where(work.anchor >= 0, which, -1)
    last = np.array([loop.repeats - 1 for loop in loops], dtype=np.int64)
    keep = np.flatnonzero((which >= 0) & (iteration == last[which]))
    start = [loop.starts[0] for loop in loops] + [loop.end for loop in loops]
    end = [int(loop.starts[-1]) for loop in loops]
    end += [_end_with_tail(analysis, loop) for loop in loops]
    roots = np.unique(links.backward_root[links.backward_root >= 0])
    source = np.maximum(links.forward[roots], 0)
    owner, number = _iteration(tree.thread[source], tree.start[source], loops)
    leaves = (links.forward[roots] >= 0) & (owner >= 0) & (number < last[owner])
    gone = roots[leaves]
    cut = union(
        np.concatenate((np.array(start, dtype=np.int64), tree.start[gone])),
        np.concatenate((np.array(end, dtype=np.int64), _until_next(analysis, roots)[leaves])),
    )
    calls = analysis.rows(*RUNTIME_KINDS)
    at = analysis.trace.column("ts_ns")[calls]
    return Collapsed(
        keep=keep,
        repeats=np.array([loop.repeats for loop in loops], dtype=np.int64)[which[keep]],
        group=2 * which[keep] + work.backward[keep],
        cut=cut,
        drop=calls[Coverage(cut).between(at, at + 1) > 0],
    )


_ENGINE_GAP_NS = 50_000
"""Between two nodes the engine needs less than this; what takes longer is something else."""


def _until_next(analysis: Analysis, roots: IntArray) -> IntArray:
    """End of each backward node with the engine's own time before the next one of its thread."""
    tree = analysis.trace.tree
    end = tree.end[roots]
    if roots.size < 2:
        return end
    following = np.append(tree.start[roots[1:]], end[-1])
    same = np.append(tree.thread[roots[1:]] == tree.thread[roots[:-1]], False)
    near = same & (following >= end) & (following - end < _ENGINE_GAP_NS)
    return np.asarray(np.where(near, following, end), dtype=np.int64)


_JOINS = frozenset({"stack", "cat", "concat", "concatenate", "vstack", "hstack", "column_stack"})


_FREEING = 0.05
"""Part of the loop's time that freeing its results may take after the function's end."""


def _end_with_tail(analysis: Analysis, loop: Loop) -> int:
    """End of the loop with what only the loop makes necessary.

    That is joining the parts afterwards, and freeing them when the function ends: Python frees
    the local variables after the frame's end has been recorded.
    """
    tree, names = analysis.trace.tree, analysis.trace.names
    name_id = analysis.trace.column("name_id")
    last = int(np.searchsorted(tree.thread, loop.thread, side="right"))
    node, end = int(loop.nodes[-1]) + 1, loop.end
    while node < last and (tree.start[node] < end or tree.kind[node] != Kind.CPU_OP):
        node += 1
    if node < last and short_name(names[name_id[tree.rows[node]]]) in _JOINS:
        end = int(tree.end[node])
        while node < last and tree.start[node] < end:
            node += 1
    frame = _frame_around(analysis, loop)
    if frame >= 0 and (node >= last or tree.start[node] >= tree.end[frame]):
        end = max(end, int(tree.end[frame]))
        if node < last:
            most = end + int(_FREEING * (loop.end - loop.starts[0]))
            end = min(int(tree.start[node]), most)
    return end


def _iteration(
    thread: IntArray, start: IntArray, loops: Sequence[Loop]
) -> tuple[IntArray, IntArray]:
    """Loop and iteration that each moment of a thread lies in; -1: none."""
    which = np.full(start.size, -1, dtype=np.int64)
    number = np.zeros(start.size, dtype=np.int64)
    for index, loop in enumerate(loops):
        mine = (thread == loop.thread) & (start >= loop.starts[0]) & (start < loop.end)
        mine = np.flatnonzero(mine)
        which[mine] = index
        number[mine] = np.searchsorted(loop.starts, start[mine], side="right") - 1
    return which, number


def _batched_ns(
    analysis: Analysis, work: DeviceOps, found: Collapsed
) -> tuple[npt.NDArray[np.float64], ...]:
    """Time of the kernels that do all iterations at once, at worst, likely, at best."""
    return batched_ns(analysis, work, found.keep, found.repeats)


def batched_ns(
    analysis: Analysis, work: DeviceOps, keep: IntArray, times: IntArray
) -> tuple[npt.NDArray[np.float64], ...]:
    """Time of kernels that do the work of this many, at worst, likely, at best."""
    one, repeats = work.ns[keep].astype(np.float64), times.astype(np.float64)
    all_of_them = one * repeats
    guess = np.where(one > _LARGE_NS, all_of_them, np.maximum(one, 0.25 * all_of_them))
    peaks = analysis.peaks
    costs = analysis.get(kernel_costs)
    if peaks is not None and analysis.has("shapes") and keep.size and costs.rows.size:
        rows = work.rows[keep]
        at = np.minimum(np.searchsorted(costs.rows, rows), max(costs.rows.size - 1, 0))
        rate = _RATE * peaks.flop_rates()[costs.math[at]]
        compute = np.divide(costs.flop[at], rate, out=np.zeros(at.size), where=rate > 0)
        memory = costs.bytes[at] / peaks.achievable_bytes_per_ns
        # The weights of a product are read once, however many rows they are multiplied with.
        product = np.isin(work.family[keep], (Family.GEMM, Family.CONV))
        need = np.maximum(compute, np.where(product, 0.0, memory)) * repeats
        known = (costs.rows[at] == rows) & (costs.bytes[at] >= 0)
        guess = np.where(known, np.maximum(one, need), guess)
    mid = np.minimum(guess, all_of_them)
    return np.minimum(_MARGIN[0] * mid, all_of_them), mid, np.minimum(one, mid)


def _cell_ns(work: DeviceOps, found: Collapsed) -> tuple[npt.NDArray[np.float64], ...]:
    """Time of a library's recurrent network: its steps still follow one another.

    It is put on the first event of each loop and direction; the others of the kept iteration
    become empty kernels.
    """
    one = work.ns[found.keep].astype(np.float64)
    results = [np.minimum(one, 1_000.0) for _ in _CELL]
    for group in np.unique(found.group):
        mine = np.flatnonzero(found.group == group)
        longest, total = one[mine].max(), one[mine].sum()
        for new, share, base in zip(results, _CELL, (total, longest, longest), strict=True):
            new[mine[0]] = share * base * found.repeats[mine[0]]
        results[0][mine[0]] += _CELL_GAP_NS * mine.size * found.repeats[mine[0]]
    return tuple(results)


def loop_places(
    analysis: Analysis, loops: Sequence[Loop], calls: Sequence[str] = ()
) -> tuple[Location, ...]:
    """The functions with the loops, then those that the iterations call."""
    tree = analysis.trace.tree
    outer = np.array([_frame_around(analysis, loop) for loop in loops], dtype=np.int64)
    known = [k for k in np.flatnonzero(outer >= 0).tolist() if loops[k].nodes.size]
    none = np.empty(0, dtype=np.int64)
    nodes = np.concatenate([none, *(loops[k].nodes[: loops[k].body] for k in known)])
    frames = np.repeat(outer[known], [loops[k].nodes[: loops[k].body].size for k in known])
    first = analysis.locations(tree.rows[nodes], calls=calls, top=2, inside=frames)
    body = np.concatenate([loop.nodes[: loop.body] for loop in loops])
    inner = analysis.locations(tree.rows[body], calls=calls, top=2)
    seen = {(place.file, place.function) for place in first}
    return first + tuple(p for p in inner if (p.file, p.function) not in seen)


def _frame_around(analysis: Analysis, loop: Loop) -> int:
    """Innermost user frame in which the whole loop runs; -1: unknown."""
    tree = analysis.trace.tree
    frame = int(tree.user_frame[loop.nodes[0]])
    while frame >= 0 and tree.end[frame] < loop.end:
        parent = int(tree.parent[frame])
        frame = int(tree.user_frame[parent]) if parent >= 0 else -1
    return frame


def per_step(analysis: Analysis, loops: Sequence[Loop]) -> int:
    """Host time of the loops in one steady step, ns."""
    inside = clip(host_time(loops), *analysis.times.host_window)
    return measure(inside) // analysis.steps_on_host
