"""Forward work that activation checkpointing runs again inside the backward pass."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kinetoscope.trace.calltree import nearest
from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.op_names import short_name
from kinetoscope.trace.trace import Trace

_FORWARD_ONLY = frozenset(
    "linear conv1d conv2d conv3d layer_norm batch_norm group_norm rms_norm embedding dropout "
    "scaled_dot_product_attention max_pool2d".split()
)
"""Operators that programs call and no backward formula does."""


def recomputed_nodes(trace: Trace) -> npt.NDArray[np.bool_]:
    """Call-tree nodes of forward operators that run inside the backward pass.

    The engine runs its own operators without recording a graph, so they carry no sequence
    number; recomputed ones do. Some of them must be operators that only programs call: a second
    derivative records a graph too.
    """
    tree = trace.tree
    backward = trace.links.backward_root >= 0
    if not backward.any():
        return backward
    name_id = trace.column("name_id")[tree.rows]
    aten = trace.name_flags(lambda n: n.startswith("aten::"))
    program = trace.name_flags(lambda n: short_name(n) in _FORWARD_ONLY)
    ops = backward & (tree.kind == Kind.CPU_OP) & aten[name_id]
    ops &= trace.column("seq")[tree.rows] >= 0
    if not (ops & program[name_id]).any():
        return np.zeros(tree.rows.size, dtype=bool)
    return nearest(ops, tree.parent) >= 0
