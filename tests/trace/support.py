"""Short ways to write events and to look at what was read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from kinetoscope.trace.trace import Trace


def event(name: str = "aten::mm", **values: Any) -> dict[str, Any]:
    """A CPU operator of 5 us at 10 us, changed as wanted; None removes a key."""
    base = {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 2, "ts": 10, "dur": 5}
    merged = {**base, **values}
    return {key: value for key, value in merged.items() if value is not None}


def kernel(name: str = "gemm", *, stream: int = 7, corr: int = 1, **values: Any) -> dict[str, Any]:
    args = {"device": 0, "stream": stream, "correlation": corr}
    base = event(name, cat="kernel", pid=0, tid=stream, args=args)
    return {**base, **values}


def rows(trace: Trace, *columns: str) -> list[tuple[Any, ...]]:
    """Columns as tuples; `name` and `extra` give the pooled text."""
    out = []
    for name in columns:
        if name == "name":
            out.append([trace.names[i] for i in trace.events["name_id"]])
        elif name in {"dims", "types", "strides", "concrete", "launch", "extra"}:
            ids = trace.events[f"{name}_id"].to_list()
            out.append([None if i < 0 else trace.texts[i] for i in ids])
        else:
            out.append(trace.events[name].to_list())
    return list(zip(*out, strict=True))


def damage(trace: Trace) -> dict[str, int]:
    return {d.kind: d.count for d in trace.damage}


def lossy(trace: Trace) -> set[str]:
    return {d.kind for d in trace.damage if d.lossy}


def shared_traces() -> list[Path]:
    default = Path(__file__).parents[3] / "shared" / "traces"
    folder = Path(os.environ.get("KINETOSCOPE_TRACES", default))
    return sorted(folder.rglob("*.json.gz")) if folder.is_dir() else []
