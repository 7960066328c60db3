"""Tables of copies, synchronisations and collectives."""

from __future__ import annotations

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.analysis.job import trusted
from kinetoscope.metrics.waits import Wait
from kinetoscope.result.view import Cell, Table, TableColumn
from kinetoscope.trace.kinds import CopyKind, Kind
from kinetoscope.trace.links import rows_of
from kinetoscope.trace.trace import IntArray
from kinetoscope.viewdata.details import COPY_WORDS
from kinetoscope.viewdata.names import shorten

MOST_ROWS = 500

_PLACE = TableColumn(
    "from",
    "text",
    "Innermost function of the program around the call, and the "
    "first line of that function. Needs Python stacks.",
)
_WAITS = {
    Wait.OTHER: "inside a library",
    Wait.SCALAR: "a value is read on the host",
    Wait.SHAPE: "a size depends on data",
    Wait.EXPLICIT: "explicit synchronisation",
    Wait.COPY: "a result is copied to the host",
}


def _groups(*keys: IntArray) -> tuple[IntArray, IntArray]:
    """Group number of each entry, and the first entry of each group."""
    stacked = np.stack(keys, axis=1)
    _, first, position = np.unique(stacked, axis=0, return_index=True, return_inverse=True)
    return position.reshape(-1), first


def copies(analysis: Analysis) -> Table:
    """Copies by direction, operator and function."""
    trace = analysis.trace
    columns = (
        TableColumn("direction", "text", "Where the data went, and which kind of host memory."),
        TableColumn("by", "text", "Operator that asked for the copy."),
        _PLACE,
        TableColumn("calls", "count", "How often in a step, on average."),
        TableColumn("bytes", "bytes", "Data moved per step."),
        TableColumn("time", "ns", "Time of the copies on the device per step."),
        TableColumn("rate", "bytes_per_s", "Bytes by time: compare it with what the link can do."),
    )
    rows = analysis.in_window(rows_of(trace, Kind.COPY, Kind.MEMSET))
    if rows.size == 0:
        return Table(
            "copies", "Copies", columns, (), missing="No copy was recorded in the steady steps."
        )
    op = trace.links.op[rows]
    name = np.where(op >= 0, trace.column("name_id")[np.maximum(op, 0)], -1)
    frame = analysis.locator.frames(rows)
    place = (
        np.where(frame >= 0, trace.column("name_id")[trace.tree.rows[np.maximum(frame, 0)]], -1)
        if trace.tree.rows.size
        else np.full(rows.size, -1)
    )
    direction = trace.column("copy_kind")[rows].astype(np.int64)
    group, first = _groups(direction, name.astype(np.int64), place.astype(np.int64))
    calls = np.bincount(group)
    size = np.bincount(group, weights=np.maximum(trace.column("bytes")[rows], 0))
    time = np.bincount(group, weights=trace.column("dur_ns")[rows])
    found: list[tuple[Cell, ...]] = []
    for g in np.argsort(-time, kind="stable")[:MOST_ROWS]:
        i = first[g]
        found.append(
            (
                COPY_WORDS[CopyKind(int(direction[i]))],
                shorten(trace.names[name[i]], 120) if name[i] >= 0 else "",
                shorten(trace.names[place[i]], 160) if place[i] >= 0 else "",
                round(float(calls[g]) / analysis.steps, 2),
                int(size[g] / analysis.steps),
                int(time[g] / analysis.steps),
                float(size[g] / time[g] * 1e9) if time[g] else None,
            )
        )
    return Table("copies", "Copies", columns, tuple(found))


def synchronisations(analysis: Analysis) -> Table:
    """Calls in which the host waits for the device, by call, operator and function."""
    trace = analysis.trace
    columns = (
        TableColumn("call", "text", "Runtime call in which the host waits."),
        TableColumn("why", "text", "What made the host wait."),
        TableColumn("by", "text", "Operator that asked for it."),
        _PLACE,
        TableColumn("calls", "count", "How often in a step, on average."),
        TableColumn(
            "time",
            "ns",
            "Time in these calls per step. A wait is not a cause: much of it "
            "may be work of the device that would have to be awaited later.",
        ),
    )
    waits = analysis.waits
    ts = trace.column("ts_ns")[waits.call]
    low, high = analysis.times.host_window
    waits = waits.where((ts >= low) & (ts < high))
    if waits.call.size == 0:
        return Table(
            "syncs",
            "Synchronisations",
            columns,
            (),
            missing="The host did not wait for a device in the steady steps.",
        )
    names = trace.column("name_id").astype(np.int64)
    frame = analysis.locator.frames(waits.call)
    place = np.where(frame >= 0, names[trace.tree.rows[np.maximum(frame, 0)]], -1)
    group, first = _groups(names[waits.call], waits.reason.astype(np.int64), names[waits.op], place)
    calls = np.bincount(group)
    time = np.bincount(group, weights=trace.column("dur_ns")[waits.call])
    found: list[tuple[Cell, ...]] = []
    for g in np.argsort(-time, kind="stable")[:MOST_ROWS]:
        i = first[g]
        by = waits.op[i] if waits.op[i] != waits.call[i] else -1
        found.append(
            (
                trace.names[names[waits.call[i]]],
                _WAITS[Wait(int(waits.reason[i]))],
                shorten(trace.names[names[by]], 120) if by >= 0 else "",
                shorten(trace.names[place[i]], 160) if place[i] >= 0 else "",
                round(float(calls[g]) / analysis.steps_on_host, 2),
                int(time[g] / analysis.steps_on_host),
            )
        )
    return Table("syncs", "Synchronisations", columns, tuple(found))


def collectives_table(analysis: Analysis) -> Table:
    """Collectives of the leading rank by message."""
    columns = (
        TableColumn(
            "collective",
            "text",
            "Which collective; unknown when it was launched before the recording began.",
        ),
        TableColumn("type", "text", "Type of the elements."),
        TableColumn("group", "count", "Ranks of the process group."),
        TableColumn("bytes", "bytes", "Size of one message."),
        TableColumn("calls", "count", "How often in a step, on average."),
        TableColumn("time", "ns", "Time per step: transfer and waiting for other ranks."),
        TableColumn("exposed", "ns", "Part of that time in which no compute kernel ran."),
        TableColumn(
            "waiting",
            "ns",
            "Part spent waiting for a rank that came later: longer than "
            "on the rank that came last. Needs the recordings of the other ranks.",
        ),
        TableColumn(
            "bus rate",
            "bytes_per_s",
            "Traffic on each link by the time without waiting; "
            "comparable between collectives and group sizes.",
        ),
    )
    comm = analysis.comm
    if comm.row.size == 0:
        return Table(
            "collectives",
            "Collectives",
            columns,
            (),
            missing="No collective was "
            "recorded: one device, or communication outside torch.distributed.",
        )
    waiting = _waiting(analysis)
    low, high = analysis.window
    inside = (comm.start >= low) & (comm.start < high)
    found: list[tuple[Cell, ...]] = []
    steps = analysis.steps
    for number, message in enumerate(comm.messages):
        mine = np.flatnonzero(inside & (comm.message == number))
        if mine.size == 0:
            continue
        time = int(comm.duration[mine].sum())
        wait = int(waiting[mine].sum()) if waiting is not None else None
        net = (time - (wait or 0)) / mine.size
        found.append(
            (
                message.collective or "unknown",
                message.dtype,
                message.group_size or None,
                message.bytes or None,
                round(mine.size / steps, 2),
                time // steps,
                int(comm.exposed[mine].sum()) // steps,
                None if wait is None else wait // steps,
                message.bus_bandwidth(net) or None,
            )
        )
    found.sort(key=lambda row: -int(row[5] or 0))
    return Table("collectives", "Collectives", columns, tuple(found[:MOST_ROWS]))


def _waiting(analysis: Analysis) -> IntArray | None:
    """Waiting in each of the rank's collectives, ns; None without trusted peers."""
    if not analysis.peers or not trusted(analysis):
        return None
    matches, place = analysis.matches, analysis.place
    result = np.zeros(analysis.comm.row.size, dtype=np.int64)
    here = matches.present[place]
    result[matches.index[place, here]] = matches.waiting[place, here]
    return result
