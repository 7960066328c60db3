"""What the decoders produced -> one `Trace`: pools merged, kinds decided, rows sorted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from kinetoscope.errors import EmptyTraceError
from kinetoscope.result.diagnosis import Damage
from kinetoscope.trace.readers import _columns, _filter, _lanes, _processes
from kinetoscope.trace.readers._header import make_header, parse_frame, whole
from kinetoscope.trace.readers._kinds import RowKinds, decide
from kinetoscope.trace.readers._part import Part
from kinetoscope.trace.readers._pieces import Frame
from kinetoscope.trace.readers._repair import LOSSY, Repairs, merge_all
from kinetoscope.trace.readers._times import NO_TIME
from kinetoscope.trace.trace import Trace

_EPOCH_NS = 10**17
"""Times above this (three years since 1970) are absolute and not relative to a base."""


def assemble(path: Path, parts: Sequence[Part], frame: Frame) -> Trace:
    """Build the trace of one file.

    Raises:
        EmptyTraceError: no event that took time is in the file.
    """
    repairs = merge_all([frame.repairs, *(part.repairs for part in parts)])
    values = parse_frame(frame.head, frame.tail, repairs)
    merged = _columns.Merged(parts)
    lanes = _lanes.Lanes(entry for part in parts for entry in part.metadata)
    kinds = decide(merged, lanes)
    order = _filter.ordered_rows(merged, kinds, repairs)
    if not len(order):
        raise _empty(path, repairs)
    shift, base = _base(merged.values("ts"), order, values)
    events = _event_table(merged, kinds, order, shift)
    names = tuple(merged.names)
    header = make_header(
        values,
        base_time_ns=base,
        vendor=_lanes.vendor_of(names, _device_names(values), values),
    )
    memory, failed = _memory_tables(parts, lanes, shift)
    return Trace(
        path=str(path),
        events=events,
        names=names,
        texts=tuple(text.decode("utf-8", "replace") for text in merged.texts),
        threads=tuple(lanes.threads),
        memory=memory,
        failed_requests=failed,
        header=header,
        damage=_damage(repairs),
    )


def _empty(path: Path, repairs: Repairs) -> EmptyTraceError:
    if "truncated" in repairs.counts or "truncated_gzip" in repairs.counts:
        return EmptyTraceError(
            f"{path} is cut off before its first event.",
            "The export was interrupted: record again and let the program end by itself.",
        )
    return EmptyTraceError(
        f"{path} holds no event that took time.",
        "Check that the profiler's schedule reached its active steps: step() must be called once "
        "an iteration, and the program must run for at least wait + warmup + active steps.",
    )


def _base(ts: npt.NDArray[Any], order: npt.NDArray[Any], values: dict[str, Any]) -> tuple[int, int]:
    """(what to subtract from the times, the absolute time of zero), both ns."""
    base = whole(values.get("baseTimeNanoseconds")) or 0
    first = int(ts[order[0]])
    if first < _EPOCH_NS:
        return 0, base
    start = first - first % 1_000_000_000
    return start, start


def _event_table(
    merged: _columns.Merged, kinds: RowKinds, order: npt.NDArray[Any], shift: int
) -> pl.DataFrame:
    ts = merged.take("ts", order)
    if shift:
        ts -= shift
    table: dict[str, pl.Series] = {"ts_ns": pl.Series(ts)}
    table["dur_ns"] = pl.Series(merged.take("dur", order))
    extra = merged.take("extra", order)
    kind, family = kinds.kind[order], kinds.family[order]
    _columns.mark_collectives(kind, family, extra, merged.texts)
    table["kind"] = pl.Series(kind)
    table["family"] = pl.Series(family)
    table["copy_kind"] = pl.Series(kinds.copy_kind[order])
    table["name_id"] = pl.Series(merged.take("name", order))
    thread = kinds.thread[order]
    table["thread"] = pl.Series(thread)
    table["device"] = pl.Series(kinds.device_of_thread[thread])
    table["stream"] = pl.Series(kinds.stream_of_thread[thread])
    corr = merged.take("corr", order)
    corr[corr <= 0] = -1
    _processes.separate(corr, ts, kind, thread, kinds.process_of_thread, kinds.device_of_thread)
    table["corr"] = pl.Series(corr)
    for name in ("ext_id", "seq", "py_id", "py_parent", "bytes"):
        table[name] = pl.Series(merged.take(name, order))
    shape, texts = merged.take("shape", order), merged.shape_table()
    for number, name in enumerate(("dims_id", "types_id", "strides_id", "concrete_id")):
        table[name] = pl.Series(texts[shape, number])
    table["launch_id"] = pl.Series(merged.take("launch", order))
    table["extra_id"] = pl.Series(extra)
    return pl.DataFrame(table)


def _memory_tables(
    parts: Sequence[Part], lanes: _lanes.Lanes, shift: int
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """What was taken and given back, and the requests that failed."""
    rows = np.concatenate([part.memory for part in parts])
    threads: list[int] = []
    for part in parts:
        numbers = {
            i: lanes.host(_lanes.lane_key(part.lanes[i])) for i in set(part.memory[:, 1].tolist())
        }
        threads.extend(numbers[i] for i in part.memory[:, 1].tolist())
    order = np.argsort(rows[:, 0], kind="stable")
    rows, thread = rows[order], np.array(threads, dtype=np.int32)[order]
    ts = np.where(rows[:, 0] == NO_TIME, -1, rows[:, 0] - shift)
    table = pl.DataFrame(
        {
            "ts_ns": pl.Series(ts),
            "thread": pl.Series(thread),
            "bytes": pl.Series(rows[:, 2]),
            "addr": pl.Series(rows[:, 3]),
            "device": pl.Series(rows[:, 4].astype(np.int16)),
            "allocated": pl.Series(rows[:, 5]),
            "reserved": pl.Series(rows[:, 6]),
        }
    )
    failed = pl.Series(rows[:, 7] == 1)
    return table.filter(~failed), table.filter(failed).drop("addr")


def _device_names(values: dict[str, Any]) -> list[str | None]:
    devices = values.get("deviceProperties")
    entries = devices if isinstance(devices, list) else []
    return [
        e.get("name") for e in entries if isinstance(e, dict) and isinstance(e.get("name"), str)
    ]


def _damage(repairs: Repairs) -> tuple[Damage, ...]:
    return tuple(
        Damage(kind, count, repairs.examples.get(kind, ""), lossy=kind in LOSSY)
        for kind, count in sorted(repairs.counts.items())
    )
