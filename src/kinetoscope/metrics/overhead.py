"""What the profiler itself cost on the host, as a model (M-18).

The coefficients were fitted on 71 host-bound recordings made on two H200 machines with torch
2.11, whose unprofiled step time was known (non-negative least squares of the excess time, each
recording weighted by 1 / its true step). Half of the corrected step times lie within 15 % of the
truth, a tenth is off by more than 45 %. The coefficients depend on the machine: a known step
time (`--real-step-ms`) replaces the model by a measurement.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kinetoscope.metrics.intervals import Intervals, union
from kinetoscope.trace.frames import is_builtin, is_profiler_step
from kinetoscope.trace.kinds import RUNTIME_KINDS, Kind
from kinetoscope.trace.trace import Trace


@dataclass(frozen=True)
class OverheadModel:
    """Nanoseconds that one recorded event added to the host."""

    op_ns: float
    call_ns: float
    python_ns: float
    builtin_ns: float
    """A function of C code: the profiler does not read a code object for it."""


#: Shapes, memory and stacks recorded.
WITH_STACKS = OverheadModel(2300.0, 5500.0, 690.0, 360.0)
#: Shapes recorded.
WITH_SHAPES = OverheadModel(3100.0, 7700.0, 0.0, 0.0)
#: CPU and device activities only.
PLAIN = OverheadModel(750.0, 6900.0, 0.0, 0.0)

RELATIVE_ERROR = 0.45
"""Relative error of the model that nine of ten recordings stay below."""


def overhead_model(trace: Trace) -> OverheadModel:
    """The coefficients that fit the recording's options, read off its contents."""
    kind = trace.column("kind")
    if bool(np.any(kind == Kind.PYTHON)):
        return WITH_STACKS
    if bool(np.any(trace.column("dims_id") >= 0)):
        return WITH_SHAPES
    return PLAIN


def event_overhead_ns(trace: Trace) -> npt.NDArray[np.float64]:
    """Overhead that each event of the table added where it starts, float64 ns per row."""
    model = overhead_model(trace)
    cost = np.zeros(256)
    cost[[Kind.CPU_OP, Kind.ANNOTATION, Kind.HOST_COLLECTIVE, Kind.LOADER]] = model.op_ns
    cost[[Kind.PYTHON, Kind.MODULE]] = model.python_ns
    # Only calls that start device work carry the tracing of the device activity as well.
    cost[list(RUNTIME_KINDS)] = 0.5 * model.call_ns
    cost[[Kind.LAUNCH, Kind.GRAPH_LAUNCH, Kind.COPY_CALL]] = model.call_ns
    result = np.asarray(cost[trace.column("kind")])
    if model.builtin_ns:
        result[_builtin_calls(trace)] = model.builtin_ns
    return result


def _builtin_calls(trace: Trace) -> npt.NDArray[np.bool_]:
    """Rows of Python frames that are functions of C code."""
    flags = np.fromiter((is_builtin(n) for n in trace.names), bool, len(trace.names))
    python = trace.column("kind") == Kind.PYTHON
    return np.asarray(python & flags[trace.column("name_id")])


def profiler_time(trace: Trace) -> Intervals:
    """Host time inside the profiler itself, such as `profile.step`, where frames were recorded."""
    flags = np.fromiter((is_profiler_step(n) for n in trace.names), bool, len(trace.names))
    rows = np.flatnonzero(flags[trace.column("name_id")] & (trace.column("kind") == Kind.PYTHON))
    ts = trace.column("ts_ns")[rows]
    return union(ts, ts + trace.column("dur_ns")[rows])
