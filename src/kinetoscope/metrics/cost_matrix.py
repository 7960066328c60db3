"""FLOP and bytes of matrix products, convolutions and attention, from shapes.

The formulas count multiplications and additions of the textbook algorithm. Winograd and FFT
convolutions do fewer, so that a kernel may look faster than the device.
"""

from __future__ import annotations

import re
from math import prod

from kinetoscope.metrics.cost_args import Args, Cost, Formula, NotRecordedError, Op, Shape
from kinetoscope.metrics.precision import Dtype, element_size

__all__ = ["MATRIX_OPS"]

_COMPLEX = (Dtype.COMPLEX32, Dtype.COMPLEX64, Dtype.COMPLEX128)


def _product(
    args: Args, a: int, b: int, *, dims: tuple[int, int, int, int], extra: float = 0, out: int = 0
) -> Cost:
    """Cost of `batch` products [m,k] x [k,n] of tensors `a` and `b`.

    Args:
        args: the operator's arguments.
        a: position of the left factor.
        b: position of the right factor.
        dims: m, n, k, batch.
        extra: FLOP beyond the product.
        out: bytes of an element of the result, 0: that of `a`.
    """
    m, n, k, batch = dims
    dtype = args.dtype(a)
    if dtype is Dtype.FP4:  # the recorded shape counts bytes
        k *= 2
    flop = 2.0 * batch * m * n * k * (4 if dtype in _COMPLEX else 1) + extra
    written = batch * m * n * (out or args.size(a))
    return Cost(flop, args.bytes(a) + args.bytes(b) + written, dtype, True, (m, n, k, batch))


def _mm(args: Args, *, a: int = 0, bias: int = -1) -> Cost:
    """[M,K] x [K,N]: 2MNK, and MN for a bias."""
    m, k = args.matrix(a, 2)
    n = args.matrix(a + 1, 2)[1]
    cost = _product(args, a, a + 1, dims=(m, n, k, 1), extra=m * n if bias >= 0 else 0)
    return cost._replace(bytes=cost.bytes + args.bytes(bias))


def _bmm(args: Args, *, a: int = 0, bias: int = -1) -> Cost:
    """[B,M,K] x [B,K,N]: 2BMNK, and BMN for what is added."""
    batch, m, k = args.matrix(a, 3)
    n = args.matrix(a + 1, 3)[2]
    extra = batch * m * n if bias >= 0 else 0
    cost = _product(args, a, a + 1, dims=(m, n, k, batch), extra=extra)
    return cost._replace(bytes=cost.bytes + args.bytes(bias))


def _mv(args: Args, *, a: int = 0) -> Cost:
    """[M,K] x [K]: 2MK."""
    m, k = args.matrix(a, 2)
    return _product(args, a, a + 1, dims=(m, 1, k, 1))


def _dot(args: Args) -> Cost:
    """[K] x [K]: 2K."""
    (k,) = args.matrix(0, 1)
    return _product(args, 0, 1, dims=(1, 1, k, 1))


def _linear(args: Args) -> Cost:
    """[*,K] x [N,K]."""
    x, (n, k) = args.shape(0), args.matrix(1, 2)
    m = prod(x[:-1])
    bias = args.bytes(2)
    cost = _product(args, 0, 1, dims=(m, n, k, 1), extra=m * n if bias else 0)
    return cost._replace(bytes=cost.bytes + bias)


def _matmul(args: Args) -> Cost:
    """[*,M,K] x [*,K,N] with broadcasting; a vector is a matrix of one row or column."""
    left, right = args.shape(0), args.shape(1)
    if not left or not right:
        raise NotRecordedError
    left = (1, *left) if len(left) == 1 else left
    right = (*right, 1) if len(right) == 1 else right
    batch = prod(broadcast(left[:-2], right[:-2]))
    return _product(args, 0, 1, dims=(left[-2], right[-1], left[-1], batch))


#: `c10::ScalarType` of float32, float16, bfloat16: what `out_dtype` holds.
_OUT_DTYPES = {"6": Dtype.FP32, "5": Dtype.FP16, "15": Dtype.BF16}


def _scaled_mm(args: Args) -> Cost:
    """fp8 or fp4 product with its own output type; bf16 when the recording does not say."""
    m, k = args.matrix(0, 2)
    n = args.matrix(1, 2)[1]
    out = next((_OUT_DTYPES[t] for t in map(args.text, (6, 7)) if t in _OUT_DTYPES), Dtype.BF16)
    return _product(args, 0, 1, dims=(m, n, k, 1), out=element_size(out))


def _int_mm(args: Args) -> Cost:
    """int8 product with an int32 result."""
    m, k = args.matrix(0, 2)
    return _product(args, 0, 1, dims=(m, args.matrix(1, 2)[1], k, 1), out=4)


def _grouped_mm(args: Args) -> Cost:
    """Products of the groups' rows, [M,K] x [G,K,N]: 2MKN; the groups share M.

    With two 2-d factors the groups share K and the result is [G,M,N].
    """
    a, b = args.shape(0), args.shape(1)
    if len(a) == 3 and len(b) == 3:
        return _bmm(args)
    out = 2 if args.dtype(0) is Dtype.FP8 else 0
    if len(a) == 2 and len(b) == 3:
        return _product(args, 0, 1, dims=(a[0], b[2], a[1], 1), out=out)
    if len(a) == 3 and len(b) == 2:
        return _product(args, 0, 1, dims=(a[1], b[1], a[2], 1), out=out)
    if len(a) != 2 or len(b) != 2:
        raise NotRecordedError
    groups = next((args.n(i) for i in (2, 3, 4) if args.dtype(i) is Dtype.INT32), 1)
    cost = _product(args, 0, 1, dims=(a[0], b[1], a[1], 1), out=out)
    written = a[0] * b[1] * (out or args.size(0))
    return cost._replace(bytes=cost.bytes + (groups - 1) * written)


def _out_mm(args: Args) -> Cost:
    """The quantised products of serving engines: out[M,N], a[M,K], b[K,N]."""
    m, k = args.matrix(1, 2)
    return _product(args, 1, 2, dims=(m, args.matrix(0, 2)[1], k, 1), out=args.size(0))


def broadcast(*shapes: Shape) -> Shape:
    """The shape that these broadcast to."""
    rank = max((len(s) for s in shapes), default=0)
    padded = [(1,) * (rank - len(s)) + s for s in shapes]
    return tuple(
        0 if 0 in sizes else max(sizes) for sizes in zip(*padded, strict=True)
    ) if rank else ()


# --- convolution -------------------------------------------------------------------------------


def _conv_cost(args: Args, out: Shape, *, transposed: bool = False) -> Cost:
    """2 x outputs x (inputs of one output): the weight is [Co, Ci/g, *k], transposed [Ci, Co/g, *k].

    A transposed convolution does the work of the forward one with input and output swapped.
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
    args: Args, stride: list[int], padding: list[int], dilation: list[int], *,
    extra: list[int], groups: int,
) -> Cost:
    x, weight = args.shape(0), args.shape(1)
    sizes = zip(x[2:], weight[2:], stride, padding, dilation, extra, strict=True)
    out = tuple(
        (n - 1) * by - 2 * pad + dil * (k - 1) + more + 1 for n, k, by, pad, dil, more in sizes
    )
    return _conv_cost(args, (x[0], weight[1] * groups, *out), transposed=True)


def _conv_transpose(stride: int, padding: int, dilation: int, *, extra: int, groups: int) -> Formula:
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


# --- attention ---------------------------------------------------------------------------------

_FLOAT = re.compile(r"-?(\d+\.\d*|\.\d+|\d+e-?\d+)(e[+-]?\d+)?$")


def _causal(args: Args) -> bool:
    """Whether a causal mask is set.

    All schemas have `dropout_p` (written with a point) and behind it either `is_causal` or, in
    the memory-efficient operators, `custom_mask_type` (1 or 2 is causal).
    """
    values = [args.text(i) for i in range(len(args.concrete))]
    start = next((i for i, text in enumerate(values) if _FLOAT.match(text)), -1)
    for text in values[start + 1 :]:
        if text in ("True", "1", "2"):
            return True
        if text in ("False", "0"):
            return False
    return False


def _pairs(queries: float, keys: float, *, causal: bool) -> float:
    """Query-key pairs that are not masked, per head and sequence.

    Causal: half when the lengths are equal; otherwise queries are the last ones of the keys.
    """
    if not causal:
        return queries * keys
    if queries == keys:
        return queries * keys / 2
    return queries * keys * max(0.0, 1 - (queries - 1) / (2 * keys)) if keys else 0.0


def _attention(q: int, *, seq_first: bool, backward: bool = False, lengths: int = -1) -> Formula:
    """Formula of a fused attention.

    Args:
        q: position of the query; key and value follow it.
        seq_first: [B,S,H,D] instead of [B,H,S,D].
        backward: five products instead of two, with the scores recomputed.
        lengths: position of `cum_seq_q` for packed sequences [tokens,H,D]. Their true lengths
            are not recorded; equal ones give a lower bound.
    """

    def formula(args: Args) -> Cost:
        batch, heads, sq, sk, d, dv = _attention_dims(args, q, seq_first, lengths)
        pairs = _pairs(sq, sk, causal=_causal(args))
        flop = 2.0 * batch * heads * pairs * (d + dv)
        out_bytes = args.n(q) // max(d, 1) * dv * args.size(q)
        inputs = args.bytes(q) + args.bytes(q + 1) + args.bytes(q + 2)
        statistics = 4.0 * batch * heads * sq
        if backward:
            traffic = 2 * inputs + 2 * out_bytes + statistics
            return Cost(2.5 * flop, traffic, args.dtype(q), True)
        return Cost(flop, inputs + out_bytes + statistics, args.dtype(q), True)

    return formula


def _attention_dims(
    args: Args, q: int, seq_first: bool, lengths: int
) -> tuple[float, int, float, float, int, int]:
    """Batch, query heads, query and key lengths, head sizes of key and value."""
    query, key, value = args.shape(q), args.shape(q + 1), args.shape(q + 2)
    if len(query) == 3 and lengths >= 0 and args.is_tensor(lengths):
        batch = max(args.n(lengths) - 1, 1)
        return batch, query[1], query[0] / batch, key[0] / batch, query[2], value[2]
    if len(query) != 4 or len(key) != 4 or len(value) != 4:
        raise NotRecordedError
    if seq_first and lengths >= 0 and args.is_tensor(lengths) and query[0] == 1:
        batch = max(args.n(lengths) - 1, 1)
        return batch, query[2], query[1] / batch, key[1] / batch, query[3], value[3]
    seq, head = (1, 2) if seq_first else (2, 1)
    return query[0], query[head], query[seq], key[seq], query[3], value[3]


def _addmm(args: Args) -> Cost:
    return _mm(args, a=1, bias=0)


def _baddbmm(args: Args) -> Cost:
    return _bmm(args, a=1, bias=0)


def _addmv(args: Args) -> Cost:
    return _mv(args, a=1)


_CONV = Op(_convolution(3, 4, 5, transposed=6, groups=8), concrete=True)
_CONV_ND = Op(_convolution(3, 4, 5), concrete=True, composite=True)
_CONV_TRANSPOSE_ND = Op(_conv_transpose(3, 4, 7, extra=5, groups=6), concrete=True, composite=True)
_MIOPEN = Op(_convolution(4, 3, 5), concrete=True)


def _sdpa(*, backward: bool = False, composite: bool = False) -> Op:
    return Op(
        _attention(1 if backward else 0, seq_first=False, backward=backward),
        concrete=True,
        composite=composite,
    )


MATRIX_OPS: dict[str, Op] = {
    "aten::mm": Op(_mm),
    "aten::addmm": Op(_addmm),
    "aten::addmm_": Op(_addmm),
    "aten::_addmm_activation": Op(_addmm),
    "aten::bmm": Op(_bmm),
    "aten::baddbmm": Op(_baddbmm),
    "aten::baddbmm_": Op(_baddbmm),
    "aten::mv": Op(_mv),
    "aten::addmv": Op(_addmv),
    "aten::addmv_": Op(_addmv),
    "aten::dot": Op(_dot),
    "aten::vdot": Op(_dot),
    "aten::linear": Op(_linear, composite=True),
    "aten::matmul": Op(_matmul, composite=True),
    "aten::_scaled_mm": Op(_scaled_mm, concrete=True),
    "aten::_int_mm": Op(_int_mm),
    "aten::_grouped_mm": Op(_grouped_mm),
    "aten::_scaled_grouped_mm": Op(_grouped_mm),
    "_C::cutlass_scaled_mm": Op(_out_mm),
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
    "aten::scaled_dot_product_attention": _sdpa(composite=True),
    "aten::_scaled_dot_product_flash_attention": _sdpa(composite=True),
    "aten::_scaled_dot_product_efficient_attention": _sdpa(composite=True),
    "aten::_scaled_dot_product_cudnn_attention": _sdpa(composite=True),
    "aten::_scaled_dot_product_flash_attention_backward": _sdpa(backward=True, composite=True),
    "aten::_scaled_dot_product_efficient_attention_backward": _sdpa(backward=True, composite=True),
    "aten::_scaled_dot_product_cudnn_attention_backward": _sdpa(backward=True, composite=True),
    "aten::_cudnn_attention_forward": _sdpa(),
    "aten::_cudnn_attention_backward": _sdpa(backward=True),
    "aten::_flash_attention_forward": Op(_attention(0, seq_first=True, lengths=3), concrete=True),
    "aten::_flash_attention_backward": Op(
        _attention(1, seq_first=True, lengths=6, backward=True), concrete=True
    ),
    # (query, key, value, bias, cu_seqlens_q, ...)
    "aten::_efficient_attention_forward": Op(
        _attention(0, seq_first=True, lengths=4), concrete=True
    ),
    # (grad_out, query, key, value, bias, out, cu_seqlens_q, ...)
    "aten::_efficient_attention_backward": Op(
        _attention(1, seq_first=True, lengths=6, backward=True), concrete=True
    ),
    "flash_attn::_flash_attn_forward": Op(_attention(0, seq_first=True), concrete=True),
    "flash_attn::_flash_attn_backward": Op(
        _attention(1, seq_first=True, backward=True), concrete=True
    ),
}
