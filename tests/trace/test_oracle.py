"""The reader against plain `json.load` on real recordings."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.readers import read
from kinetoscope.trace.trace import Trace
from tests.trace.support import shared_traces

DEVICE = {"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"}
LARGEST = 16 << 20
"""Unpacked; the plain oracle needs ten times the memory."""

TRACES = [p for p in shared_traces() if p.parent.name in {"public", "zoo"}]


@pytest.mark.skipif(not TRACES, reason="no folder of recordings; KINETOSCOPE_TRACES names one")
@pytest.mark.parametrize("path", TRACES, ids=lambda p: p.name)
def test_same_as_json_load(path: Path) -> None:
    text = gzip.decompress(path.read_bytes())
    if len(text) > LARGEST:
        pytest.skip("large")
    document = json.loads(text, parse_float=Decimal)
    assert _ours(read(path)) == _plain(document)


def _plain(document: dict[str, Any]) -> Counter[tuple[Any, ...]]:
    events = [e for e in document["traceEvents"] if e.get("ph") == "X" and e.get("cat") != "Trace"]
    absolute = min(e["ts"] for e in events) > 10**14
    base = 0 if absolute else int(document.get("baseTimeNanoseconds", 0))
    found: Counter[tuple[Any, ...]] = Counter()
    for e in events:
        args = e.get("args", {})
        ts, dur = base + int(Decimal(e["ts"]) * 1000), int(Decimal(e["dur"]) * 1000)
        corr = int(args.get("correlation", -1))
        ext = int(args.get("External id", args.get("external id", -1)))
        dims = json.dumps(args["Input Dims"]) if "Input Dims" in args else None
        stream = int(args["stream"]) if e["cat"] in DEVICE else None
        row = (e["name"], ts, dur, stream, corr if corr > 0 else -1, ext, dims)
        found[row] += 1
    return found


def _ours(trace: Trace) -> Counter[tuple[Any, ...]]:
    base = trace.header.base_time_ns
    work = {Kind.KERNEL, Kind.COLLECTIVE, Kind.COPY, Kind.MEMSET, Kind.DEVICE_OTHER}
    columns = trace.events.select(
        "name_id", "ts_ns", "dur_ns", "kind", "stream", "corr", "ext_id", "dims_id"
    )
    dims = [json.dumps(json.loads(t)) if t[:1] == "[" else "" for t in trace.texts]
    found: Counter[tuple[Any, ...]] = Counter()
    for name, ts, dur, kind, stream, corr, ext, dim in columns.iter_rows():
        lane = stream if kind in work and kind != Kind.DEVICE_OTHER else None
        text = dims[dim] if dim >= 0 else None
        found[(trace.names[name], base + ts, dur, lane, corr, ext, text)] += 1
    return found


@pytest.mark.skipif(not TRACES, reason="no folder of recordings; KINETOSCOPE_TRACES names one")
def test_no_recording_is_called_damaged() -> None:
    assert [p.name for p in TRACES if any(d.lossy for d in read(p).damage)] == []
