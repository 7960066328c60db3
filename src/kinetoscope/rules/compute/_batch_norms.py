"""Batch norms of channels-first tensors: channels-last makes them faster as well."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.cost import kernel_costs
from kinetoscope.metrics.cost_args import Args
from kinetoscope.metrics.device_ops import DeviceOps, args_of
from kinetoscope.rules.compute._kernels import peaks
from kinetoscope.trace.trace import IntArray

_BATCH_NORMS = (
    "native_batch_norm",
    "native_batch_norm_backward",
    "_batch_norm_with_update",
    "batch_norm_backward",
)


def slow_batch_norms(
    analysis: Analysis, work: DeviceOps
) -> tuple[IntArray, npt.NDArray[np.float64]]:
    """Batch norms of NCHW tensors, and the time of their traffic at full bandwidth.

    Those give each channel one block of threads, so that a layer with few channels leaves most of
    the device idle; the channels-last kernels do not.
    """
    device, costs = peaks(analysis), analysis.get(kernel_costs)
    none = np.empty(0, dtype=np.int64), np.empty(0)
    if device is None or costs.rows.size == 0:
        return none
    named = np.flatnonzero(work.named(*_BATCH_NORMS))
    mine = [g for g in work.groups(named) if _is_nchw(args_of(analysis.trace, int(work.op[g[0]])))]
    if not mine:
        return none
    index = np.concatenate(mine)
    at = np.minimum(np.searchsorted(costs.rows, work.rows[index]), costs.rows.size - 1)
    known = (costs.rows[at] == work.rows[index]) & (costs.bytes[at] >= 0)
    return index[known], costs.bytes[at[known]] / device.achievable_bytes_per_ns


def _is_nchw(args: Args) -> bool:
    shape = args.dims[0] if args.dims else []
    strides = args.strides[0] if args.strides else []
    if not (isinstance(shape, list) and isinstance(strides, list)):
        return False
    return len(shape) >= 4 and len(strides) == len(shape) and strides[1] != 1
