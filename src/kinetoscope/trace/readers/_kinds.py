"""Kind, family, copy kind and thread of each row, decided once for each distinct name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kinetoscope.trace import classify
from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.readers._columns import Merged
from kinetoscope.trace.readers._lanes import LaneKey, Lanes, is_housekeeping_lane, lane_key

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class RowKinds:
    """Per row: what it is and where it ran; and per thread: device, stream, process."""

    kind: Array
    family: Array
    copy_kind: Array
    thread: Array
    housekeeping: Array
    device_of_thread: Array
    stream_of_thread: Array
    process_of_thread: Array


# Names of the processes in traces whose events carry no category: the legacy autograd profiler's
# Chrome export, and the trace_view.json of Ascend's profiler.
_CATEGORY_OF_PROCESS = {
    "CPU functions": "cpu_op",
    "CUDA functions": "kernel",
    "Python": "cpu_op",
    "CANN": "cann_runtime",
    "Ascend Hardware": "kernel",
    "Communication": "gpu_user_annotation",
    "Overlap Analysis": "gpu_user_annotation",
    "HCCL": "gpu_user_annotation",
}


def decide(merged: Merged, lanes: Lanes) -> RowKinds:
    """Kinds and threads of all rows."""
    keys = [lane_key(raw) for raw in merged.lanes]
    category, lane = merged.values("cat"), merged.values("lane")
    places, place = _distinct(category, lane, len(keys))
    device_lanes = _device_lanes(places, merged.categories, keys)
    named, on_device, threads, hidden = [], [], [], []
    for category_id, lane_id in places:
        key = keys[lane_id]
        text = _category(merged.categories[category_id], key, lanes)
        device = classify.is_device_category(text)
        if device is None:
            device = (key.pid, key.tid) in device_lanes
        own = is_housekeeping_lane(merged.lanes[lane_id])
        hidden.append(own or classify.is_housekeeping_category(text))
        named.append(text)
        on_device.append(device)
        threads.append(-1 if hidden[-1] else lanes.device(key) if device else lanes.host(key))
    kinds = _kind_tables(merged, place, named, on_device)
    return RowKinds(
        *kinds[:3],
        thread=np.array(threads, dtype=np.int32)[place],
        housekeeping=np.array(hidden, dtype=bool)[place] | kinds[3],
        device_of_thread=np.array([t.device for t in lanes.threads] or [0], dtype=np.int16),
        stream_of_thread=np.array([t.stream for t in lanes.threads] or [0], dtype=np.int32),
        process_of_thread=_process_numbers(lanes),
    )


def _distinct(high: Array, low: Array, base: int) -> tuple[list[tuple[int, int]], Array]:
    """Distinct pairs of two small numbers, and for each row the index of its pair."""
    code = high.astype(np.int64) * base + low
    seen = np.zeros(int(code.max(initial=-1)) + 1, dtype=bool)
    seen[code] = True
    distinct = np.flatnonzero(seen)
    index = np.zeros(len(seen), dtype=np.int32)
    index[distinct] = np.arange(len(distinct), dtype=np.int32)
    return [divmod(c, base) for c in distinct.tolist()], index[code]


def _device_lanes(
    places: list[tuple[int, int]], categories: list[str], keys: list[LaneKey]
) -> set[tuple[str, str]]:
    found = set()
    for category_id, lane_id in places:
        if classify.is_device_category(categories[category_id]):
            found.add((keys[lane_id].pid, keys[lane_id].tid))
    return found


def _category(category: str, key: LaneKey, lanes: Lanes) -> str:
    if category:
        return category
    known = _CATEGORY_OF_PROCESS.get(key.pid)
    return known or _CATEGORY_OF_PROCESS.get(lanes.process_name(key.pid), "")


def _kind_tables(
    merged: Merged, place: Array, categories: list[str], on_device: list[bool]
) -> tuple[Array, Array, Array, Array]:
    pairs, pair = _distinct(place, merged.values("name"), max(len(merged.names), 1))
    kind = np.empty(len(pairs), dtype=np.uint8)
    family = np.zeros(len(pairs), dtype=np.uint8)
    copies = np.zeros(len(pairs), dtype=np.uint8)
    hidden = np.zeros(len(pairs), dtype=bool)
    for row, (place_id, name_id) in enumerate(pairs):
        name, category = merged.names[name_id], categories[place_id]
        found = classify.classify(category, name, on_device=on_device[place_id])
        kind[row] = found
        if found is Kind.KERNEL:
            family[row] = classify.family(found, name)
        elif found is Kind.COPY:
            copies[row] = classify.copy_kind(name)
        elif found in {Kind.OTHER, Kind.DEVICE_OTHER}:
            hidden[row] = classify.is_housekeeping(category, name)
    return kind[pair], family[pair], copies[pair], hidden[pair]


def _process_numbers(lanes: Lanes) -> Array:
    pids: dict[str, int] = {}
    numbers = [pids.setdefault(thread.pid, len(pids)) for thread in lanes.threads]
    return np.array(numbers or [0], dtype=np.int32)
