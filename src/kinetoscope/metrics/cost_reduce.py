"""FLOP and bytes of norms, softmax, reductions, losses and pooling."""

from __future__ import annotations

from math import prod

from kinetoscope.metrics.cost_args import Args, Cost, Formula, Op
from kinetoscope.metrics.precision import Dtype, element_size

__all__ = ["REDUCE_OPS"]

_OUT_SIZES = {"5": 2, "15": 2, "6": 4, "7": 8}
"""Bytes of an element by `c10::ScalarType`: half, bfloat16, float, double."""


# --- norms and softmax -------------------------------------------------------------------------


def _norm(*, flop: float, parameters: tuple[int, ...], training: int = -1) -> Formula:
    """Reads x, writes y: 2n; batch norm in training reads x a second time for the statistics.

    Args:
        flop: operations an element.
        parameters: positions of the affine parameters and running statistics.
        training: position of that flag, -1: one pass suffices.
    """

    def formula(args: Args) -> Cost:
        n, size = args.n(0), args.size(0)
        passes = 2 if training >= 0 and args.text(training) == "True" else 1
        traffic = passes * args.bytes(0) + n * size + sum(args.bytes(i) for i in parameters)
        return Cost(flop * n, float(traffic), args.dtype(0))

    return formula


def _layer_norm(args: Args) -> Cost:
    """native_layer_norm(x, shape, weight, bias, eps): two float32 statistics a row."""
    n = args.n(0)
    row = prod(args.shape(2)) if args.is_tensor(2) else args.shape(0)[-1] if args.shape(0) else 1
    traffic = args.bytes(0) + n * args.size(0) + args.bytes(2) + args.bytes(3)
    return Cost(8.0 * n, float(traffic + 8 * n // max(row, 1)), args.dtype(0))


def _norm_backward(gradient: int, x: int, parameters: tuple[int, ...]) -> Formula:
    """Reads the gradient and x, writes the gradient of x: 3n; parameters and their gradients."""

    def formula(args: Args) -> Cost:
        n = args.n(x)
        traffic = args.bytes(gradient) + args.bytes(x) + n * args.size(x)
        traffic += 2 * sum(args.bytes(i) for i in parameters)
        return Cost(12.0 * n, float(traffic), args.dtype(x))

    return formula


def _softmax(args: Args) -> Cost:
    """(x, dim, half_to_float): max, subtract, exp, sum, divide; one read, one write."""
    n = args.n(0)
    out = 4 if args.text(2) == "True" else args.size(0)
    return Cost(5.0 * n, float(args.bytes(0) + n * out), args.dtype(0))


def _softmax_backward(args: Args) -> Cost:
    """(grad, output, dim, input_dtype): 3n."""
    n = args.n(0)
    out = _OUT_SIZES.get(args.text(3), args.size(0))
    return Cost(4.0 * n, float(args.bytes(0) + args.bytes(1) + n * out), args.dtype(0))


# --- reductions --------------------------------------------------------------------------------


def _reduction(dims: int, *, flop: float = 1.0, out_size: int = 0) -> Formula:
    """n operations; reads the input, writes what is left of it.

    Args:
        dims: position of the reduced dimensions (a list or a number), -1: all.
        flop: operations an element.
        out_size: bytes of an element of the result, 0: that of the input.
    """

    def formula(args: Args) -> Cost:
        shape = args.shape(0)
        left = 1
        if dims >= 0 and args.text(dims) not in ("", "[]"):
            reduced = {d % len(shape) for d in args.ints(dims)} if shape else set()
            left = prod(size for i, size in enumerate(shape) if i not in reduced)
        written = left * (out_size or args.size(0))
        return Cost(flop * args.n(0), float(args.bytes(0) + written), args.dtype(0))

    return formula


def _scan(args: Args) -> Cost:
    """cumsum and its kin write as much as they read."""
    n = args.n(0)
    return Cost(float(n), float(args.bytes(0) + n * args.size(0)), args.dtype(0))


# --- losses ------------------------------------------------------------------------------------


def _nll(logits: int, target: int) -> Formula:
    """One value and one class index a row; clearing the gradient is an operator of its own."""

    def formula(args: Args) -> Cost:
        rows = args.n(target)
        return Cost(float(rows), float(rows * (args.size(logits) + 8)), args.dtype(logits))

    return formula


def _loss(inputs: int, reduction: int) -> Formula:
    """Element-wise loss with `reduction` 0 (none), 1 (mean) or 2 (sum)."""

    def formula(args: Args) -> Cost:
        n = args.n(0)
        written = n * args.size(0) if args.text(reduction) == "0" else args.size(0)
        read = sum(args.bytes(i) for i in range(inputs))
        return Cost(3.0 * n, float(read + written), args.dtype(0))

    return formula


def _loss_backward(args: Args) -> Cost:
    """(grad, input, target, ...): reads both, writes one."""
    n = args.n(1)
    traffic = args.bytes(0) + args.bytes(1) + args.bytes(2) + n * args.size(1)
    return Cost(2.0 * n, float(traffic), args.dtype(1))


# --- pooling and resampling --------------------------------------------------------------------


def _pool(*, indices: bool) -> Formula:
    """(x, kernel, stride, padding, dilation or ceil_mode, ...): outputs x kernel operations."""

    def formula(args: Args) -> Cost:
        x, kernel = args.shape(0), args.ints(1)
        rank = len(kernel)
        stride = args.spread(2, rank) if args.text(2) not in ("", "[]") else kernel
        padding = args.spread(3, rank, 0)
        dilation = args.spread(4, rank, 1) if indices else [1] * rank
        sizes = zip(x[-rank:], kernel, stride, padding, dilation, strict=True)
        out = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in sizes]
        n_out = prod(x[:-rank]) * prod(out)
        written = n_out * (args.size(0) + (8 if indices else 0))
        return Cost(float(n_out * prod(kernel)), float(args.bytes(0) + written), args.dtype(0))

    return formula


def _pool_backward(args: Args) -> Cost:
    """(grad, x, ..., indices): reads grad and indices, writes the gradient of x."""
    n = args.n(1)
    last = len(args.dims) - 1
    indices = args.bytes(last) if args.dtype(last) is Dtype.INT64 else 0
    return Cost(float(args.n(0)), float(args.bytes(0) + indices + n * args.size(1)), args.dtype(0))


def _resample(args: Args) -> Cost:
    """(x, output_size, ...): the listed sizes are the trailing ones of the output."""
    size = args.ints(1)
    n_out = prod(args.shape(0)[: -len(size)]) * prod(size)
    return Cost(4.0 * n_out, float(args.bytes(0) + n_out * args.size(0)), args.dtype(0))


_BATCH_NORM = Op(_norm(flop=8.0, parameters=(1, 2, 3, 4), training=5), concrete=True)
_SUM = Op(_reduction(1), concrete=True)
_SPREAD = Op(_reduction(1, flop=3.0), concrete=True)
_FLAG = Op(_reduction(1, out_size=element_size(Dtype.BOOL)), concrete=True)
_POSITION = Op(_reduction(1, out_size=element_size(Dtype.INT64)), concrete=True)
_SCAN = Op(_scan)
_SOFTMAX = Op(_softmax, concrete=True)
_SOFTMAX_BACKWARD = Op(_softmax_backward, concrete=True)
_MAX_POOL = Op(_pool(indices=True), concrete=True)
_AVG_POOL = Op(_pool(indices=False), concrete=True)
_RESAMPLE = Op(_resample, concrete=True)

REDUCE_OPS: dict[str, Op] = {
    "aten::native_layer_norm": Op(_layer_norm),
    "aten::_fused_rms_norm": Op(_norm(flop=5.0, parameters=(2,))),
    "aten::native_group_norm": Op(_norm(flop=8.0, parameters=(1, 2))),
    # (x, weight, bias, running_mean, running_var, training, momentum, eps)
    "aten::native_batch_norm": _BATCH_NORM,
    "aten::cudnn_batch_norm": _BATCH_NORM,
    "aten::miopen_batch_norm": _BATCH_NORM,
    "aten::native_layer_norm_backward": Op(_norm_backward(0, 1, (5, 6))),
    "aten::_fused_rms_norm_backward": Op(_norm_backward(0, 1, (4,))),
    "aten::native_group_norm_backward": Op(_norm_backward(0, 1, (4,))),
    "aten::native_batch_norm_backward": Op(_norm_backward(0, 1, (2,))),
    # (x, grad, weight, ...)
    "aten::cudnn_batch_norm_backward": Op(_norm_backward(1, 0, (2,))),
    "aten::miopen_batch_norm_backward": Op(_norm_backward(1, 0, (2,))),
    "aten::_softmax": _SOFTMAX,
    "aten::_log_softmax": _SOFTMAX,
    "aten::_safe_softmax": _SOFTMAX,
    "aten::_softmax_backward_data": _SOFTMAX_BACKWARD,
    "aten::_log_softmax_backward_data": _SOFTMAX_BACKWARD,
    "aten::sum": _SUM,
    "aten::nansum": _SUM,
    "aten::mean": _SUM,
    "aten::prod": _SUM,
    "aten::amax": _SUM,
    "aten::amin": _SUM,
    "aten::max": _SUM,
    "aten::min": _SUM,
    "aten::logsumexp": Op(_reduction(1, flop=5.0), concrete=True, composite=True),
    "aten::norm": Op(_reduction(2, flop=2.0), concrete=True),
    "aten::linalg_vector_norm": Op(_reduction(2, flop=2.0), concrete=True),
    "aten::var": _SPREAD,
    "aten::std": _SPREAD,
    "aten::var_mean": _SPREAD,
    "aten::std_mean": _SPREAD,
    "aten::any": _FLAG,
    "aten::all": _FLAG,
    "aten::argmax": _POSITION,
    "aten::argmin": _POSITION,
    "aten::count_nonzero": _POSITION,
    "aten::cumsum": _SCAN,
    "aten::cumprod": _SCAN,
    "aten::logcumsumexp": _SCAN,
    "aten::nll_loss_forward": Op(_nll(0, 1)),
    "aten::nll_loss2d_forward": Op(_nll(0, 1)),
    "aten::nll_loss_backward": Op(_nll(1, 2)),
    "aten::nll_loss2d_backward": Op(_nll(1, 2)),
    "aten::mse_loss": Op(_loss(2, 2), concrete=True),
    "aten::smooth_l1_loss": Op(_loss(2, 2), concrete=True),
    "aten::huber_loss": Op(_loss(2, 2), concrete=True),
    "aten::binary_cross_entropy": Op(_loss(3, 3), concrete=True),
    "aten::mse_loss_backward": Op(_loss_backward),
    "aten::smooth_l1_loss_backward": Op(_loss_backward),
    "aten::huber_loss_backward": Op(_loss_backward),
    "aten::binary_cross_entropy_backward": Op(_loss_backward),
    "aten::max_pool2d_with_indices": _MAX_POOL,
    "aten::max_pool3d_with_indices": _MAX_POOL,
    "aten::avg_pool2d": _AVG_POOL,
    "aten::avg_pool3d": _AVG_POOL,
    "aten::max_pool2d_with_indices_backward": Op(_pool_backward),
    "aten::max_pool3d_with_indices_backward": Op(_pool_backward),
    "aten::avg_pool2d_backward": Op(_pool_backward),
    "aten::avg_pool3d_backward": Op(_pool_backward),
    "aten::_adaptive_avg_pool2d": _RESAMPLE,
    "aten::_adaptive_avg_pool2d_backward": Op(_pool_backward),
    "aten::upsample_nearest1d": _RESAMPLE,
    "aten::upsample_nearest2d": _RESAMPLE,
    "aten::upsample_nearest3d": _RESAMPLE,
    "aten::upsample_bilinear2d": _RESAMPLE,
    "aten::upsample_bicubic2d": _RESAMPLE,
}
