"""FLOP and bytes of matrix products, from shapes."""

from __future__ import annotations

from math import prod

from kinetoscope.metrics.cost_args import Args, Cost, NotRecordedError, Op, broadcast
from kinetoscope.metrics.precision import Dtype, element_size

__all__ = ["GEMM_OPS"]

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


def _addmm(args: Args) -> Cost:
    return _mm(args, a=1, bias=0)


def _baddbmm(args: Args) -> Cost:
    return _bmm(args, a=1, bias=0)


def _addmv(args: Args) -> Cost:
    return _mv(args, a=1)


GEMM_OPS: dict[str, Op] = {
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
}
