"""Gaps that something bigger than the innermost host event explains.

Two patterns own a whole gap. *Round trip*: the gap begins after a copy to the host and ends with
a copy of about the same size back. *Input*: the gap ends with a sizeable copy to the device, and
the host spent it on Python or on operators of the host, not on creating a tensor that the
device could have created itself.
"""

from __future__ import annotations

import numpy as np

from kinetoscope.metrics.activity import Cause
from kinetoscope.metrics.budget import INPUT_LABEL, ROUNDTRIP_LABEL
from kinetoscope.metrics.idle import Gaps, IdlePieces
from kinetoscope.result.vocabulary import BudgetClass
from kinetoscope.trace.kinds import CopyKind, Kind
from kinetoscope.trace.links import rows_of
from kinetoscope.trace.op_names import short_name
from kinetoscope.trace.trace import IntArray, Trace

LARGE_COPY_BYTES = 64 * 1024
"""Smaller copies are constants, not data."""

TO_DEVICE = (CopyKind.H2D_PAGEABLE, CopyKind.H2D_PINNED, CopyKind.H2D_UNKNOWN)
TO_HOST = (CopyKind.D2H_PAGEABLE, CopyKind.D2H_PINNED, CopyKind.D2H_UNKNOWN)

FACTORIES = frozenset(
    "randn rand zeros ones empty full arange normal_ uniform_ fill_ zero_ randint randperm eye "
    "linspace bernoulli_ random_ exponential_".split()
)
_FACTORY_SHARE = 0.5


def round_trips(trace: Trace) -> list[tuple[int, int]]:
    """Pairs (copy to the host, copy back) of rows: same size within a factor of 2, in sequence.

    Nothing else may have copied to the device in between, and the copy back must have been
    launched after the first one ended: the host held the data. Both belong to one step, without
    a loader in between: a result that is fetched before the next batch is sent is no round trip.
    """
    rows = rows_of(trace, Kind.COPY)
    size, kind = trace.column("bytes")[rows], trace.column("copy_kind")[rows]
    ts, dur = trace.column("ts_ns"), trace.column("dur_ns")
    launch = trace.links.launch
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
            if 0.5 <= nbytes / before <= 2 and _within_a_step(trace, fetched, int(issued)):
                pairs.append((pending, int(row)))
            pending = -1
    return pairs


def _within_a_step(trace: Trace, low: int, high: int) -> bool:
    """Are two moments in order, in one step, and without a loader between them?"""
    if high < low:
        return False
    loader = trace.column("ts_ns")[rows_of(trace, Kind.LOADER)]
    if np.any((loader >= low) & (loader < high)):
        return False
    step = trace.steps.of(np.array([low, high]))
    return trace.steps.count < 2 or bool(step[0] == step[1])


def owned_gaps(
    trace: Trace, gaps: Gaps, pieces: IdlePieces
) -> dict[int, tuple[BudgetClass, str]]:
    """Budget class and label of each gap with an owner, by gap index."""
    owner: dict[int, tuple[BudgetClass, str]] = {}
    back = {second for _, second in round_trips(trace)}
    for i in np.flatnonzero(_ends_with_input(trace, gaps)):
        event = int(gaps.event[i])
        if event in back:
            owner[int(i)] = "memory", ROUNDTRIP_LABEL
        elif _is_preparation(trace, pieces, int(i)):
            owner[int(i)] = "data_loading", INPUT_LABEL
    return owner


def _ends_with_input(trace: Trace, gaps: Gaps) -> np.ndarray:  # type: ignore[type-arg]
    event = np.maximum(gaps.event, 0)
    copy = np.isin(trace.column("copy_kind")[event], TO_DEVICE)
    large = trace.column("bytes")[event] >= LARGE_COPY_BYTES
    return (gaps.event >= 0) & copy & large


def _is_preparation(trace: Trace, pieces: IdlePieces, gap: int) -> bool:
    """Was the host busy with data, rather than launching or making constants?"""
    low = int(np.searchsorted(pieces.start, _gap_start(pieces, gap), side="left"))
    mine = np.flatnonzero(pieces.gap[low:] == gap) + low
    if mine.size == 0:
        return False
    cause, length, row = pieces.cause[mine], pieces.ns[mine], pieces.row[mine]
    work = np.isin(cause, (Cause.PYTHON, Cause.OP, Cause.NOTHING, Cause.ANNOTATION, Cause.COPY))
    made = work & np.array([_is_factory(trace, int(r)) for r in row], dtype=bool)
    total = int(length.sum())
    return bool(
        length[work].sum() >= 0.5 * total
        and length[made].sum() < _FACTORY_SHARE * max(length[work].sum(), 1)
    )


def _gap_start(pieces: IdlePieces, gap: int) -> int:
    mine = pieces.gap == gap
    return int(pieces.start[mine].min()) if mine.any() else 0


def _is_factory(trace: Trace, row: int) -> bool:
    if row < 0:
        return False
    op = int(trace.links.op[row])
    name = trace.names[trace.column("name_id")[op if op >= 0 else row]]
    return short_name(name) in FACTORIES


def roundtrip_rows(trace: Trace) -> IntArray:
    """All copies that take part in a round trip."""
    return np.array(sorted({row for pair in round_trips(trace) for row in pair}), dtype=np.int64)
