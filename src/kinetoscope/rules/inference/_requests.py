"""Shared by the rules about inference: is it inference, and what is a weight."""

from __future__ import annotations

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.device_ops import args_of
from kinetoscope.metrics.phase import trains
from kinetoscope.trace.op_names import op_rows, short_name
from kinetoscope.trace.trace import IntArray, Trace

Shape = tuple[int, ...]

MIN_STEPS = 3
"""Steps without a backward pass; fewer may be a part of one training step. A recording without
any marks of steps is taken for that of a server."""

WEIGHT_OF = {"linear": 1, "conv1d": 1, "conv2d": 1, "conv3d": 1, "embedding": 0}
"""Operators whose argument at this position is a weight of the model, never a result of it."""


def serves(analysis: Analysis) -> bool:
    """Does the recording show inference: steps or a whole recording without a backward pass?"""
    steps = analysis.trace.steps
    enough = steps.count >= MIN_STEPS or steps.source == "whole_trace"
    return enough and not analysis.get(trains)


def ops_named(trace: Trace, *names: str) -> IntArray:
    """Rows of the operators with one of these short names, in time order."""
    return op_rows(trace, names.__contains__)


def weight_shapes(trace: Trace) -> frozenset[Shape]:
    """Shapes of the weights of layers that are not the shape of any layer's input as well."""
    weights: set[Shape] = set()
    inputs: set[Shape] = set()
    rows = ops_named(trace, *WEIGHT_OF)
    dims = trace.column("dims_id")[rows]
    _, first = np.unique(dims, return_index=True)
    for row in rows[first[dims[first] >= 0]]:
        name = short_name(trace.names[trace.column("name_id")[row]])
        shapes = args_of(trace, int(row)).dims
        for i, shape in enumerate(shapes[:2]):
            if isinstance(shape, list) and shape and all(type(n) is int for n in shape):
                (weights if i == WEIGHT_OF[name] else inputs).add(tuple(shape))
    return frozenset(weights - inputs)
