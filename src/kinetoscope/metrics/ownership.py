"""Gaps that something bigger than the innermost host event explains.

Two patterns own a whole gap. *Round trip*: the gap begins after a copy to the host and ends with
a copy of about the same size back. *Input*: the gap ends with a sizeable copy to the device, and
the host spent it on Python or on operators of the host, not on creating a tensor that the
device could have created itself.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kinetoscope.metrics.activity import Cause
from kinetoscope.metrics.budget import INPUT_LABEL, ROUNDTRIP_LABEL
from kinetoscope.metrics.idle import Gaps, IdlePieces
from kinetoscope.result.vocabulary import BudgetClass
from kinetoscope.trace.kinds import CopyKind, Kind
from kinetoscope.trace.links import rows_of
from kinetoscope.trace.op_names import short_name
from kinetoscope.trace.trace import IntArray, Trace

LARGE_COPY_BYTES = 64 * 1024
"""Smaller copies are constants, not data, unless long work went before them."""
SMALL_INPUT_BYTES = 1024
"""The least that counts as data after long work: 128 token ids."""
LONG_WORK_NS = 1_000_000
"""Host work before a small copy that is longer than this has made what the copy carries."""
COPY_OPS = frozenset(("to", "_to_copy", "copy_"))
"""Operators whose purpose is a copy; others (`cat`, `_foreach_*`) send lists of arguments."""

TO_DEVICE = (CopyKind.H2D_PAGEABLE, CopyKind.H2D_PINNED, CopyKind.H2D_UNKNOWN)
TO_HOST = (CopyKind.D2H_PAGEABLE, CopyKind.D2H_PINNED, CopyKind.D2H_UNKNOWN)

FACTORIES = frozenset(
    "randn rand zeros ones empty full arange normal_ uniform_ fill_ zero_ randint randperm eye "
    "linspace bernoulli_ random_ exponential_".split()
)
_FACTORY_SHARE = 0.5


def round_trips(trace: Trace) -> list[tuple[int, int]]:
    """Pairs (copy to the host, copy back) of rows: about the same size, in sequence.

    The sizes agree within a factor of 2, or of 8 (another type, a mask) when one call of one
    function makes both copies.

    Nothing else may have copied to the device in between, and the copy back must have been
    launched after the first one ended: the host held the data. Both belong to one step, without
    a loader in between: a result that is fetched before the next batch is sent is no round trip.
    """
    rows = rows_of(trace, Kind.COPY)
    size, kind = trace.column("bytes")[rows], trace.column("copy_kind")[rows]
    ts, dur = trace.column("ts_ns"), trace.column("dur_ns")
    launch = trace.links.launch
    loader = ts[rows_of(trace, Kind.LOADER)]
    pairs, pending = [], -1
    for row, nbytes, direction in zip(rows, size, kind, strict=True):
        if nbytes < LARGE_COPY_BYTES:
            continue
        if direction in TO_HOST:
            pending = int(row)
        elif direction in TO_DEVICE and pending >= 0:
            before = int(trace.column("bytes")[pending])
            issued = ts[launch[row]] if launch[row] >= 0 else ts[row]
            fetched = int(ts[pending] + dur[pending])
            most = 2 if max(nbytes, before) <= 2 * min(nbytes, before) else 8
            alike = max(nbytes, before) <= most * min(nbytes, before)
            alike = alike and (most == 2 or _same_call(trace, pending, int(row)))
            if alike and _within_a_step(trace, fetched, int(issued), loader):
                pairs.append((pending, int(row)))
            pending = -1
    return pairs


def _same_call(trace: Trace, first: int, second: int) -> bool:
    """Does one call of one function of the program make both copies?"""
    node = trace.links.node[[first, second]]
    if node.min() < 0:
        return False
    frame = trace.tree.user_frame[node]
    return bool(frame[0] >= 0 and frame[0] == frame[1])


def _within_a_step(trace: Trace, low: int, high: int, loader: IntArray) -> bool:
    """Are two moments in order, in one step, and without a loader between them?"""
    if high < low:
        return False
    if np.any((loader >= low) & (loader < high)):
        return False
    step = trace.steps.of(np.array([low, high]))
    return trace.steps.count < 2 or bool(step[0] == step[1])


def owned_gaps(trace: Trace, gaps: Gaps, pieces: IdlePieces) -> dict[int, tuple[BudgetClass, str]]:
    """Budget class and label of each gap with an owner, by gap index."""
    owner: dict[int, tuple[BudgetClass, str]] = {}
    fed = np.flatnonzero(_ends_with_input(trace, gaps))
    if not fed.size:
        return owner
    back = {second for _, second in round_trips(trace)}
    prepared = _prepared(trace, pieces, gaps.start.size)
    for i in fed.tolist():
        if int(gaps.event[i]) in back:
            owner[i] = "memory", ROUNDTRIP_LABEL
        elif prepared[i]:
            owner[i] = "data_loading", INPUT_LABEL
    return owner


def _ends_with_input(trace: Trace, gaps: Gaps) -> npt.NDArray[np.bool_]:
    event = np.maximum(gaps.event, 0)
    copy = np.isin(trace.column("copy_kind")[event], TO_DEVICE)
    size = trace.column("bytes")[event]
    op = trace.links.op[event]
    name = trace.column("name_id")[np.maximum(op, 0)]
    asked = (op < 0) | copy_op_names(trace)[name]
    long = (gaps.end - gaps.start >= LONG_WORK_NS) & (size >= SMALL_INPUT_BYTES) & asked
    return np.asarray((gaps.event >= 0) & copy & ((size >= LARGE_COPY_BYTES) | long))


def copy_op_names(trace: Trace) -> npt.NDArray[np.bool_]:
    """Which names of the pool are operators that exist to copy; index with `name_id`."""
    return np.array([short_name(name) in COPY_OPS for name in (*trace.names, "")], dtype=bool)


def _prepared(trace: Trace, pieces: IdlePieces, count: int) -> npt.NDArray[np.bool_]:
    """In which gaps was the host busy with data, rather than launching or making constants?"""
    causes = (Cause.PYTHON, Cause.OP, Cause.NOTHING, Cause.ANNOTATION, Cause.COPY)
    work = np.isin(pieces.cause, causes)
    made = work & _by_factory(trace, pieces.row)
    total, worked, constant = (
        np.bincount(pieces.gap[which], weights=pieces.ns[which], minlength=count)
        for which in (slice(None), work, made)
    )
    data = (worked >= 0.5 * total) & (constant < _FACTORY_SHARE * np.maximum(worked, 1))
    return np.asarray(data & (np.bincount(pieces.gap, minlength=count) > 0))


def _by_factory(trace: Trace, rows: IntArray) -> npt.NDArray[np.bool_]:
    """Which events are operators that make a tensor from nothing, or parts of one."""
    flags = np.array([short_name(name) in FACTORIES for name in (*trace.names, "")], dtype=bool)
    known = np.maximum(rows, 0)
    op = trace.links.op[known]
    name = trace.column("name_id")[np.where(op >= 0, op, known)]
    return np.asarray(flags[name] & (rows >= 0))


def roundtrip_rows(trace: Trace) -> IntArray:
    """All copies that take part in a round trip."""
    return np.array(sorted({row for pair in round_trips(trace) for row in pair}), dtype=np.int64)
