"""Tables of operators, kernels and modules: time per step of the steady steps."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import clip, measure
from kinetoscope.metrics.roofline import Bound
from kinetoscope.result.view import Cell, Table, TableColumn
from kinetoscope.trace.kinds import DEVICE_WORK, Family, Kind
from kinetoscope.trace.links import rows_of
from kinetoscope.trace.trace import IntArray
from kinetoscope.viewdata.names import shorten

FloatArray = npt.NDArray[np.float64]

MOST_ROWS = 1500

_CALLS = TableColumn("calls", "count", "How often it ran in a step, on average.")


def device_rows(analysis: Analysis) -> IntArray:
    """Device work of the step window, in time order."""
    return analysis.in_window(rows_of(analysis.trace, *DEVICE_WORK))


def operators(analysis: Analysis) -> Table:
    """Operators by name."""
    trace, tree = analysis.trace, analysis.trace.tree
    columns = (
        TableColumn("operator", "text", "Name as PyTorch's dispatcher calls it."),
        _CALLS,
        TableColumn(
            "host own",
            "ns",
            "Time on the host per step, without operators and calls "
            "inside it. The profiler's cost is in it.",
        ),
        TableColumn("host all", "ns", "Time on the host per step, with everything inside it."),
        TableColumn("device", "ns", "Work of the device per step that it launched itself."),
        TableColumn(
            "share",
            "ratio",
            "Its device time as a share of all device work; of host "
            "time in a recording without a device.",
        ),
    )
    rows = rows_of(trace, Kind.CPU_OP)
    low, high = analysis.times.host_window
    ts = trace.column("ts_ns")
    rows = rows[(ts[rows] >= low) & (ts[rows] < high)]
    if rows.size == 0:
        return Table(
            "operators",
            "Operators",
            columns,
            (),
            missing="No operator was recorded. Record with activities=[ProfilerActivity.CPU, ...].",
        )
    node = tree.node_of[rows]
    name = trace.column("name_id")[rows].astype(np.int64)
    duration = trace.column("dur_ns")[rows]
    parent = tree.parent[node]
    same = parent >= 0
    above = trace.column("name_id")[tree.rows[np.maximum(parent, 0)]]
    outer = np.where(same & (above == name), 0, duration)
    size = len(trace.names) + 1
    steps = analysis.steps_on_host
    calls = np.bincount(name, minlength=size)
    own = np.bincount(name, weights=tree.self_ns[node], minlength=size)
    whole = np.bincount(name, weights=outer, minlength=size)
    device = _device_by_op(analysis, size)
    weight = device if device.sum() else own
    order = np.flatnonzero(calls)
    order = order[np.argsort(-(device + own)[order], kind="stable")][:MOST_ROWS]
    order = order[np.argsort(-own[order], kind="stable")]
    return Table(
        "operators",
        "Operators",
        columns,
        tuple(
            (
                shorten(trace.names[i]),
                round(float(calls[i]) / steps, 2),
                int(own[i] / steps),
                int(whole[i] / steps),
                int(device[i] / analysis.steps),
                round(float(weight[i] / max(weight.sum(), 1)), 5),
            )
            for i in order
        ),
        note=_cut_note(int((calls > 0).sum())),
    )


def _cut_note(total: int) -> str:
    return f"The {MOST_ROWS:,} largest of {total:,}." if total > MOST_ROWS else ""


def _device_by_op(analysis: Analysis, size: int) -> FloatArray:
    trace = analysis.trace
    rows = device_rows(analysis)
    op = trace.links.op[rows] if rows.size else rows
    rows = rows[op >= 0]
    name = trace.column("name_id")[op[op >= 0]].astype(np.int64)
    return _sums(name, trace.column("dur_ns")[rows], size)


def _sums(group: IntArray, values: IntArray, size: int) -> FloatArray:
    """Sum of the values of each group."""
    return np.bincount(group, weights=values, minlength=size).astype(np.float64)


def kernels(analysis: Analysis) -> Table:
    """Kernels by name."""
    trace = analysis.trace
    columns = (
        TableColumn("kernel", "text", "Name of the kernel."),
        _CALLS,
        TableColumn("time", "ns", "Time on the device per step, all calls."),
        TableColumn("mean", "ns", "Mean length of one call."),
        TableColumn("share", "ratio", "Its time as a share of the time of all kernels."),
        TableColumn(
            "bound by",
            "text",
            "What limits it: arithmetic, memory bandwidth, or its own "
            "latency when it is too short for either. From input shapes where recorded.",
        ),
        TableColumn(
            "of roof",
            "ratio",
            "Shortest time that the device's data sheet allows for "
            "this work, as a share of the measured time. Needs input shapes.",
        ),
        TableColumn("kind", "text", "What it does, by its name."),
        TableColumn("launched by", "text", "Operator that launches most of its time."),
    )
    rows = analysis.in_window(rows_of(trace, Kind.KERNEL, Kind.COLLECTIVE))
    if rows.size == 0:
        return Table(
            "kernels",
            "Kernels",
            columns,
            (),
            missing="No kernel was recorded. On a "
            "machine with an accelerator, record with ProfilerActivity.CUDA (or XPU).",
        )
    name = trace.column("name_id")[rows].astype(np.int64)
    duration = trace.column("dur_ns")[rows]
    size = len(trace.names) + 1
    calls = np.bincount(name, minlength=size)
    time = np.bincount(name, weights=duration, minlength=size)
    bound, efficiency = _limits(analysis, size)
    ops = _main_op(analysis, rows, name, duration)
    family = np.zeros(size, dtype=np.int64)
    family[name] = trace.column("family")[rows]
    comm = np.zeros(size, dtype=bool)
    comm[name] = trace.column("kind")[rows] == Kind.COLLECTIVE
    order = np.flatnonzero(calls)
    order = order[np.argsort(-time[order], kind="stable")][:MOST_ROWS]
    steps = analysis.steps
    return Table(
        "kernels",
        "Kernels",
        columns,
        tuple(
            (
                shorten(trace.names[i]),
                round(float(calls[i]) / steps, 2),
                int(time[i] / steps),
                int(time[i] / calls[i]),
                round(float(time[i] / max(time.sum(), 1)), 5),
                "" if comm[i] else bound[i],
                None if efficiency[i] < 0 else round(float(efficiency[i]), 4),
                "communication" if comm[i] else Family(int(family[i])).name.lower(),
                ops.get(int(i), ""),
            )
            for i in order
        ),
        note=_cut_note(int((calls > 0).sum())),
    )


def _limits(analysis: Analysis, size: int) -> tuple[list[str], FloatArray]:
    """What bounds most of each kernel's time, and its mean efficiency (-1: unknown)."""
    roof = analysis.roof
    trace = analysis.trace
    name = trace.column("name_id")[roof.costs.rows].astype(np.int64)
    duration = trace.column("dur_ns")[roof.costs.rows].astype(np.float64)
    weight = np.zeros((size, len(Bound)))
    np.add.at(weight, (name, roof.bound.astype(np.int64)), duration)
    known = roof.efficiency >= 0
    spent = np.bincount(name[known], weights=duration[known], minlength=size)
    useful = np.bincount(
        name[known], weights=duration[known] * roof.efficiency[known], minlength=size
    )
    efficiency = np.divide(useful, spent, out=np.full(size, -1.0), where=spent > 0)
    words = [Bound(int(b)).name.lower() for b in weight.argmax(axis=1)]
    return words, efficiency


def _main_op(
    analysis: Analysis, rows: IntArray, name: IntArray, duration: IntArray
) -> dict[int, str]:
    """Operator with most time of each kernel name."""
    trace = analysis.trace
    op = trace.links.op[rows]
    known = op >= 0
    op_name = trace.column("name_id")[op[known]].astype(np.int64)
    key = (name[known] << 32) | op_name
    distinct, position = np.unique(key, return_inverse=True)
    weight = np.bincount(position, weights=duration[known])
    best: dict[int, str] = {}
    for i in np.argsort(weight, kind="stable"):
        best[int(distinct[i]) >> 32] = shorten(trace.names[int(distinct[i]) & 0xFFFFFFFF], 120)
    return best


def modules(analysis: Analysis) -> Table:
    """Modules as a tree; the backward pass counts for the module of its forward pass."""
    tree = analysis.trace.tree
    columns = (
        TableColumn("module", "text", "`nn.Module` by class and number, inside its parent."),
        _CALLS,
        TableColumn("host", "ns", "Time on the host per step inside its forward()."),
        TableColumn(
            "device",
            "ns",
            "Work of the device per step, forward and backward, with its submodules.",
        ),
        TableColumn("device own", "ns", "The same without its submodules."),
        TableColumn(
            "share",
            "ratio",
            "Its device time as a share of all device work; of host "
            "time in a recording without a device.",
        ),
    )
    nodes = np.flatnonzero(tree.kind == Kind.MODULE)
    if nodes.size == 0:
        return Table(
            "modules",
            "Modules",
            columns,
            (),
            missing="No nn.Module was recorded. "
            "Record with with_stack=True: the Python tracer also records modules.",
        )
    return _module_rows(analysis, nodes, columns)


def _module_rows(analysis: Analysis, nodes: IntArray, columns: tuple[TableColumn, ...]) -> Table:
    trace, tree = analysis.trace, analysis.trace.tree
    up = _module_parents(analysis, nodes)
    paths: dict[tuple[int, int], int] = {}
    of_node = np.full(tree.rows.size, -1, dtype=np.int64)
    names = trace.column("name_id")[tree.rows]
    for node, parent in zip(nodes.tolist(), up.tolist(), strict=True):
        above = int(of_node[parent]) if parent >= 0 else -1
        of_node[node] = paths.setdefault((above, int(names[node])), len(paths))
    size = len(paths)
    low, high = analysis.times.host_window
    inside = nodes[(tree.start[nodes] >= low) & (tree.start[nodes] < high)]
    calls = np.bincount(of_node[inside], minlength=size)
    host = _sums(of_node[inside], (tree.end - tree.start)[inside], size)
    own = _device_by_module(analysis, of_node, size)
    parents = [above for above, _ in paths]
    whole = own.copy()
    for i in range(size - 1, -1, -1):
        if parents[i] >= 0:
            whole[parents[i]] += whole[i]
    return _module_table(analysis, columns, list(paths), calls, host, own, whole)


def _module_table(
    analysis: Analysis,
    columns: tuple[TableColumn, ...],
    paths: list[tuple[int, int]],
    calls: IntArray,
    host: FloatArray,
    own: FloatArray,
    whole: FloatArray,
) -> Table:
    children: dict[int, list[int]] = {}
    for i, (above, _) in enumerate(paths):
        children.setdefault(above, []).append(i)
    weight = whole if whole.sum() else host
    total = sum(float(weight[i]) for i in children.get(-1, [])) or 1.0
    rows: list[tuple[Cell, ...]] = []
    levels: list[int] = []
    stack = [(i, 0) for i in reversed(children.get(-1, []))]
    while stack and len(rows) < MOST_ROWS:
        i, level = stack.pop()
        name = analysis.trace.names[paths[i][1]].removeprefix("nn.Module: ")
        if calls[i] or whole[i]:
            rows.append(
                (
                    shorten(name),
                    round(float(calls[i]) / analysis.steps_on_host, 2),
                    int(host[i] / analysis.steps_on_host),
                    int(whole[i] / analysis.steps),
                    int(own[i] / analysis.steps),
                    round(float(weight[i] / total), 5),
                )
            )
            levels.append(level)
        stack += [(child, level + 1) for child in reversed(children.get(i, []))]
    note = _cut_note(len(paths)) if stack else ""
    return Table("modules", "Modules", columns, tuple(rows), levels=tuple(levels), note=note)


def _module_parents(analysis: Analysis, nodes: IntArray) -> IntArray:
    """Nearest module above each module; -1: none."""
    tree = analysis.trace.tree
    above = tree.parent[nodes]
    return np.where(above >= 0, tree.module[np.maximum(above, 0)], -1)


def _device_by_module(analysis: Analysis, of_node: IntArray, size: int) -> FloatArray:
    rows = device_rows(analysis)
    if rows.size == 0:
        return np.zeros(size)
    node = analysis.locator.nodes(rows)
    module = np.where(node >= 0, analysis.trace.tree.module[np.maximum(node, 0)], -1)
    known = module >= 0
    duration = analysis.trace.column("dur_ns")[rows[known]]
    return _sums(of_node[module[known]], duration, size)


def busy_ns(analysis: Analysis) -> int:
    """Time in the step window in which the busiest device worked."""
    if analysis.device is None:
        return 0
    return measure(clip(analysis.device.busy, *analysis.times.window))
