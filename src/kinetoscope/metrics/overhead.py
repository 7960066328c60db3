"""What the profiler itself cost on the host, as a model (M-18).

The coefficients were fitted on 32 host-bound recordings made on an H200 with torch 2.11, whose
unprofiled step time was known; half of them lie within 20 %, the worst is off by 46 %. They
depend on the machine: a known step time (`--real-step-ms`) replaces the model by a measurement.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kinetoscope.trace.kinds import RUNTIME_KINDS, Kind
from kinetoscope.trace.trace import Trace


@dataclass(frozen=True)
class OverheadModel:
    """Nanoseconds that one recorded event added to the host."""

    op_ns: float
    call_ns: float
    python_ns: float


#: Shapes, memory and stacks recorded.
WITH_STACKS = OverheadModel(2100.0, 5300.0, 710.0)
#: Shapes recorded.
WITH_SHAPES = OverheadModel(3500.0, 5000.0, 0.0)
#: CPU and device activities only: the option test gives 5.9 ms for 5.9 k operators.
PLAIN = OverheadModel(1000.0, 5000.0, 0.0)

RELATIVE_ERROR = 0.45
"""Worst relative error of the model on the recordings it was fitted on."""


def overhead_model(trace: Trace) -> OverheadModel:
    """The coefficients that fit the recording's options, read off its contents."""
    kind = trace.column("kind")
    if bool(np.any(kind == Kind.PYTHON)):
        return WITH_STACKS
    if bool(np.any(trace.column("dims_id") >= 0)):
        return WITH_SHAPES
    return PLAIN


def event_overhead_ns(trace: Trace) -> np.ndarray:  # type: ignore[type-arg]
    """Overhead that each event of the table added where it starts, float64 ns per row."""
    model = overhead_model(trace)
    cost = np.zeros(256)
    cost[[Kind.CPU_OP, Kind.ANNOTATION, Kind.HOST_COLLECTIVE, Kind.LOADER]] = model.op_ns
    cost[[Kind.PYTHON, Kind.MODULE]] = model.python_ns
    # Only calls that start device work carry the tracing of the device activity as well.
    cost[list(RUNTIME_KINDS)] = 0.3 * model.call_ns
    cost[[Kind.LAUNCH, Kind.GRAPH_LAUNCH, Kind.COPY_CALL]] = model.call_ns
    return np.asarray(cost[trace.column("kind")])
