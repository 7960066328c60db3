"""Memory over time, and what holds it at the peak."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.updates import update_nodes
from kinetoscope.result.view import Holder, MemoryCurve
from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.trace import IntArray
from kinetoscope.viewdata.names import shorten
from kinetoscope.viewdata.pack import pack

MISSING = "Memory was not recorded. Record with profile_memory=True."
_SAMPLES = 3_000
_MOST_HOLDERS = 12


def memory(analysis: Analysis, origin: int) -> tuple[MemoryCurve, ...]:
    """One curve a device; the host comes last. `origin` is the page's zero."""
    table = analysis.trace.memory
    if table.height == 0:
        return ()
    device = table.get_column("device").to_numpy()
    order = sorted(np.unique(device).tolist(), key=lambda d: (d < 0, d))
    curves = (_curve(analysis, int(d), np.flatnonzero(device == d), origin) for d in order)
    return tuple(curve for curve in curves if curve is not None)


def _curve(analysis: Analysis, device: int, rows: IntArray, origin: int) -> MemoryCurve | None:
    table = analysis.trace.memory
    ts = table.get_column("ts_ns").to_numpy()[rows]
    allocated = table.get_column("allocated").to_numpy()[rows]
    reserved = table.get_column("reserved").to_numpy()[rows]
    rows, ts = rows[allocated >= 0], ts[allocated >= 0]
    reserved, allocated = reserved[allocated >= 0], allocated[allocated >= 0]
    if rows.size == 0 or allocated.max() <= 0:
        return None
    peak = int(allocated.argmax())
    shown = _extremes(allocated, peak)
    alive = _alive_at(analysis, rows, peak)
    held = int(alive.bytes.sum())
    properties = [d for d in analysis.trace.header.devices if d.id == device]
    known_reserved = bool((reserved > 0).any())
    return MemoryCurve(
        rank=analysis.rank,
        device=device,
        time_ns=pack(ts[shown] - origin, delta=True),
        allocated=pack(allocated[shown], delta=True),
        reserved=pack(np.maximum(reserved[shown], 0), delta=True) if known_reserved else None,
        peak_ns=int(ts[peak]) - origin,
        peak_bytes=int(allocated[peak]),
        peak_reserved_bytes=int(reserved.max()) if known_reserved else 0,
        capacity_bytes=properties[0].total_memory_bytes if properties else None,
        holders=_holders(analysis, alive),
        unknown_bytes=max(int(allocated[peak]) - held, 0),
    )


def _extremes(values: IntArray, peak: int) -> IntArray:
    """Positions of the lowest and highest value of each of many slices: the curve's outline."""
    if values.size <= _SAMPLES:
        return np.arange(values.size)
    edges = np.linspace(0, values.size, _SAMPLES // 2 + 1).astype(np.int64)[:-1]
    slices = np.split(np.arange(values.size), edges[1:])
    picked = {peak, 0, values.size - 1}
    for part in slices:
        picked.add(int(part[values[part].argmin()]))
        picked.add(int(part[values[part].argmax()]))
    return np.array(sorted(picked), dtype=np.int64)


@dataclass(frozen=True)
class _Alive:
    """Blocks that were allocated in the recording and not yet freed."""

    ts: IntArray
    thread: IntArray
    bytes: IntArray


def _alive_at(analysis: Analysis, rows: IntArray, last: int) -> _Alive:
    table = analysis.trace.memory
    upto = rows[: last + 1]
    addr = table.get_column("addr").to_numpy()[upto]
    size = table.get_column("bytes").to_numpy()[upto]
    open_blocks: dict[int, int] = {}
    for position, (where, amount) in enumerate(zip(addr.tolist(), size.tolist(), strict=True)):
        if amount > 0:
            open_blocks[where] = position
        else:
            open_blocks.pop(where, None)
    alive = upto[np.array(sorted(open_blocks.values()), dtype=np.int64)]
    return _Alive(
        table.get_column("ts_ns").to_numpy()[alive],
        table.get_column("thread").to_numpy()[alive].astype(np.int64),
        table.get_column("bytes").to_numpy()[alive],
    )


def _holders(analysis: Analysis, alive: _Alive) -> tuple[Holder, ...]:
    if alive.ts.size == 0:
        return ()
    trace, tree = analysis.trace, analysis.trace.tree
    node = tree.innermost_at(alive.thread, alive.ts)
    if not (node >= 0).any():
        return ()
    source = np.where(node >= 0, trace.links.source_node[np.maximum(node, 0)], -1)
    at = np.maximum(source, 0)
    names = trace.column("name_id")[tree.rows]
    frame = np.where(source >= 0, tree.user_frame[at], -1)
    module = np.where(source >= 0, tree.module[at], -1)
    op = np.where(node >= 0, tree.op[np.maximum(node, 0)], -1)
    found: list[Holder] = []
    for by, what in (("module", module), ("op", op), ("line", frame)):
        if (what >= 0).any():
            label = np.where(what >= 0, names[np.maximum(what, 0)], -1)
            texts = {int(i): trace.names[i] if i >= 0 else "none" for i in np.unique(label)}
            found += _ranked(by, label, texts, alive.bytes)
    category, words = _categories(analysis, node)
    return (*found, *_ranked("category", category, words, alive.bytes))


def _ranked(by: str, label: IntArray, texts: dict[int, str], size: IntArray) -> list[Holder]:
    rows = []
    for value in np.unique(label):
        mine = label == value
        rows.append(
            Holder(by, shorten(texts[int(value)], 200), int(size[mine].sum()), int(mine.sum()))  # type: ignore[arg-type]
        )
    return sorted(rows, key=lambda row: -row.bytes)[:_MOST_HOLDERS]


_WORDS = {
    0: "forward pass: activations kept for the backward pass",
    1: "backward pass: gradients",
    2: "optimizer state",
    3: "outside modules",
}


def _categories(analysis: Analysis, node: IntArray) -> tuple[IntArray, dict[int, str]]:
    """What kind of memory, by where it was allocated: an inference, not a record."""
    trace, tree = analysis.trace, analysis.trace.tree
    optimizer = update_nodes(trace)
    at = np.maximum(node, 0)
    known = node >= 0
    result = np.full(node.size, 3, dtype=np.int64)
    result[known & (tree.module[at] >= 0)] = 0
    result[known & (trace.links.backward_root[at] >= 0)] = 1
    result[known & (optimizer[at] >= 0)] = 2
    if not (tree.kind == Kind.MODULE).any():
        result[result == 3] = 4
    return result, {**_WORDS, 4: "forward pass and everything else (modules were not recorded)"}
