"""FLOP and bytes of convolutions, from shapes.

The formulas count the textbook algorithm. Winograd and FFT do fewer operations, so that such a
kernel may look faster than the device.
"""

from __future__ import annotations

from math import prod

from kinetoscope.metrics.cost_args import Args, Cost, Formula, NotRecordedError, Op, Shape

__all__ = ["CONV_OPS"]


def _conv_cost(args: Args, out: Shape, *, transposed: bool = False) -> Cost:
    """2 x outputs x (inputs of one output).

    The weight is [Co, Ci/g, *k], of a transposed one [Ci, Co/g, *k]. A transposed convolution
    does the work of the forward one with input and output swapped.
    """
    positions = args.n(0) if transposed else prod(out)
    flop = 2.0 * positions * prod(args.shape(1)[1:])
    written = prod(out) * args.size(0)
    return Cost(flop, args.bytes(0) + args.bytes(1) + written, args.dtype(0), True)


def _convolution(
    stride: int, padding: int, dilation: int, *, transposed: int = -1, groups: int = -1
) -> Formula:
    """Formula of a forward convolution whose schema has these arguments at these positions.

    transposed: position of that flag, -1: never. groups: only needed when transposed.
    """

    def formula(args: Args) -> Cost:
        x, weight = args.shape(0), args.shape(1)
        rank = len(weight) - 2
        if rank < 1 or len(x) != len(weight):
            raise NotRecordedError
        s, d = args.spread(stride, rank, 1), args.spread(dilation, rank, 1)
        p = args.spread(padding, rank, 0)
        if transposed >= 0 and args.text(transposed) == "True":
            extra = args.spread(transposed + 1, rank, 0)
            return _transposed(args, s, p, d, extra=extra, groups=args.spread(groups, 1, 1)[0])
        sizes = zip(x[2:], weight[2:], s, p, d, strict=True)
        out = tuple((n + 2 * pad - dil * (k - 1) - 1) // by + 1 for n, k, by, pad, dil in sizes)
        return _conv_cost(args, (x[0], weight[0], *out))

    return formula


def _transposed(
    args: Args,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    *,
    extra: list[int],
    groups: int,
) -> Cost:
    x, weight = args.shape(0), args.shape(1)
    sizes = zip(x[2:], weight[2:], stride, padding, dilation, extra, strict=True)
    out = tuple(
        (n - 1) * by - 2 * pad + dil * (k - 1) + more + 1 for n, k, by, pad, dil, more in sizes
    )
    return _conv_cost(args, (x[0], weight[1] * groups, *out), transposed=True)


def _conv_transpose(
    stride: int, padding: int, dilation: int, *, extra: int, groups: int
) -> Formula:
    def formula(args: Args) -> Cost:
        rank = len(args.shape(1)) - 2
        if rank < 1 or len(args.shape(0)) != rank + 2:
            raise NotRecordedError
        return _transposed(
            args,
            args.spread(stride, rank, 1),
            args.spread(padding, rank, 0),
            args.spread(dilation, rank, 1),
            extra=args.spread(extra, rank, 0),
            groups=args.spread(groups, 1, 1)[0],
        )

    return formula


def _conv_backward(args: Args) -> Cost:
    """Gradients of input, weight, bias as `output_mask` asks; the first two each cost a forward.

    (grad_out, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding,
    groups, output_mask)
    """
    weight = args.shape(2)
    positions = args.n(1) if args.text(7) == "True" else args.n(0)
    forward = 2.0 * positions * prod(weight[1:])
    mask = [*args.flags(10), True, True, False][:3] if args.text(10) else [True, True, False]
    passes = sum(mask[:2])
    flop = forward * passes + (args.n(0) if mask[2] else 0)
    traffic = passes * (args.bytes(0) + args.bytes(1) + args.bytes(2))
    if not passes and mask[2]:
        traffic = args.bytes(0)
    return Cost(flop, float(traffic), args.dtype(0), True)


_CONV = Op(_convolution(3, 4, 5, transposed=6, groups=8), concrete=True)
_CONV_ND = Op(_convolution(3, 4, 5), concrete=True, composite=True)
_CONV_TRANSPOSE_ND = Op(_conv_transpose(3, 4, 7, extra=5, groups=6), concrete=True, composite=True)
_MIOPEN = Op(_convolution(4, 3, 5), concrete=True)

CONV_OPS: dict[str, Op] = {
    # (input, weight, padding, stride, dilation, groups, ...)
    "aten::cudnn_convolution": Op(_convolution(3, 2, 4), concrete=True),
    # (input, weight, bias, padding, stride, dilation, groups, ...)
    "aten::miopen_convolution": _MIOPEN,
    "aten::miopen_depthwise_convolution": _MIOPEN,
    "aten::mkldnn_convolution": _MIOPEN,
    # (input, weight, bias, stride, padding, dilation, groups)
    "aten::cudnn_convolution_relu": Op(_convolution(3, 4, 5), concrete=True),
    "aten::miopen_convolution_relu": Op(_convolution(3, 4, 5), concrete=True),
    # (input, weight, z, alpha, bias, stride, padding, dilation, groups)
    "aten::cudnn_convolution_add_relu": Op(_convolution(5, 6, 7), concrete=True),
    # (input, weight, kernel_size, bias, stride, padding, dilation)
    "aten::_conv_depthwise2d": Op(_convolution(4, 5, 6), concrete=True),
    "aten::conv_depthwise3d": Op(_convolution(4, 5, 6), concrete=True),
    # (input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
    "aten::convolution": _CONV._replace(composite=True),
    "aten::_convolution": _CONV._replace(composite=True),
    "aten::convolution_overrideable": _CONV,
    # (input, weight, bias, stride, padding, dilation, groups)
    "aten::conv1d": _CONV_ND,
    "aten::conv2d": _CONV_ND,
    "aten::conv3d": _CONV_ND,
    # (input, weight, bias, stride, padding, output_padding, groups, dilation)
    "aten::conv_transpose1d": _CONV_TRANSPOSE_ND,
    "aten::conv_transpose2d": _CONV_TRANSPOSE_ND,
    "aten::conv_transpose3d": _CONV_TRANSPOSE_ND,
    # (input, weight, padding, output_padding, stride, dilation, groups, ...)
    "aten::cudnn_convolution_transpose": Op(
        _conv_transpose(4, 2, 5, extra=3, groups=6), concrete=True
    ),
    # (input, weight, bias, padding, output_padding, stride, dilation, groups, ...)
    "aten::miopen_convolution_transpose": Op(
        _conv_transpose(5, 3, 6, extra=4, groups=7), concrete=True
    ),
    "aten::convolution_backward": Op(_conv_backward, concrete=True),
}
