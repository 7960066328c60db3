"""Process and thread ids of events -> host threads, device lanes, lanes to leave out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kinetoscope.trace.trace import Thread

_SYNC_LANE_OFFSET = 1_000_000
"""Kineto (2026) puts a stream's synchronisations on lane `stream + 1000000`."""

_ALL_STREAMS = (-1, 2**32 - 1)
_MAX_DEVICE = 32_767


@dataclass(frozen=True)
class LaneKey:
    """What an event says about its place: pid and tid, `args.device`, `args.stream`."""

    pid: str
    tid: str
    device: int | None
    stream: int | None


def lane_key(raw: tuple[Any, Any, Any, Any]) -> LaneKey:
    """Normalise: the same id may be written as a number and as a string."""
    pid, tid, device, stream = raw
    return LaneKey(_id_text(pid), _id_text(tid), device, stream)


def _id_text(value: Any) -> str:
    return "" if value is None else str(value)


def is_housekeeping_lane(raw: tuple[Any, Any, Any, Any]) -> bool:
    """Lanes of the profiler's own spans; empty texts (not: missing ids) mark one as well."""
    return raw[0] in {"Spans", "Traces"} or raw[:2] == ("", "")


class Lanes:
    """Numbers threads and device lanes in order of appearance."""

    def __init__(self, metadata: Iterable[tuple[str, Any, Any, str]]) -> None:
        self._names: dict[tuple[str, str], str] = {}
        self._processes: dict[str, str] = {}
        for kind, pid, tid, text in metadata:
            if kind == "thread_name":
                self._names[(_id_text(pid), _id_text(tid))] = text
            elif kind == "process_name":
                self._processes[_id_text(pid)] = text
        self._numbers: dict[tuple[str, str, int, int], int] = {}
        self._devices: dict[str, int] = {}
        self.threads: list[Thread] = []

    def process_name(self, pid: str) -> str:
        """Name from the metadata events, else empty."""
        return self._processes.get(pid, "")

    def thread_name(self, key: LaneKey) -> str:
        """Name from the metadata events, else empty."""
        return self._names.get((key.pid, key.tid), "")

    def host(self, key: LaneKey) -> int:
        """Number of a host thread."""
        return self._number(key, -1, -1)

    def device(self, key: LaneKey) -> int:
        """Number of a device lane; its device and stream come from args, else from pid and tid."""
        stream = key.stream
        if stream is None or stream in _ALL_STREAMS:
            stream = self._stream_of_tid(key)
        return self._number(key, self._device_of(key), _fit(stream))

    def _number(self, key: LaneKey, device: int, stream: int) -> int:
        found = self._numbers.get((key.pid, key.tid, device, stream))
        if found is None:
            found = self._numbers[(key.pid, key.tid, device, stream)] = len(self.threads)
            name = self.thread_name(key)
            self.threads.append(Thread(key.pid, key.tid, name, device, stream))
        return found

    def _device_of(self, key: LaneKey) -> int:
        if key.device is not None and 0 <= key.device <= _MAX_DEVICE:
            return key.device
        if re.fullmatch(r"\d{1,5}", key.pid) and int(key.pid) <= _MAX_DEVICE:
            return int(key.pid)
        # A pid that is no index ("CUDA functions", an OS pid): devices in order of appearance.
        return self._devices.setdefault(key.pid, len(self._devices))

    def _stream_of_tid(self, key: LaneKey) -> int:
        match = re.search(r"^-\d+|\d+", key.tid)
        number = int(match.group()) if match else 0
        if number < 0 or number in _ALL_STREAMS:
            return -1
        if number >= _SYNC_LANE_OFFSET and "sync" in self.thread_name(key):
            number -= _SYNC_LANE_OFFSET
        return number


def _fit(stream: int) -> int:
    """Stream ids are handles in some back ends; the column holds 31 bits of them."""
    return stream if -1 <= stream < 2**31 else stream & 0x7FFF_FFFF


def vendor_of(
    names: Sequence[str], device_names: Sequence[str | None], keys: Iterable[str]
) -> str | None:
    """Who built the device, from its name, from header keys, else from runtime calls."""
    text = " ".join(name for name in device_names if name).lower()
    header = " ".join(keys).lower()
    for vendor, devices, marks, _ in _VENDORS:
        if any(word in text for word in devices) or any(mark in header for mark in marks):
            return vendor
    for vendor, _, _, calls in _VENDORS:
        if any(name.startswith(calls) for name in names):
            return vendor
    return None


_VENDORS: tuple[tuple[str, tuple[str, ...], tuple[str, ...], tuple[str, ...]], ...] = (
    ("amd", ("amd", "radeon", "instinct"), ("hip_", "roctracer"), ("hip",)),
    (
        "intel",
        ("intel", "arc(tm)", "data center gpu max"),
        ("xpu_",),
        ("zeCommand", "zeEvent", "zeMem", "urEnqueue", "urUSM", "urQueue"),
    ),
    (
        "nvidia",
        ("nvidia", "tesla", "geforce", "quadro", "titan", "a100", "h100"),
        ("cupti",),
        ("cuda", "cuLaunch"),
    ),
    ("huawei", ("ascend",), ("cann",), ("aclrt", "aclnn")),
)
