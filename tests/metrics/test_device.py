"""The device timeline against plain interval arithmetic, written independently of the library."""

from __future__ import annotations

import gzip
import json
import os
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from kinetoscope.metrics.device import device_timeline
from kinetoscope.testing import TraceBuilder
from kinetoscope.trace.readers import read

_ROOT = Path(os.environ.get("KINETOSCOPE_TRACES", Path(__file__).parents[3] / "shared/traces"))
_FILES = sorted(p for part in ("public", "zoo") for p in (_ROOT / part).glob("*.json.gz"))


def test_every_quantity_on_a_drawn_timeline() -> None:
    """Compute 0-100 and 150-200, communication 80-140, copies 130-170 and 300-310."""
    t = TraceBuilder()
    t.kernel("gemm", 0, 100).kernel("relu", 150, 50)
    t.all_reduce(80, 60)
    t.copy("HtoD Pinned", 1000, 130, 40, stream=9)
    t.memset(10, 190, 20, stream=9)
    t.copy("DtoD", 1000, 300, 10, stream=9)
    (row,) = device_timeline(t.read())
    assert row.span_ns == 310_000
    assert row.compute_ns == 160_000
    assert row.comm_ns == 60_000
    assert row.exposed_comm_ns == 40_000
    assert row.memcpy_ns == 50_000
    assert row.exposed_memcpy_ns == 20_000
    assert row.busy_ns == 220_000
    assert row.idle_ns == 90_000


def _ns(value: int | str) -> int:
    """Microseconds as written to ns; `parse_float=str` keeps the digits that float64 loses."""
    return round(Decimal(value) * 1000)


def _length(spans: list[tuple[int, int]]) -> int:
    total, reach = 0, None
    for low, high in sorted(spans):
        if reach is None or low > reach:
            total, reach = total + high - low, high
        elif high > reach:
            total, reach = total + high - reach, high
    return total


_COMM = ("nccl", "rccl", "oneccl", "hccl", "cross_device_reduce", "multimem_all_reduce")


def _expected(events: list[dict[str, Any]]) -> dict[str, int]:
    spans: dict[str, list[tuple[int, int]]] = {"compute": [], "comm": [], "memcpy": []}
    for event in events:
        category = event["cat"].lower()
        low = _ns(event["ts"])
        span = (low, low + _ns(event["dur"]))
        if category == "kernel":
            args = event.get("args", {})
            comm = "Collective name" in args or any(c in event["name"].lower() for c in _COMM)
            spans["comm" if comm else "compute"].append(span)
        elif category in ("gpu_memset", "memset"):
            spans["compute"].append(span)
        else:
            spans["memcpy"].append(span)
    compute, comm, memcpy = spans["compute"], spans["comm"], spans["memcpy"]
    everything = compute + comm + memcpy
    return {
        "span_ns": max(e for _, e in everything) - min(s for s, _ in everything),
        "busy_ns": _length(everything),
        "compute_ns": _length(compute),
        "comm_ns": _length(comm),
        "exposed_comm_ns": _length(compute + comm) - _length(compute),
        "memcpy_ns": _length(memcpy),
        "exposed_memcpy_ns": _length(everything) - _length(compute + comm),
    }


@pytest.mark.skipif(not _FILES, reason="no recordings at hand; set KINETOSCOPE_TRACES")
@pytest.mark.parametrize("path", _FILES, ids=lambda p: p.name.removesuffix(".json.gz"))
def test_device_timeline_of_real_recordings(path: Path) -> None:
    """Equal to the nanosecond; files that plain json.load cannot read are left to the reader's."""
    try:
        data = json.loads(gzip.decompress(path.read_bytes()), strict=False, parse_float=str)
    except ValueError:
        pytest.skip("not plain JSON")
    events = data["traceEvents"] if isinstance(data, dict) else data
    wanted = {"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"}
    by_device: dict[int, list[dict[str, Any]]] = {}
    for event in events:
        if event.get("ph") == "X" and str(event.get("cat", "")).lower() in wanted:
            device = int(event.get("args", {}).get("device", event["pid"]))
            by_device.setdefault(device, []).append(event)
    rows = device_timeline(read(path))
    got = {
        row.device: {k: getattr(row, k) for k in _expected(by_device[row.device])} for row in rows
    }
    assert got == {device: _expected(events) for device, events in by_device.items()}
