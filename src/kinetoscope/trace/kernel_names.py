"""Kernel name -> family. Names change with every release, so the table is data.

Each entry says where its spelling comes from. Order matters: the first match wins, therefore
what is specific (attention, convolution) stands before what is general (gemm, elementwise).
Only the part of a demangled name that says what the kernel does is looked at.
"""

from __future__ import annotations

import re

from kinetoscope.trace.kinds import Family

__all__ = ["is_persistent_kernel", "is_split_k", "kernel_family"]

_TABLE: tuple[tuple[Family, str], ...] = (
    # Inductor names its kernels triton_{poi,red,per,tem,for}_fused_...
    (
        Family.FUSED,
        r"^triton_(?!.*(mm|bmm|conv|attention)_?\d*$)(poi|red|per|for|fused|mix|cooperative)",
    ),
    # FlashAttention, cuDNN SDPA, PyTorchMemEffAttention, FlashInfer, TRT-LLM fmha, CK fmha, vLLM.
    (
        Family.ATTENTION,
        (
            r"flash_?(fwd|bwd|attn|attention|_fprop|_bprop|mla)|_sdpa_|fmha|attention_?(kernel|fwd|bwd)"
            r"|AttentionKernel|AttentionBackwardKernel|^attn_(fwd|bwd)|unified_attention|paged_attention"
            r"|_attn_(fwd|bwd)|mha_(fwd|bwd|varlen)|BatchDecodeWith|BatchPrefillWith|triton_tem_\w*attention"
            r"|flex_attention|mla_(decode|kernel|fwd)|kn_mla|cudnn::fusion::(compute_dot_do_o|convert_dq)"
            r"|_fwd_grouped_kernel|lightning_attn"
        ),
    ),
    # at::native optimizer kernels: multi_tensor_apply with a functor, and Apex/bitsandbytes.
    (
        Family.OPTIMIZER,
        (
            r"Fused(Adam|SGD|Adagrad)|fused_adam|AdamFunctor|AdamW|SGDFunctor|multi_tensor_(adam|sgd|lamb)"
            r"|LAMB|kOptimizer|adagrad_.*(split|kernel)|shampoo|lars_"
        ),
    ),
    # cuDNN layout changes around NHWC kernels; MIOpen's batched transposes.
    (
        Family.LAYOUT,
        (
            r"nchwToNhwc|nhwcToNchw|nchwToFoldedNhwc|foldedNhwc|batched_transpose|transpose_(NCHW|CNHW)"
            r"|transpose_readWrite|nhwcAddPadding|nhwcAddPaddingKernel|tensorTransformGeneric"
            r"|SubTensorOpWithCastTensor"
        ),
    ),
    # cuDNN, CUTLASS conv, MIOpen (igemm_fwd_gtcx, gfx winograd, ck grouped_conv), XLA-style names.
    (
        Family.CONV,
        (
            r"fprop|dgrad|wgrad|implicit_(gemm|convolve)|implicitgemm|winograd|igemm_(fwd|bwd|wrw)"
            r"|scudnn|hcudnn|cudnn\w*::cnn|conv(olution|_depthwise|2d|3d|1d)|grouped_conv|miopen\w*Conv"
            r"|Im2Col|im2col|col2im|depthwise|gridwise_convolution|ImplicitGemm|dconv|naive_conv"
            r"|compute\w*Offsets(Kernel)?|xdlops_bwd_weight|vol2col|scalePackedTensor"
        ),
    ),
    # cuDNN RNN and at::native's fused cells.
    (Family.RNN, r"RNN_|LSTM|GRU|lstm_cell|gru_cell|elemWiseRNN|persistRNN"),
    (Family.FFT, r"(^|[^a-z])fft\d?|regular_fft|vector_fft|fft2d|bluestein|_fft_"),
    # cuBLAS(Lt), nvjet, CUTLASS, xmma, hipBLASLt/Tensile (Cijk), CK, oneDNN, DeepGEMM, Marlin, MoE.
    (
        Family.GEMM,
        (
            r"gemm|gemv|nvjet|^Cijk_|^Custom_Cijk|xmma|cutlass.*Kernel|splitK|split_?k_?reduce|cublas"
            r"|_matmul|matmul_|^bmm_|triton_(tem|mm|bmm)|triton_\w*_mm|wvSplitK|marlin|fused_moe|moe_mxgemm"
            r"|\bdot_kernel|reduce_1Block_kernel|dot_product|trsm|syrk|hgemm|sgemm|wmma|s\d+gemm|LLMM1"
        ),
    ),
    (
        Family.NORM,
        (
            r"layer_?norm|LayerNorm|batch_?norm|BatchNorm|group_?norm|GroupNorm|RowwiseMoments|rms_?norm"
            r"|RMSNorm|Rmsnorm|bn_(fw|bw)_|\bbn_|GammaBeta|GradInput\w*Norm|instance_norm|l2_?norm"
            r"|cudnn_bn|MIOpenBatchNorm|ComputeFusedParams|ComputeInternalGradients|weight_norm"
        ),
    ),
    (Family.SOFTMAX, r"soft_?max|SoftMax|log_softmax|cross_entropy|nll_loss|ClassNLLCriterion"),
    (
        Family.POOL,
        r"max_pool|avg_pool|average_pool|MaxPool|AvgPool|adaptive_\w*pool|pooling|upsample|grid_sampl",
    ),
    # cuRAND and the Philox kernels of at::native; dropout draws random numbers.
    (
        Family.RANDOM,
        r"distribution_|philox|curand|dropout|bernoulli|randperm|generate_seed|rocrand",
    ),
    # Position encodings and masks that only look like lookups.
    (
        Family.ELEMENTWISE,
        r"rotary|\brope_|RoPE|elementwise_kernel_with_index|masked_fill|masked_scale",
    ),
    # Gather, scatter, embedding, sorting (cub/rocprim radix sort), top-k, masks.
    (
        Family.INDEX,
        (
            r"index|gather|scatter|embedding|Embedding|radix|sort|Sort|topk|TopK|top_k|bitonic|masked_|nonzero"
            r"|write_indices|unique|permute_\w*(data|lengths|indices|weights|embs)|compute_grad_weight|sum_and_scatter|krn_partial"
            r"|find_long_segments|compute_\w*segment|DeviceSelect|DeviceCompact|DevicePartition|reshape_and_cache"
            r"|store_kvcache|kv_indices|page_indices|searchsorted|bucketize|_routing_|bounds_check|segment"
        ),
    ),
    # Copies and casts: at::native::*_copy_kernel_cuda, CatArrayBatchedCopy, fbgemm casts.
    (
        Family.COPY,
        (
            r"copy_kernel|CatArray|copy_device_to_device|direct_copy|split_with_sizes_copy|chunk_cat"
            r"|CopyDevice|__amd_rocclr_copy|\bcopy_|_to_copy|transpose_kernel|tensor_?transpose|memcpy"
        ),
    ),
    # at::native::reduce_kernel and CUB reductions, scans, norms over tensor lists.
    (
        Family.REDUCTION,
        (
            r"reduce_kernel|reduce|Reduce|reduction|scan|Scan|cumsum|cumprod|norm_kernel|LpNorm|lpnorm|argmax|argmin"
            r"|MeanOps|sum_functor|segment_reduce|histogram|Histogram"
        ),
    ),
    # TensorIterator's kernels, foreach, activations and fills.
    (
        Family.ELEMENTWISE,
        (
            r"elementwise|multi_tensor_apply|BinaryFunctor|UnaryFunctor|FillFunctor|fill|act_and_mul|silu|gelu"
            r"|relu|sigmoid|tanh|rotary|rope|RoPE|tril|triu|arange|clamp|_pad|pad_|bias|Bias|epilogue::impl"
            r"|pointwise|Pointwise|float_to_|_to_float|quant|cast|OpTensor|SubTensorOp|scal_kernel|elemwise|kernelPointwiseApply"
        ),
    ),
    (Family.FUSED, r"^triton_"),
)
_COMPILED = tuple((family, re.compile(pattern)) for family, pattern in _TABLE)
_NOISE = re.compile(r"^void\s+|\(anonymous namespace\)::")


def kernel_family(name: str) -> Family:
    """The family of a compute kernel, `Family.OTHER` when the name tells nothing.

    The argument list behind the template parameters names input types, not the work, and is cut
    off: `max_pool_forward(..., float const*, ...)` must not match on an argument.
    """
    text = _without_arguments(name)
    for family, pattern in _COMPILED:
        if pattern.search(text):
            return family
    return Family.OTHER


def _without_arguments(name: str) -> str:
    text = _NOISE.sub("", name.rpartition("::type ")[2])
    depth = 0
    for match in re.finditer(r"[<>(]", text):
        sign = match.group()
        if sign == "<":
            depth += 1
        elif sign == ">":
            depth -= 1 if text[match.start() - 1] != "-" else 0
        elif (
            depth <= 0 and match.start() > 0 and not text.startswith("operator(", match.start() - 8)
        ):
            return text[: match.start()]
    return text


_PERSISTENT = re.compile(
    # nvjet and CUTLASS's warp-specialised kernels run one block a multiprocessor and loop over
    # tiles; stream-K, FlashAttention 3 and cooperative RNN kernels do so too.
    r"persist|stream_?k|nvjet|warp_?specialized|gmma\w*_ws|cooperative|nccl|rccl|flash.*[Ss]m(90|100)"
    r"|FlashAttnFwdSm90|\bSK\d|_SK\d|_StreamK|deep_gemm",
    re.IGNORECASE,
)


def is_persistent_kernel(name: str) -> bool:
    """Kernels that launch about one block a multiprocessor on purpose."""
    return _PERSISTENT.search(name) is not None


_SPLIT_K = re.compile(r"split_?k|_splitK|reduce_1Block|gemvNSP|gemv", re.IGNORECASE)


def is_split_k(name: str) -> bool:
    """Products whose inner dimension several blocks share, and their reductions."""
    return _SPLIT_K.search(name) is not None
