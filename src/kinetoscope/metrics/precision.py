"""Element types of tensors, and which of a device's arithmetic units works on them.

The two differ: float32 matrices are multiplied either by the vector units or, as TF32, by the
matrix units at several times the rate. Only the name of the kernel tells which.
"""

from __future__ import annotations

import re
from enum import IntEnum

__all__ = [
    "FLOATING",
    "Dtype",
    "Math",
    "Unit",
    "dtype_of",
    "element_size",
    "list_element",
    "math_of",
    "unit",
]


class Dtype(IntEnum):
    """Element type of a tensor as recorded; UNKNOWN also for what is no tensor."""

    UNKNOWN = 0
    FP64 = 1
    FP32 = 2
    FP16 = 3
    BF16 = 4
    FP8 = 5
    FP4 = 6
    """Two elements a byte; the recorded shape counts bytes."""
    INT64 = 7
    INT32 = 8
    INT16 = 9
    INT8 = 10
    BOOL = 11
    COMPLEX32 = 12
    COMPLEX64 = 13
    COMPLEX128 = 14


FLOATING = (Dtype.FP64, Dtype.FP32, Dtype.FP16, Dtype.BF16)
"""Types of activations, as programs cast them to one another."""


class Math(IntEnum):
    """The peak rate that bounds an operation: keys of `Peaks.tflops`."""

    UNKNOWN = 0
    FP64 = 1
    FP64_MATRIX = 2
    FP32 = 3
    FP32_MATRIX = 4
    """float32 in the matrix units of CDNA devices."""
    TF32 = 5
    BF16 = 6
    FP16 = 7
    FP8 = 8
    FP4 = 9
    INT8 = 10


_NAMES = {
    "double": Dtype.FP64,
    "float": Dtype.FP32,
    "c10::Half": Dtype.FP16,
    "c10::BFloat16": Dtype.BF16,
    "c10::Float4_e2m1fn_x2": Dtype.FP4,
    "long int": Dtype.INT64,
    "long": Dtype.INT64,
    "long long": Dtype.INT64,
    "unsigned long": Dtype.INT64,
    "unsigned long int": Dtype.INT64,
    "int": Dtype.INT32,
    "unsigned int": Dtype.INT32,
    "short": Dtype.INT16,
    "short int": Dtype.INT16,
    "unsigned short": Dtype.INT16,
    "short unsigned int": Dtype.INT16,
    "signed char": Dtype.INT8,
    "unsigned char": Dtype.INT8,
    "char": Dtype.INT8,
    "c10::qint8": Dtype.INT8,
    "c10::quint8": Dtype.INT8,
    "c10::qint32": Dtype.INT32,
    "bool": Dtype.BOOL,
    "c10::complex<c10::Half>": Dtype.COMPLEX32,
    "c10::complex<float>": Dtype.COMPLEX64,
    "c10::complex<double>": Dtype.COMPLEX128,
}
_SIZES = {
    Dtype.FP64: 8,
    Dtype.FP32: 4,
    Dtype.FP16: 2,
    Dtype.BF16: 2,
    Dtype.FP8: 1,
    Dtype.FP4: 1,
    Dtype.INT64: 8,
    Dtype.INT32: 4,
    Dtype.INT16: 2,
    Dtype.INT8: 1,
    Dtype.BOOL: 1,
    Dtype.COMPLEX32: 4,
    Dtype.COMPLEX64: 8,
    Dtype.COMPLEX128: 16,
}


def dtype_of(text: str) -> Dtype:
    """The type behind one entry of `Input type`; UNKNOWN for scalars, lists and nothing."""
    if text.startswith("c10::Float8_"):
        return Dtype.FP8
    return _NAMES.get(text, Dtype.UNKNOWN)


def element_size(dtype: Dtype) -> int:
    """Bytes of one element, 0 when unknown."""
    return _SIZES.get(dtype, 0)


_SCALAR = r"(double|float|c10::Half|c10::BFloat16|long|int|short|bool|signed char|unsigned char)\b"
_LIST_KERNEL = re.compile(
    # at::native: multi_tensor_apply_kernel<TensorListMetadata<2>, UnaryOpFunctor<float, ...
    rf"(?:multi_tensor_apply_kernel.*?Functor<{_SCALAR})"
    # CatArrayBatchedCopy_contig<at::native::OpaqueType<2u>, ... or CatArrayBatchedCopy<float, ...
    rf"|(?:CatArrayBatchedCopy\w*<(?:(?:[\w:]|\(anonymous namespace\))*OpaqueType<(\d+)|{_SCALAR}))"
)


def list_element(kernel: str) -> tuple[Dtype, int]:
    """Type and bytes of the elements of the tensor lists that a kernel works on.

    The recording gives the shapes of lists but not their types; the kernels of `_foreach_*`,
    fused optimizers and `cat` carry them in their template arguments. (UNKNOWN, 0) if not.
    """
    match = _LIST_KERNEL.search(kernel)
    if match is None:
        return Dtype.UNKNOWN, 0
    if match[2]:
        return Dtype.UNKNOWN, int(match[2])
    dtype = dtype_of(match[1] or match[3])
    return dtype, element_size(dtype)


class Unit(IntEnum):
    """Which units a matrix kernel uses, as a bit set."""

    VECTOR = 0
    TF32 = 1
    FP64_MATRIX = 2
    FP32_MATRIX = 4


#: Spellings of cuBLAS(Lt), cuDNN, CUTLASS, xformers, hipBLASLt, CK and MIOpen. A float32 kernel of
#: nvjet or of warp-group MMA is TF32: those have no float32 path.
_MATRIX_UNITS: tuple[tuple[Unit, re.Pattern[str]], ...] = (
    (
        Unit.TF32,
        re.compile(
            r"tf32|tfloat32|s1688|tensorop_s\d|nvjet|tensor16x8x8|wgmma|xf32|_S_X32"
            r"|fmha_cutlass[FB]_f32_aligned\w*_sm(80|90)"
        ),
    ),
    (
        Unit.FP64_MATRIX,
        # xmma: 57 TFLOP/s on an H200, whose vector units reach 33.5.
        re.compile(
            r"tensorop_d|d884|d16\d+gemm|dmma|xmma_gemm_f64f64|nvjet|_MI\d+x\d+|xdl|tensor8x8x4"
        ),
    ),
    (Unit.FP32_MATRIX, re.compile(r"^(Custom_)?Cijk_|_MI\d+x\d+|xdl|gtcx|mfma")),
)


def unit(kernel: str) -> int:
    """Bit set of `Unit` for a kernel name; 0: nothing in it speaks of matrix units."""
    return sum(flag for flag, pattern in _MATRIX_UNITS if pattern.search(kernel))


_PLAIN = {
    Dtype.FP64: Math.FP64,
    Dtype.COMPLEX128: Math.FP64,
    Dtype.UNKNOWN: Math.UNKNOWN,
}
_MATRIX = {
    Dtype.FP16: Math.FP16,
    Dtype.COMPLEX32: Math.FP16,
    Dtype.BF16: Math.BF16,
    Dtype.FP8: Math.FP8,
    Dtype.FP4: Math.FP4,
    Dtype.INT8: Math.INT8,
}


def math_of(dtype: Dtype, units: int, *, matrix: bool) -> Math:
    """The rate that bounds an operation.

    Args:
        dtype: element type of the inputs.
        units: `unit` of its kernels.
        matrix: whether it is a matrix product, a convolution or an attention. Everything else
            is computed by the vector units, in float32 for the half types.
    """
    if not matrix:
        return _PLAIN.get(dtype, Math.FP32)
    if dtype in _MATRIX:
        return _MATRIX[dtype]
    if dtype in (Dtype.FP64, Dtype.COMPLEX128):
        return Math.FP64_MATRIX if units & Unit.FP64_MATRIX else Math.FP64
    if dtype in (Dtype.FP32, Dtype.COMPLEX64):
        if units & Unit.TF32:
            return Math.TF32
        return Math.FP32_MATRIX if units & Unit.FP32_MATRIX else Math.FP32
    return _PLAIN.get(dtype, Math.FP32)
