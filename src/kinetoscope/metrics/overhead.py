"""What the profiler itself cost on the host, as a model (M-18).

An event costs the more, the slower the host is. How slow it is shows in the recording itself:
a launch is the same little work everywhere, so its median duration measures the host (and the
profiler's hook in it). Over 83 host-bound recordings made on four H200 machines with torch 2.11,
whose unprofiled step time was known, the cost of an event grew with about the power 1.3 of that
duration (correlation of the logarithms 0.7); the rest of the spread is a factor of 0.65 to 1.55
for eight recordings in ten. A known step time (`--real-step-ms`) replaces the model by a
measurement.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kinetoscope.metrics.intervals import Intervals, union
from kinetoscope.trace.compiled_frames import is_inductor_kernel
from kinetoscope.trace.frames import is_builtin, is_driver_call, is_profiler_step
from kinetoscope.trace.kinds import RUNTIME_KINDS, Kind
from kinetoscope.trace.trace import IntArray, Trace


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
WITH_SHAPES = OverheadModel(2300.0, 5600.0, 0.0, 0.0)
#: CPU and device activities only.
PLAIN = OverheadModel(750.0, 6900.0, 0.0, 0.0)

LEAST, MOST = 0.6, 1.6
"""Part of the modelled overhead that eight of ten recordings really had."""

_INDUCTOR_KERNEL_NS = 12_000
"""What the profiler costs more at a launch by Inductor than at an operator: only while it is on,
`CachingAutotuner.run` (torch/_inductor/runtime/triton_heuristics.py) describes every argument of
the kernel. In recordings those calls take 15 µs of their own; without the profiler, 3 µs."""

_ENOUGH_LAUNCHES = 20
_REFERENCE_LAUNCH_NS = 7_000
_LAUNCH_POWER = 1.3
_SCALES = 0.5, 2.0
"""No host seen was faster or slower than this; what lies beyond is a launch queue that was full."""


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
    result[_inductor_kernels(trace)] += _INDUCTOR_KERNEL_NS
    if model.builtin_ns:
        result[_builtin_calls(trace)] = model.builtin_ns
    return result * host_scale(trace)


def host_scale(trace: Trace) -> float:
    """How much an event cost on this host, compared with the reference; 1 when unknown.

    Only CUDA's launches were calibrated.
    """
    if trace.header.vendor != "nvidia":
        return 1.0
    launches = trace.column("dur_ns")[_measured_launches(trace)]
    if launches.size < _ENOUGH_LAUNCHES:
        return 1.0
    ratio = float(np.median(launches)) / _REFERENCE_LAUNCH_NS
    return float(np.clip(ratio**_LAUNCH_POWER, *_SCALES))


def _measured_launches(trace: Trace) -> npt.NDArray[np.bool_]:
    """Launches that are alike in all recordings.

    The driver's own launches (Triton's kernels) are shorter, and the runtime's that contain
    one are longer, so where the driver's were recorded only `cudaLaunchKernel` counts.
    """
    launch = trace.column("kind") == Kind.LAUNCH
    name_id = trace.column("name_id")
    plain = np.array([n == "cudaLaunchKernel" for n in trace.names] + [False])[name_id] & launch
    driver = np.array([is_driver_call(n) for n in trace.names] + [False])[name_id] & launch
    return np.asarray(plain if driver.any() and plain.sum() >= _ENOUGH_LAUNCHES else launch)


def _inductor_kernels(trace: Trace) -> IntArray:
    """Rows of the operators that stand for one launch of a kernel of Inductor."""
    flags = np.array([is_inductor_kernel(n) for n in trace.names] + [False])
    return np.flatnonzero(flags[trace.column("name_id")] & (trace.column("kind") == Kind.CPU_OP))


def _builtin_calls(trace: Trace) -> npt.NDArray[np.bool_]:
    """Rows of Python frames that are functions of C code."""
    flags = trace.name_flags(is_builtin)
    python = trace.column("kind") == Kind.PYTHON
    return np.asarray(python & flags[trace.column("name_id")])


def profiler_time(trace: Trace) -> Intervals:
    """Host time inside the profiler itself, such as `profile.step`, where frames were recorded."""
    flags = trace.name_flags(is_profiler_step)
    rows = np.flatnonzero(flags[trace.column("name_id")] & (trace.column("kind") == Kind.PYTHON))
    ts = trace.column("ts_ns")[rows]
    return union(ts, ts + trace.column("dur_ns")[rows])
