"""What an operator does, by its name: for host-only recordings and for rules about operators."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from kinetoscope.trace.kinds import Family, Kind
from kinetoscope.trace.trace import IntArray, Trace

_PREFIXES = ("aten::", "c10::", "prims::", "quantized::", "mkldnn::", "onednn::")

_BY_NAME: dict[Family, str] = {
    Family.GEMM: (
        "mm addmm bmm baddbmm linear matmul einsum mv addmv dot _scaled_mm _grouped_mm "
        "_addmm_activation mkldnn_linear _linear_pointwise addbmm chain_matmul bilinear"
    ),
    Family.CONV: (
        "convolution _convolution conv1d conv2d conv3d cudnn_convolution miopen_convolution "
        "mkldnn_convolution convolution_backward _convolution_pointwise conv_transpose1d "
        "conv_transpose2d conv_transpose3d cudnn_convolution_transpose thnn_conv2d "
        "_slow_conv2d_forward _slow_conv2d_backward slow_conv3d miopen_depthwise_convolution "
        "_conv_depthwise2d convolution_overrideable"
    ),
    Family.ATTENTION: (
        "scaled_dot_product_attention _scaled_dot_product_flash_attention "
        "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention "
        "_scaled_dot_product_flash_attention_for_cpu _flash_attention_forward "
        "_efficient_attention_forward _scaled_dot_product_flash_attention_backward "
        "_scaled_dot_product_efficient_attention_backward _flash_attention_backward "
        "_efficient_attention_backward _scaled_dot_product_cudnn_attention_backward "
        "_scaled_dot_product_flash_attention_for_cpu_backward"
    ),
    Family.RNN: (
        "lstm gru rnn_tanh rnn_relu _cudnn_rnn _cudnn_rnn_backward miopen_rnn mkldnn_rnn_layer"
    ),
    Family.FFT: "_fft_r2c _fft_c2c _fft_c2r fft_fft fft_rfft fft_ifft stft",
    Family.NORM: (
        "layer_norm native_layer_norm native_layer_norm_backward batch_norm native_batch_norm "
        "native_batch_norm_backward cudnn_batch_norm cudnn_batch_norm_backward group_norm "
        "native_group_norm native_group_norm_backward _fused_rms_norm rms_norm "
        "_batch_norm_impl_index miopen_batch_norm instance_norm "
        "_batch_norm_with_update batch_norm_backward"
    ),
    Family.SOFTMAX: (
        "softmax _softmax _softmax_backward_data log_softmax _log_softmax "
        "_log_softmax_backward_data _safe_softmax"
    ),
    Family.COPY: (
        "copy_ _to_copy to clone contiguous cat stack _copy_from constant_pad_nd pad repeat "
        "expand_copy"
    ),
    Family.INDEX: (
        "index index_put_ _index_put_impl_ index_select index_add_ gather scatter_ scatter_add_ "
        "embedding embedding_dense_backward embedding_bag _embedding_bag nonzero masked_select "
        "sort topk unique _unique2 take where index_copy_ scatter_reduce_ argsort"
    ),
    Family.REDUCTION: (
        "sum mean amax amin max min norm linalg_vector_norm prod var std var_mean std_mean argmax "
        "argmin cumsum any all nll_loss_forward nll_loss_backward logsumexp cross_entropy_loss"
    ),
    Family.ELEMENTWISE: (
        "add add_ sub sub_ mul mul_ div div_ relu relu_ gelu silu sigmoid tanh exp log sqrt rsqrt "
        "pow neg abs clamp clamp_ clamp_min threshold_backward gelu_backward silu_backward "
        "sigmoid_backward tanh_backward leaky_relu hardtanh addcmul addcdiv addcmul_ addcdiv_ "
        "lerp lerp_ masked_fill masked_fill_ where sin cos erf reciprocal maximum minimum "
        "native_dropout dropout mish softplus elu hardswish fill_ zero_ eq ne lt gt le ge "
        "logical_and logical_or logical_not bitwise_and bitwise_or isnan isfinite rsub remainder "
        "fmod round floor ceil sign square native_dropout_backward log2 log10 log1p exp2 expm1 "
        "clamp_max sgn relu6 trunc frac tan sinh cosh asin acos atan asinh acosh atanh erfc erfinv "
        "selu celu logit nan_to_num hardsigmoid threshold hypot atan2 xlogy logaddexp true_divide "
        "floor_divide fmax fmin bitwise_xor bitwise_not logical_xor isinf leaky_relu_backward "
        "hardtanh_backward elu_backward softplus_backward mish_backward hardswish_backward "
        "hardsigmoid_backward log_sigmoid_forward log_sigmoid_backward _prelu_kernel"
    ),
    Family.RANDOM: (
        "randn rand normal_ uniform_ random_ bernoulli_ randint randperm exponential_ multinomial "
        "randn_like rand_like bernoulli"
    ),
    Family.POOL: (
        "max_pool2d max_pool2d_with_indices max_pool2d_with_indices_backward avg_pool2d "
        "avg_pool2d_backward adaptive_avg_pool2d _adaptive_avg_pool2d mkldnn_max_pool2d "
        "_adaptive_avg_pool2d_backward upsample_bilinear2d upsample_nearest2d max_pool1d "
        "upsample_nearest2d_backward upsample_bilinear2d_backward grid_sampler_2d"
    ),
}
_FAMILY = {name: family for family, names in _BY_NAME.items() for name in names.split()}


def short_name(name: str) -> str:
    """`aten::add_` -> `add_`; other names stay."""
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            return name[len(prefix) :]
    return name


def op_family(name: str) -> Family:
    """Family of an operator; NONE for views, factories and everything that is not an operator."""
    short = short_name(name)
    if short.startswith(("_foreach_", "_fused_")):
        return Family.OPTIMIZER
    found = _FAMILY.get(short, Family.NONE)
    if found is Family.NONE and _FAMILY.get(short.removesuffix("_")) is Family.ELEMENTWISE:
        return Family.ELEMENTWISE
    return found


def op_rows(trace: Trace, test: Callable[[str], bool]) -> IntArray:
    """Rows of the operators whose short name passes a test, in time order."""
    named = trace.name_flags(lambda name: test(short_name(name)))[trace.column("name_id")]
    return np.flatnonzero(named & (trace.column("kind") == Kind.CPU_OP))


def op_families(trace: Trace) -> npt.NDArray[np.uint8]:
    """Family of each name of the pool, as if it were an operator's; index with `name_id`."""
    return np.fromiter((op_family(name) for name in trace.names), np.uint8, len(trace.names))
