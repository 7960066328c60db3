"""What several rules about collectives need: host ranges around calls, costs, merging."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec
import numpy as np
import numpy.typing as npt

from kinetoscope.analysis import Analysis
from kinetoscope.analysis.gains import ReplayedGain, Triple
from kinetoscope.analysis.job import replayed_places, trusted, waits
from kinetoscope.metrics.comm import Collectives
from kinetoscope.metrics.intervals import Intervals, empty, measure, union
from kinetoscope.replay import Change
from kinetoscope.result import Gain
from kinetoscope.trace.calltree import nearest
from kinetoscope.trace.distributed_frames import (
    is_distributed_range,
    is_fsdp_range,
    is_gradient_hook,
)
from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.trace import IntArray

Flags = npt.NDArray[np.bool_]

_DEVICE_BOUND = 1.1
"""A step no longer than this many times its device work is paced by the device."""

_NOTHING = np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class ExposedComm:
    """Exposed communication of the step window.

    Attributes:
        stretches: what counts: the transfer alone when the other ranks tell waiting apart,
            else all of it.
        share: of the step, 0..1.
        overlap: part of the communication (transfer alone, if known) hidden by kernels.
        separated: whether waiting for peers has been taken out.
        ns: per step.
    """

    stretches: Intervals
    share: float
    overlap: float
    separated: bool
    ns: int


def exposed_comm(analysis: Analysis) -> ExposedComm:
    """Exposed communication that is this job's own cost, as far as the recordings can tell."""
    device = analysis.device
    if device is None:
        return ExposedComm(empty(), 0.0, 1.0, False, 0)
    inside = device.within(*analysis.times.window)
    stretches, comm = inside.exposed_comm, measure(inside.comm)
    separated = bool(analysis.peers) and trusted(analysis)
    if separated:
        found = waits(analysis)
        # Without a counterpart a kernel may have waited: it counts for the transfer here.
        stretches = union(
            np.concatenate((found.transfer[0], found.unknown[0])),
            np.concatenate((found.transfer[1], found.unknown[1])),
        )
        comm -= found.waiting_ns
    total = measure(stretches)
    return ExposedComm(
        stretches=stretches,
        share=total / (analysis.step_ns * analysis.steps),
        overlap=1.0 - total / comm if comm > 0 else 1.0,
        separated=separated and complete(analysis),
        ns=total // analysis.steps,
    )


def complete(analysis: Analysis) -> bool:
    """Are all members of the process groups among the given ranks?"""
    flags = analysis.matches.complete
    return bool(flags.size) and bool(flags.mean() > 0.9)


def intrinsic_ns(analysis: Analysis) -> IntArray:
    """Cost of each collective of this rank without waiting.

    The shortest of the ranks where the others are known, else the shortest of the collectives
    with the same message on this rank: its best case still may hold some waiting.
    """
    comm = analysis.comm
    best: IntArray = comm.duration.copy()
    for number in np.unique(comm.message).tolist():
        same = comm.message == number
        if comm.messages[number].recorded:
            best[same] = best[same].min()
    if analysis.peers and trusted(analysis):
        matches, mine = analysis.matches, analysis.place
        here = matches.present[mine]
        at = matches.index[mine, here]
        best[at] = np.minimum(best[at], matches.intrinsic[here])
    return best


def in_steady_steps(analysis: Analysis) -> IntArray:
    """Positions of the collectives that were launched in the steady steps."""
    comm = analysis.comm
    launch = analysis.trace.links.launch[comm.row]
    at = np.where(launch >= 0, analysis.trace.column("ts_ns")[np.maximum(launch, 0)], -1)
    if not comm.on_device:
        at = comm.start
    low, high = analysis.times.host_window
    return np.flatnonzero((at >= low) & (at < high))


Changes = Callable[[Analysis], Triple]
"""The cautious, likely and best change of a rank."""


def on_all_ranks(analysis: Analysis, change_of: Changes) -> ReplayedGain:
    """Gain of a change that every rank makes, with the ranks replayed together if possible."""
    if analysis.what_if.job is None:
        return analysis.gain(*change_of(analysis))
    places = replayed_places(analysis)
    return analysis.what_if.gain_of({p: change_of(analysis.ranks[p]) for p in places})


def comm_gain(
    analysis: Analysis,
    low: Change,
    mid: Change,
    high: Change,
    *,
    saved_ns: tuple[int, int],
    others: Changes | None = None,
) -> Gain:
    """Gain of a change to communication: the replay, and a bound where the device sets the pace.

    Whether kernels of the next step wait for a collective shows only when the host was ahead.
    In a recording that profiling made host-bound the replay misses such waits and with them the
    gain; if the program is (or may be) device-bound without the profiler, the step shortens by
    what no longer is exposed.

    Args:
        analysis: the rank.
        low: the change at its most cautious.
        mid: at its most likely.
        high: at its best.
        saved_ns: exposed time per step that goes away, likely and at best.
        others: gives the same for another rank; None where only the transfers change, which the
            ranks share.
    """
    if others is None:
        replayed = analysis.what_if.gain_of({analysis.place: (low, mid, high)})
    else:
        replayed = on_all_ranks(analysis, others)
    if analysis.device is None:
        return replayed
    own = analysis.busy_per_step_ns
    if analysis.peers:
        own -= waits(analysis).waiting_ns // analysis.steps
    likely, most = (float(own / max(own - min(ns, own), 0.2 * own, 1)) for ns in saved_ns)
    if analysis.step_time.mid <= _DEVICE_BOUND * own:
        middle = float(max(replayed.mid, likely))
    elif analysis.what_if.unprofiled.low <= _DEVICE_BOUND * own:
        middle = max(replayed.mid, float(np.sqrt(replayed.mid * likely)))
    else:
        return replayed
    top = float(max(replayed.high, most, middle))
    return msgspec.structs.replace(replayed, mid=round(middle, 3), high=round(top, 3))


def call_nodes(analysis: Analysis, positions: IntArray) -> IntArray:
    """Outermost frame or range of torch.distributed around the launch of each collective."""
    tree, row = analysis.trace.tree, analysis.comm.row[positions]
    node = analysis.trace.links.node[row]
    distributed = analysis.trace.name_flags(is_distributed_range)[
        analysis.trace.column("name_id")[tree.rows]
    ] | (tree.kind == Kind.HOST_COLLECTIVE)
    top: IntArray = node.copy()
    current = node.copy()
    while True:
        alive = np.flatnonzero(current >= 0)
        if alive.size == 0:
            return top
        here = current[alive]
        hit = distributed[here]
        top[alive[hit]] = here[hit]
        current[alive] = tree.parent[here]
        # The user's own frame and modules end the call.
        ends = (tree.kind[here] == Kind.MODULE) | (tree.user_frame[here] == here)
        current[alive[ends]] = -1


def calls_extent(analysis: Analysis, positions: IntArray) -> Intervals:
    """Host time inside the calls of these collectives."""
    nodes = call_nodes(analysis, positions)
    nodes = nodes[nodes >= 0]
    tree = analysis.trace.tree
    return union(tree.start[nodes], tree.end[nodes]) if nodes.size else empty()


def hooks_extent(analysis: Analysis, positions: IntArray) -> Intervals:
    """Host time in the gradient hooks that sent these collectives: bucket upkeep and the call."""
    tree = analysis.trace.tree
    flags = analysis.trace.name_flags(is_gradient_hook)[analysis.trace.column("name_id")[tree.rows]]
    node = analysis.trace.links.node[analysis.comm.row[positions]]
    around = nearest(flags, tree.parent)
    hook = np.where(node >= 0, around[np.maximum(node, 0)], -1)
    hook = np.unique(hook[hook >= 0])
    return union(tree.start[hook], tree.end[hook]) if hook.size else empty()


def launches_of(analysis: Analysis, rows: IntArray) -> IntArray:
    """Rows of the calls that launched these device events, as the replay knows them."""
    launch = analysis.trace.links.launch[rows]
    launch = launch[launch >= 0]
    tree = analysis.trace.tree
    node = tree.node_of[launch]
    parent = np.where(node >= 0, tree.parent[node], -1)
    nested = (parent >= 0) & np.isin(
        tree.kind[np.maximum(parent, 0)], (Kind.LAUNCH, Kind.RUNTIME, Kind.GRAPH_LAUNCH)
    )
    return np.unique(np.where(nested, tree.rows[np.maximum(parent, 0)], launch))


def fsdp_nodes(analysis: Analysis) -> IntArray:
    """Outermost ranges of FSDP's own work on the host: hooks, all-gathers, resharding.

    Ranges around a module's forward hold the user's work too and do not count.
    """
    tree = analysis.trace.tree
    if not tree.rows.size:
        return _NOTHING
    flagged = analysis.trace.name_flags(is_fsdp_range)[analysis.trace.column("name_id")[tree.rows]]
    flagged &= ~_around_modules(analysis)
    above = np.where(tree.parent >= 0, nearest(flagged, tree.parent)[tree.parent], -1)
    return np.flatnonzero(flagged & (above < 0))


def _around_modules(analysis: Analysis) -> Flags:
    """Which nodes have a module's call somewhere inside."""
    tree = analysis.trace.tree
    result = np.zeros(tree.rows.size, dtype=bool)
    current = tree.parent[tree.kind == Kind.MODULE]
    while current.size:
        current = np.unique(current[current >= 0])
        current = current[~result[current]]
        result[current] = True
        current = tree.parent[current]
    return result


def merged(analysis: Analysis, positions: IntArray, buckets: int, *, hidden: float) -> Change:
    """Send these collectives as a few per step instead of one by one.

    Args:
        analysis: the rank.
        positions: the collectives, all steps.
        buckets: how many remain of each step's.
        hidden: part of the remaining transfer that kernels hide, 0..1.
    """
    comm = analysis.comm
    cost = intrinsic_ns(analysis)
    latency = int(cost[positions].min()) if positions.size else 0
    keep = kept(analysis, positions, buckets)
    drop = np.setdiff1d(positions, keep)
    transfer = _bucket_sums(positions, np.maximum(cost[positions] - latency, 0), keep) + latency
    new = ((1.0 - hidden) * transfer).astype(np.int64)
    change = Change(
        host_cut=calls_extent(analysis, drop), drop_calls=launches_of(analysis, comm.row[drop])
    )
    if waiting_known(analysis):
        return replace(change, transfers=(comm.row[keep], np.maximum(new, 1000)))
    # Waiting for the other ranks does not go away: it moves to the calls that remain.
    waiting = _bucket_sums(positions, comm.duration[positions] - cost[positions], keep)
    return replace(change, durations=(comm.row[keep], np.maximum(new + waiting, 1000)))


def waiting_known(analysis: Analysis) -> bool:
    """Do the other ranks' recordings tell transfer from waiting?"""
    return bool(analysis.peers) and analysis.comm.on_device and trusted(analysis)


def kept(analysis: Analysis, positions: IntArray, buckets: int) -> IntArray:
    """Of each step's collectives the last of each bucket."""
    step = _step_of(analysis, positions)
    result = []
    for number in np.unique(step).tolist():
        mine = positions[step == number]
        chosen = np.linspace(0, mine.size, min(buckets, mine.size) + 1)[1:].astype(np.int64) - 1
        result.append(mine[np.unique(chosen)])
    return np.concatenate(result) if result else _NOTHING


def _step_of(analysis: Analysis, positions: IntArray) -> IntArray:
    row = analysis.comm.row[positions]
    launch = analysis.trace.links.launch[row]
    at = analysis.trace.column("ts_ns")[np.where(launch >= 0, launch, row)]
    return analysis.trace.steps.of(at)


def _bucket_sums(positions: IntArray, values: IntArray, keep: IntArray) -> IntArray:
    """Sum of the values of each bucket: of the collectives up to and including a kept one."""
    order = np.argsort(positions)
    total = np.concatenate(([0], np.cumsum(values[order])))
    upto = total[np.searchsorted(positions[order], keep, side="right")]
    return np.diff(np.concatenate(([0], upto)))


def per_step(analysis: Analysis, positions: IntArray) -> int:
    """How many of these collectives a step has."""
    return round(positions.size / analysis.steps_on_host)


def group_text(comm: Collectives, positions: IntArray) -> str:
    """The ranks that take part: `2 ranks`."""
    sizes = {comm.messages[i].group_size for i in np.unique(comm.message[positions]).tolist()}
    size = max(sizes, default=0)
    return f"{size} ranks" if size else "the ranks"
