"""The collectives of one rank: what was sent, for whom, and how much of it nothing hides.

A communication kernel runs from the moment this rank arrives until the data are there, so its
length is transfer plus waiting for the others. One recording cannot tell the two apart;
`kinetoscope.metrics.ranks` can, with the recordings of the other ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from kinetoscope.metrics.device import device_activity
from kinetoscope.metrics.intervals import Coverage, Intervals, union
from kinetoscope.trace.calltree import nearest
from kinetoscope.trace.collective_names import collective_of, element_bytes
from kinetoscope.trace.distributed_frames import is_ddp_range, is_fsdp_range, is_gradient_hook
from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.links import rows_of
from kinetoscope.trace.trace import IntArray, Trace


@dataclass(frozen=True)
class Message:
    """What a collective carries; two calls with the same message are alike.

    Attributes:
        collective: `all_reduce`, ...; "" when unknown.
        dtype: c10 name of the element type; "" when not recorded.
        in_nelems, out_nelems: elements of this rank's input and output; -1: not recorded.
        group: what tells the process group: name and ranks as far as known, else "".
        group_size: ranks of the group; 0: not recorded.
        description: the group's description.
        recorded: False for a kernel without arguments, launched before the recording.
    """

    collective: str
    dtype: str = ""
    in_nelems: int = -1
    out_nelems: int = -1
    group: str = ""
    group_size: int = 0
    description: str = ""
    recorded: bool = True

    @property
    def bytes(self) -> int:
        """The message size S of M-14: the larger side of gather and scatter; 0 when unknown."""
        elements = self.out_nelems if self.collective == "all_gather" else self.in_nelems
        return max(elements, 0) * element_bytes(self.dtype)

    @property
    def bus_factor(self) -> float:
        """Bus traffic over message size (M-14): what each link carries."""
        n = self.group_size
        if n < 2:
            return 0.0
        if self.collective == "all_reduce":
            return 2 * (n - 1) / n
        if self.collective in ("all_gather", "reduce_scatter", "all_to_all"):
            return (n - 1) / n
        return 1.0

    def bus_bandwidth(self, duration_ns: float) -> float:
        """Bytes per second on the bus, comparable between collectives and group sizes."""
        return self.bytes * self.bus_factor / duration_ns * 1e9 if duration_ns > 0 else 0.0


Owner = npt.NDArray[np.int8]
OWNER_UNKNOWN, OWNER_DDP, OWNER_FSDP, OWNER_USER = range(4)


@dataclass(frozen=True)
class Collectives:
    """Collectives of one rank in time order; one entry each, ns on the rank's own clock.

    Attributes:
        row: event-table row: the kernel, or the host range of a collective on the CPU.
        start, end: of the kernel.
        message: index into `messages`.
        seq: sequence number within the group; -1: not recorded.
        exposed: part that no compute kernel of the same device hides.
        owner: who called: DDP's reducer, FSDP, the user's program (`OWNER_*`).
        messages: the distinct messages.
        on_device: False for collectives of the CPU (Gloo).
    """

    row: IntArray
    start: IntArray
    end: IntArray
    message: IntArray
    seq: IntArray
    exposed: IntArray
    owner: Owner
    messages: tuple[Message, ...]
    on_device: bool = True

    @property
    def duration(self) -> IntArray:
        """Length of each, ns."""
        return self.end - self.start

    @property
    def bytes(self) -> IntArray:
        """Message size of each; 0 when unknown."""
        sizes = np.array([m.bytes for m in self.messages], dtype=np.int64)
        return sizes[self.message] if self.message.size else self.message

    def is_a(self, *names: str) -> npt.NDArray[np.bool_]:
        """Which entries are one of these collectives."""
        flags = np.array([m.collective in names for m in self.messages], dtype=bool)
        return flags[self.message] if self.message.size else np.zeros(0, dtype=bool)


def collectives(trace: Trace) -> Collectives:
    """All communication kernels; without any, the host ranges of collectives on the CPU."""
    rows = rows_of(trace, Kind.COLLECTIVE)
    on_device = rows.size > 0
    if not on_device:
        rows = cpu_collectives(trace)
    start = trace.column("ts_ns")[rows]
    end = start + trace.column("dur_ns")[rows]
    message, messages, seq = _messages(trace, rows)
    return Collectives(
        row=rows,
        start=start,
        end=end,
        message=message,
        seq=seq,
        exposed=_exposed(trace, rows, start, end) if on_device else end - start,
        owner=_owners(trace, rows),
        messages=messages,
        on_device=on_device,
    )


def cpu_collectives(trace: Trace) -> IntArray:
    """Ranges in which a CPU backend works; `c10d::*` around them only hand the work over."""
    rows = rows_of(trace, Kind.HOST_COLLECTIVE)
    cpu = np.array([n.startswith(("gloo:", "mpi:", "ucc:")) for n in trace.names], dtype=bool)
    return rows[cpu[trace.column("name_id")[rows]]] if rows.size else rows


def cpu_collective_ranges(trace: Trace) -> Intervals:
    """Time in which a CPU backend (Gloo) works or waits for other ranks, on its own threads."""
    rows = cpu_collectives(trace)
    ts = trace.column("ts_ns")[rows]
    return union(ts, ts + trace.column("dur_ns")[rows])


def _messages(trace: Trace, rows: IntArray) -> tuple[IntArray, tuple[Message, ...], IntArray]:
    """Message and sequence number of each row; every distinct text is parsed once."""
    extra, name = trace.column("extra_id")[rows], trace.column("name_id")[rows]
    caller = _host_range(trace, rows)
    known: dict[tuple[int, int, int], tuple[Message, int]] = {}
    found: dict[Message, int] = {}
    message, seq = np.zeros(rows.size, dtype=np.int64), np.full(rows.size, -1, dtype=np.int64)
    for i, key in enumerate(zip(extra.tolist(), name.tolist(), caller.tolist(), strict=True)):
        if key not in known:
            known[key] = _parse(trace, *key)
        text, seq[i] = known[key]
        message[i] = found.setdefault(text, len(found))
    return message, tuple(found), seq


def _host_range(trace: Trace, rows: IntArray) -> IntArray:
    """Name id of the innermost host range of a collective around each launch; -1: none."""
    if not rows.size:
        return rows
    node = trace.links.node[rows]
    around = trace.tree.nearest_of(Kind.HOST_COLLECTIVE)
    at = np.where(node >= 0, around[np.maximum(node, 0)], -1) if around.size else node * 0 - 1
    names = trace.column("name_id")
    return np.where(at >= 0, names[trace.tree.rows[np.maximum(at, 0)]], -1) if around.size else at


def _parse(trace: Trace, extra: int, name: int, caller: int) -> tuple[Message, int]:
    args = _decode(trace.texts[extra]) if extra >= 0 else {}
    called = collective_of(trace.names[caller]) if caller >= 0 else ""
    # A barrier is an all-reduce of one element; only its host range says so.
    spelled = collective_of(str(args.get("Collective name", "")))
    collective = "barrier" if called == "barrier" else spelled or called
    ranks = str(args.get("Process Group Ranks", ""))
    # A long list is cut, but for all members in the same way.
    group = ranks if ranks not in ("", "[]") else ""
    return (
        Message(
            collective=collective or collective_of(trace.names[name]),
            dtype=str(args.get("dtype", "")),
            in_nelems=_number(args.get("In msg nelems"), -1),
            out_nelems=_number(args.get("Out msg nelems"), -1),
            group=f"{args.get('Process Group Name', '')} {group}".strip(),
            group_size=_number(args.get("Group size"), 0),
            description=str(args.get("Process Group Description", "")),
            recorded="In msg nelems" in args or caller >= 0,
        ),
        _number(args.get("Seq"), -1),
    )


def _decode(text: str) -> dict[str, object]:
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def _number(value: object, default: int) -> int:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return int(value)
    return int(value) if isinstance(value, str) and value.isdigit() else default


def _exposed(trace: Trace, rows: IntArray, start: IntArray, end: IntArray) -> IntArray:
    device = trace.column("device")[rows]
    result = end - start
    for activity in device_activity(trace):
        mine = device == activity.device
        result[mine] -= Coverage(activity.compute).between(start[mine], end[mine])
    return result


def _owners(trace: Trace, rows: IntArray) -> Owner:
    """Who called each collective, by the ranges and frames around its launch."""
    owner = np.full(rows.size, OWNER_UNKNOWN, dtype=np.int8)
    tree = trace.tree
    if not rows.size or not tree.rows.size:
        return owner
    node = trace.links.node[rows]
    names = trace.column("name_id")[tree.rows]

    def inside(test: Callable[[str], bool]) -> npt.NDArray[np.bool_]:
        flags = trace.name_flags(test)
        found = nearest(flags[names], tree.parent)
        return np.asarray(np.where(node >= 0, found[np.maximum(node, 0)], -1) >= 0)

    user = tree.user_frame[np.maximum(node, 0)]
    backward = trace.links.backward_root[np.maximum(node, 0)]
    owner[(node >= 0) & (user >= 0) & (backward < 0)] = OWNER_USER
    owner[inside(is_gradient_hook)] = OWNER_DDP
    owner[inside(is_ddp_range)] = OWNER_DDP
    owner[inside(is_fsdp_range)] = OWNER_FSDP
    return owner


def uses_ddp(trace: Trace) -> bool:
    """Does the recording show DistributedDataParallel at work?"""
    return any(is_ddp_range(name) for name in trace.names)


def uses_fsdp(trace: Trace) -> bool:
    """Does the recording show fully sharded data parallelism at work?"""
    return any(is_fsdp_range(name) for name in trace.names)
