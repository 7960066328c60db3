"""Writes genuine Kineto JSON event by event; the result goes through the real reader."""

from __future__ import annotations

import gzip
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinetoscope.testing._device import DeviceEvents

if TYPE_CHECKING:
    from typing_extensions import Self

    from kinetoscope.trace.trace import Trace

__all__ = ["TraceBuilder"]


class TraceBuilder(DeviceEvents):
    """Collects events of one rank and writes them as PyTorch's profiler would.

    All times are microseconds and may have up to three decimals; they are relative to
    `baseTimeNanoseconds`. Every method that adds an event returns the builder, so calls chain.
    Correlation ids, External ids and Python ids are given out by the builder.

    Args:
        device: name in `deviceProperties`; None writes a trace without devices.
        rank: rank in `distributedInfo`; None leaves that out.
        world_size: ranks of the job.
        pid: process id of the host threads.
        tid: thread that events stand on unless a call says otherwise.
        device_index: device that device events stand on unless a call says otherwise.
    """

    def __init__(
        self,
        *,
        device: str | None = "NVIDIA H200",
        rank: int | None = None,
        world_size: int = 1,
        pid: int = 1000,
        tid: int = 1000,
        device_index: int = 0,
    ) -> None:
        super().__init__(pid=pid, tid=tid, device_index=device_index)
        self._header: dict[str, Any] = {"schemaVersion": 1, "deviceProperties": []}
        if device is not None:
            self._header["deviceProperties"] = [_device_properties(device_index, device)]
        if rank is not None:
            self._header["distributedInfo"] = {
                "backend": "nccl",
                "rank": rank,
                "world_size": world_size,
            }
        self._header.update(record_shapes=1, with_stack=1)
        self._header.update(displayTimeUnit="ms", baseTimeNanoseconds=1_700_000_000_000_000_000)

    def header(self, **values: Any) -> Self:
        """Set top-level values of the file; None removes one."""
        for key, value in values.items():
            self._header[key] = value
            if value is None:
                del self._header[key]
        return self

    def to_dict(self) -> dict[str, Any]:
        """The trace as plain data."""
        return {**self._header, "traceEvents": list(self._events)}

    def to_json(self) -> str:
        """The trace as text."""
        return json.dumps(self.to_dict())

    def write(self, path: str | Path) -> Path:
        """Write the trace, packed if the name ends in `.gz`; returns the path."""
        path = Path(path)
        data = self.to_json().encode()
        path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
        return path

    def read(self) -> Trace:
        """The trace as the real reader sees it."""
        from kinetoscope.trace.readers import read

        with tempfile.TemporaryDirectory(prefix="kinetoscope-") as folder:
            return read(self.write(Path(folder) / "trace.json"))


def _device_properties(index: int, name: str) -> dict[str, Any]:
    return {
        "id": index,
        "name": name,
        "totalGlobalMem": 150_109_880_320,
        "computeMajor": 9,
        "computeMinor": 0,
        "maxThreadsPerBlock": 1024,
        "warpSize": 32,
        "numSms": 132,
    }
