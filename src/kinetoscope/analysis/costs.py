"""Costs a step by operator, kernel and module, with their spread over the steps.

Everything is grouped by whole columns: a trace of a million events costs some hundredths of the
time that reading it takes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kinetoscope.analysis.core import Analysis
from kinetoscope.metrics.device_ops import dense
from kinetoscope.result.profile import Cost
from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.op_names import short_name
from kinetoscope.trace.trace import IntArray

FloatArray = npt.NDArray[np.float64]

MOST_ROWS = 60
"""Rows of each table: the result stays small, and what is left out is stated."""
LONGEST_NAME = 160
LONGEST_SHAPE = 80
PATH_LEVELS = 4
"""As in places: the innermost classes say where, the outer ones are the same for all."""


@dataclass(frozen=True)
class Steady:
    """The steady steps, and in which of them each event lies.

    Attributes:
        count: how many there are.
        host: step of each row of the event table by its start on the host; -1: outside.
        device: step of each row by its launch; -1: outside or no device work.
    """

    count: int
    host: IntArray
    device: IntArray


def steady_steps(analysis: Analysis) -> Steady:
    """Number the steady steps from 0 and place every event in them."""
    trace, times = analysis.trace, analysis.times
    number = np.full(max(trace.steps.count, 1) + 1, -1, dtype=np.int64)
    number[list(times.steady)] = np.arange(len(times.steady))
    host = number[trace.steps.of(trace.column("ts_ns"))]
    device = np.full(len(trace), -1, dtype=np.int64)
    device[times.device_rows] = number[times.device_step]
    return Steady(max(len(times.steady), 1), host, device)


@dataclass(frozen=True)
class Groups:
    """Sums a step of events that share a key; arrays have one entry a key.

    Attributes:
        first: an event-table row of each key.
        position: place of its first call within a step, among all keys.
    """

    first: IntArray
    position: IntArray
    calls: FloatArray
    host: FloatArray
    host_sd: FloatArray
    device: FloatArray
    device_sd: FloatArray

    def costliest(self, most: int) -> IntArray:
        """The keys by the larger of device and host time, most expensive first."""
        weight = np.maximum(self.host, self.device)
        return np.argsort(-weight, kind="stable")[:most]

    def cost(self, key: int, *, name: str, shape: str, module: str) -> Cost:
        """One row of a table."""
        return Cost(
            name=name,
            shape=shape,
            module=module,
            position=int(self.position[key]),
            calls=round(float(self.calls[key]), 3),
            host_ns=int(self.host[key]),
            host_sd_ns=int(self.host_sd[key]),
            device_ns=int(self.device[key]),
            device_sd_ns=int(self.device_sd[key]),
        )


@dataclass(frozen=True)
class Tally:
    """Times to be summed by (key, step)."""

    key: IntArray
    step: IntArray
    ns: IntArray

    def sums(self, keys: int, steps: int) -> tuple[FloatArray, FloatArray]:
        """Mean and standard deviation over the steps, for each key."""
        flat = np.bincount(self.key * steps + self.step, self.ns, minlength=keys * steps)
        table = flat.reshape(keys, steps)
        return table.mean(axis=1), table.std(axis=1)


def operators(analysis: Analysis, steady: Steady, paths: IntArray, names: list[str]) -> list[Cost]:
    """Operators with their own host time and the device time of what they launched."""
    trace, tree, links = analysis.trace, analysis.trace.tree, analysis.trace.links
    rows = analysis.rows(Kind.CPU_OP)
    rows = rows[steady.host[rows] >= 0]
    if rows.size == 0:
        return []
    node = tree.node_of[rows]
    path = paths[np.maximum(links.source_node[node], 0)]
    key = dense([trace.column("name_id")[rows].astype(np.int64), _shape_ids(analysis, rows), path])
    key_of = np.full(len(trace), -1, dtype=np.int64)
    key_of[rows] = key
    device = analysis.times.device_rows
    op = links.op[device]
    owner = np.where(op >= 0, key_of[np.maximum(op, 0)], -1)
    use = (owner >= 0) & (steady.device[device] >= 0)
    launched = Tally(owner[use], steady.device[device][use], trace.column("dur_ns")[device][use])
    own = Tally(key, steady.host[rows], _own_ns(analysis, node))
    groups = _groups(analysis, key, rows, steady, host=own, device=launched)
    where = _first_of(key, path, groups.first.size)
    return _table(
        groups,
        name=lambda i: short_name(trace.names[trace.column("name_id")[groups.first[i]]]),
        shape=lambda i: shape_text(_dims(analysis, int(groups.first[i]))),
        module=lambda i: names[int(where[i])],
    )


def kernels(analysis: Analysis, steady: Steady) -> list[Cost]:
    """Device events by name."""
    trace = analysis.trace
    rows = analysis.times.device_rows
    rows = rows[steady.device[rows] >= 0]
    if rows.size == 0:
        return []
    key = dense([trace.column("name_id")[rows].astype(np.int64)])
    time = Tally(key, steady.device[rows], trace.column("dur_ns")[rows])
    groups = _groups(analysis, key, rows, steady, host=None, device=time)
    return _table(
        groups,
        name=lambda i: trace.names[trace.column("name_id")[groups.first[i]]],
        shape=lambda _: "",
        module=lambda _: "",
    )


def modules(analysis: Analysis, steady: Steady, paths: IntArray, names: list[str]) -> list[Cost]:
    """`nn.Module` calls by class path: all host time inside, and the device time of forward
    and backward."""
    trace, tree, links = analysis.trace, analysis.trace.tree, analysis.trace.links
    rows = analysis.rows(Kind.MODULE)
    rows = rows[(steady.host[rows] >= 0) & (tree.node_of[rows] >= 0)]
    if rows.size == 0:
        return []
    key = paths[tree.node_of[rows]]
    used, key = np.unique(key, return_inverse=True)
    host = Tally(key, steady.host[rows], trace.column("dur_ns")[rows])
    device = analysis.times.device_rows
    node = links.node[device]
    path = paths[np.where(node >= 0, links.source_node[np.maximum(node, 0)], 0)]
    place = np.searchsorted(used, path)
    place = np.minimum(place, used.size - 1)
    use = (node >= 0) & (used[place] == path) & (steady.device[device] >= 0)
    work = Tally(place[use], steady.device[device][use], trace.column("dur_ns")[device][use])
    groups = _groups(analysis, key, rows, steady, host=host, device=work)
    return _table(
        groups,
        name=lambda i: names[int(used[i])].rpartition(" / ")[2],
        shape=lambda _: "",
        module=lambda i: names[int(used[i])],
    )


def class_paths(analysis: Analysis) -> tuple[IntArray, list[str]]:
    """For each call-tree node the path of module classes around it, as an index into names.

    Entry 0 is "", for a node outside any module.
    """
    trace, tree = analysis.trace, analysis.trace.tree
    is_module = np.flatnonzero(tree.kind == Kind.MODULE)
    names: list[str] = [""]
    index: dict[tuple[str, ...], int] = {(): 0}
    of_module = np.zeros(tree.rows.size, dtype=np.int64)
    chain: dict[int, tuple[str, ...]] = {}
    around = tree.module
    parent = tree.parent
    label = trace.column("name_id")[tree.rows]
    for node in is_module.tolist():  # tree order: a parent comes before its children
        up = int(parent[node])
        outer = int(around[up]) if up >= 0 else -1
        path = (*chain.get(outer, ()), module_class(trace.names[label[node]]))[-PATH_LEVELS:]
        chain[node] = path
        if path not in index:
            index[path] = len(names)
            names.append(" / ".join(path))
        of_module[node] = index[path]
    result = np.where(around >= 0, of_module[np.maximum(around, 0)], 0)
    return (result if result.size else np.zeros(1, dtype=np.int64)), names


def module_class(name: str) -> str:
    """`nn.Module: Linear_3` -> `Linear`."""
    text = name.removeprefix("nn.Module: ")
    head, _, number = text.rpartition("_")
    return head if head and number.isdigit() else text


def shape_text(dims: str) -> str:
    """`[[8, 32], [], [32]]` -> `8x32 32`; long lists end in `...`."""
    if not dims:
        return ""
    try:
        parsed = json.loads(dims)
    except ValueError:
        return ""
    words = [word for item in parsed for word in _shape_words(item)]
    text = " ".join(words)
    return text if len(text) <= LONGEST_SHAPE else f"{text[: LONGEST_SHAPE - 3]}..."


def _shape_words(item: object) -> list[str]:
    if not isinstance(item, list) or not item:
        return []
    if isinstance(item[0], list):
        return [f"({len(item)} tensors)"]
    return ["x".join(str(n) for n in item)]


def _dims(analysis: Analysis, row: int) -> str:
    index = int(analysis.trace.column("dims_id")[row])
    return analysis.trace.texts[index] if index >= 0 else ""


def _shape_ids(analysis: Analysis, rows: IntArray) -> IntArray:
    return np.asarray(analysis.trace.column("dims_id")[rows].astype(np.int64))


def _own_ns(analysis: Analysis, node: IntArray) -> IntArray:
    """Time of each operator without the operators inside it, runtime calls included."""
    tree = analysis.trace.tree
    duration = tree.end - tree.start
    own = duration[node].copy()
    place = np.full(tree.rows.size, -1, dtype=np.int64)
    place[node] = np.arange(node.size)
    up = tree.parent[node]
    outer = np.where(up >= 0, tree.op[np.maximum(up, 0)], -1)
    inside = np.flatnonzero(outer >= 0)
    target = place[outer[inside]]
    known = target >= 0
    np.subtract.at(own, target[known], duration[node[inside[known]]])
    return np.asarray(np.maximum(own, 0))


def _groups(
    analysis: Analysis,
    key: IntArray,
    rows: IntArray,
    steady: Steady,
    *,
    host: Tally | None,
    device: Tally,
) -> Groups:
    size = int(key.max()) + 1
    start = analysis.trace.column("ts_ns")[rows]
    order = np.argsort(start, kind="stable")
    first = np.full(size, -1, dtype=np.int64)
    first[key[order[::-1]]] = rows[order[::-1]]
    position = np.empty(size, dtype=np.int64)
    position[np.argsort(analysis.trace.column("ts_ns")[first], kind="stable")] = np.arange(size)
    none = np.zeros(size)
    host_mean, host_sd = host.sums(size, steady.count) if host else (none, none)
    device_mean, device_sd = device.sums(size, steady.count)
    return Groups(
        first=first,
        position=position,
        calls=np.bincount(key, minlength=size) / steady.count,
        host=host_mean,
        host_sd=host_sd,
        device=device_mean,
        device_sd=device_sd,
    )


def _first_of(key: IntArray, values: IntArray, size: int) -> IntArray:
    result = np.zeros(size, dtype=np.int64)
    result[key[::-1]] = values[::-1]
    return result


def _table(
    groups: Groups,
    *,
    name: Callable[[int], str],
    shape: Callable[[int], str],
    module: Callable[[int], str],
) -> list[Cost]:
    return [
        groups.cost(i, name=name(i)[:LONGEST_NAME], shape=shape(i), module=module(i))
        for i in groups.costliest(MOST_ROWS).tolist()
    ]


__all__ = ["Steady", "class_paths", "kernels", "modules", "operators", "steady_steps"]
