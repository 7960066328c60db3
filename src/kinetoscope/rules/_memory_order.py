"""Operators whose tensors lie in different memory order."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.cost_args import Args
from kinetoscope.metrics.device_ops import DeviceOps, args_of
from kinetoscope.trace.trace import IntArray


def in_mixed_order(analysis: Analysis, work: DeviceOps, which: IntArray) -> npt.NDArray[np.bool_]:
    """Which of these device events work on tensors whose strides explain that they are slow."""
    result = np.zeros(work.rows.size, dtype=bool)
    for group in work.groups(which):
        result[group] = mixed_order(args_of(analysis.trace, int(work.op[group[0]])))
    return np.asarray(result[which])


def mixed_order(args: Args) -> bool:
    """Do the large tensors lie in different order, or has one no neighbouring elements?"""
    large = max((args.n(i) for i in args.tensors()), default=0)
    orders = set()
    for i in args.tensors():
        shape, strides = args.shape(i), args.strides[i] if i < len(args.strides) else []
        if 2 * args.n(i) < large or not isinstance(strides, list) or len(strides) != len(shape):
            continue
        real = [(s, n) for s, n in zip(strides, shape, strict=True) if n > 1]
        if any(s == 0 for s, _ in real):
            continue
        if real and min(s for s, _ in real) > 1:
            return True
        orders.add(tuple(sorted(range(len(real)), key=lambda d: -real[d][0])))
    return len(orders) > 1


_IMAGES = 4
"""Dimensions: batch, channels, height and width."""


def between_formats(args: Args) -> bool:
    """Does `copy_` turn images from channels-first to channels-last order, or back?

    Those are the two memory formats of tensors with one or more dimensions after the channels;
    convolutions run in either, and what follows has to agree with them.
    """
    strides = [args.strides[i] if i < len(args.strides) else [] for i in (0, 1)]
    if not all(
        isinstance(s, list) and len(s) >= _IMAGES and len(s) == len(args.shape(0)) for s in strides
    ):
        return False
    return {_format(s) for s in strides} == {"first", "last"}


def _format(strides: list[int]) -> str:
    if strides[1] == 1 and strides[-1] > 1:
        return "last"
    return "first" if strides[-1] == 1 and strides[1] > 1 else "other"
