"""Calls of compiled functions that run eagerly, and what compiling them saves.

Dynamo looks for a version on each call of a function that it compiled before, and marks the code
that it finds as a region, even where all of it is a call of a function that is left out. Functions
that it gave up at once, or was told to leave alone, are not looked up. So lookups without any
region are those of functions that reached the limit of compilations.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.chains import pointwise_chains
from kinetoscope.metrics.device_ops import Flags, device_ops
from kinetoscope.metrics.intervals import (
    Intervals,
    clip,
    measure,
    merge,
    points_in,
    subtract,
    union,
)
from kinetoscope.replay import Change
from kinetoscope.result import Gain
from kinetoscope.rules.framework._compiling import CompiledCalls, compiled_calls
from kinetoscope.trace.calltree import nearest
from kinetoscope.trace.compiled_frames import is_compiled_code
from kinetoscope.trace.kinds import Family, Kind
from kinetoscope.trace.op_names import op_families
from kinetoscope.trace.trace import IntArray

_CALL_NS = (300_000, 130_000, 60_000)
"""Host time of a compiled call with its guards and wrappers: much, likely, little. On a host whose
launches take 7 us a call with one kernel took 150 us under the profiler."""
_FUSED = (Family.ELEMENTWISE, Family.NORM, Family.SOFTMAX, Family.REDUCTION, Family.COPY)
"""Operators that become part of a compiler's own code."""
_LAUNCH_NS = 10_000
"""One launch from Inductor's wrapper code."""


@dataclass(frozen=True)
class Fallback:
    """Calls of compiled functions in the steady steps, none of which runs compiled code.

    Attributes:
        calls: all calls of the recording; `eager` says which of them these are.
        ops: rows of the outermost operators inside them, forward.
        framed: the end of each call was recorded, as the end of its Python frame.
    """

    calls: CompiledCalls
    eager: npt.NDArray[np.bool_]
    ops: IntArray
    framed: bool

    @property
    def count(self) -> int:
        """How many calls."""
        return int(self.eager.sum())


def fallback(analysis: Analysis) -> Fallback | None:
    """The eager calls; None where a compiler or compiled code ran, or nothing that it would fuse.

    Torch before 2.2 does not mark regions. Its compiled code is told by its kernels, and on a CPU
    by what it lacks: no compiler leaves pointwise operators as they are.
    """
    trace = analysis.trace
    calls = analysis.get(compiled_calls)
    if not calls.start.size or analysis.rows(Kind.COMPILE).size:
        return None
    if any(is_compiled_code(name) for name in trace.names):
        return None
    low, high = analysis.times.host_window
    eager = calls.eager & (calls.start >= low) & (calls.end <= high)
    ops = np.setdiff1d(analysis.in_steps(_outer_ops(analysis)), calls.lookup)
    thread = trace.column("thread")[ops].astype(np.int64)
    ops = ops[calls.inside(eager, thread, trace.column("ts_ns")[ops])]
    pointwise = op_families(trace)[trace.column("name_id")[ops]] == Family.ELEMENTWISE
    if not eager.any() or pointwise.sum() < eager.sum():
        return None
    return Fallback(calls, eager, ops, analysis.has("stacks"))


def _outer_ops(analysis: Analysis) -> IntArray:
    tree = analysis.trace.tree
    return np.sort(tree.rows[tree.outer_ops])


def stretches(analysis: Analysis, found: Fallback) -> Intervals:
    """Host time of the calls and of the backward passes of their operators."""
    own = union(found.calls.start[found.eager], found.calls.end[found.eager])
    whole = clip(merge(own, backward_of(analysis, found.ops)), *analysis.times.host_window)
    return subtract(whole, _libraries(analysis, found)) if analysis.device is None else whole


def backward_of(analysis: Analysis, ops: IntArray) -> Intervals:
    """Host time of the backward passes of these (outermost) operators."""
    tree, links = analysis.trace.tree, analysis.trace.links
    outer = np.zeros(tree.rows.size, dtype=bool)
    outer[tree.node_of[ops]] = True
    inside = nearest(outer, tree.parent)
    forward = links.forward
    root = np.unique(links.backward_root[(forward >= 0) & (inside[np.maximum(forward, 0)] >= 0)])
    return analysis.extent(tree.rows[root[root >= 0]])


def _libraries(analysis: Analysis, found: Fallback) -> Intervals:
    """Operators of a CPU whose work a compiler leaves to a library, or that nobody knows."""
    trace = analysis.trace
    families, name_id = op_families(trace), trace.column("name_id")
    rows = analysis.in_steps(analysis.rows(Kind.CPU_OP))
    rows = rows[~np.isin(families[name_id[rows]], (Family.NONE, *_FUSED))]
    torchs = trace.name_flags(lambda name: name.startswith("aten::"))
    other = (families[name_id[found.ops]] == Family.NONE) & ~torchs[name_id[found.ops]]
    return analysis.extent(np.concatenate((rows, found.ops[other])))


def compiled_gain(analysis: Analysis, found: Fallback, cut: Intervals) -> Gain:
    """The calls at the usual price of compiled ones; their pointwise kernels fused.

    Where no frame says how long a call lasts, `cut` holds what follows it as well, and on a CPU
    what the profiler adds between operators: perhaps nothing of that is gained, and likely half.
    """
    chains = pointwise_chains(analysis.get(device_ops))
    work = chains.work
    at = analysis.trace.column("ts_ns")[np.maximum(work.call, 0)]
    mine = points_in(cut, at) & (work.call >= 0)
    member = chains.members[mine[chains.members]]
    number = chains.chain[mine[chains.members]]
    first = np.append(True, np.diff(number) > 0)[: member.size]
    dropped = work.call[member[~first]]
    launches = max(int(mine.sum()) - dropped.size, found.count)
    # Without shapes nothing says which kernels can be fused: at best all of a call are one.
    fewest = launches if analysis.has("shapes") else found.count
    much, likely, little = _CALL_NS
    known = found.framed and analysis.device is not None
    others = subtract(cut, analysis.extent(dropped))
    fused = Change(
        durations=(work.rows[member], np.where(first, chains.longest_ns()[number], 0)),
        drop_calls=dropped,
    )
    return analysis.gain(
        _cheaper(found, cut, much, launches) if known else Change(),
        _cheaper(found, others, likely, launches, fused=fused, part=1.0 if known else 0.5),
        _cheaper(found, others, little, fewest, fused=fused),
    )


def _cheaper(
    found: Fallback,
    cut: Intervals,
    price: int,
    launches: int,
    *,
    fused: Change | None = None,
    part: float = 1.0,
) -> Change:
    """The calls take this much each, and their launches."""
    factor = part * saved_by_compiling(measure(cut), found.count, launches, price)
    return replace(fused or Change(), host_cut=cut, host_cut_factor=factor)


def saved_by_compiling(
    eager_ns: float, calls: int, launches: int, price: int = _CALL_NS[1]
) -> float:
    """Part of this host time that goes away when it is this many compiled calls and launches.

    Args:
        eager_ns: host time of the eager calls.
        calls: how many calls that was.
        launches: kernels and copies that compiled code still launches in all of them.
        price: host time of a compiled call, ns.
    """
    return max(1.0 - (calls * price + launches * _LAUNCH_NS) / max(eager_ns, 1.0), 0.0)


def launched(analysis: Analysis, calls: CompiledCalls, which: Flags) -> IntArray:
    """Rows of the device events that these calls launched; else of their lookups."""
    work = analysis.get(device_ops)
    rows = work.rows[calls.inside(which, work.thread_of_call, work.at)]
    return rows if rows.size else calls.lookup[which]


def gain_by_others(
    analysis: Analysis,
    calls: CompiledCalls,
    which: tuple[Flags, Flags],
    left: tuple[float, float, float],
) -> Gain:
    """Each eager call takes, on host and device, about what the compiled ones take."""
    eager, ready = which
    trace = analysis.trace
    launch = analysis.rows(Kind.LAUNCH, Kind.COPY_CALL)
    thread, at = trace.column("thread")[launch].astype(np.int64), trace.column("ts_ns")[launch]
    work = analysis.get(device_ops)
    owner = calls.number(work.thread_of_call, work.at)
    ns = np.bincount(owner[owner >= 0], work.ns[owner >= 0], calls.start.size)
    longest = float(ns[ready].max(initial=0.0))
    mine = np.flatnonzero((owner >= 0) & eager[np.maximum(owner, 0)])
    first = mine[np.unique(owner[mine], return_index=True)[1]]
    spent = (calls.end - calls.start).astype(np.float64)
    slow, fast = max(float(np.median(spent[eager])), 1.0), float(np.median(spent[ready]))
    host = 1.5 * fast / slow, fast / slow, min(fast, _CALL_NS[2]) / slow
    drop = np.setdiff1d(launch[calls.inside(eager, thread, at)], work.call[first])
    cut = union(calls.start[eager], calls.end[eager])
    return analysis.gain(
        *(
            Change(
                host_cut=cut,
                host_cut_factor=max(1 - kept, 0.0),
                drop_calls=drop,
                durations=(
                    work.rows[first],
                    np.minimum(factor * longest, ns[owner[first]]).astype(np.int64),
                ),
            )
            for factor, kept in zip(left, host, strict=True)
        )
    )
