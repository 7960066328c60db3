"""Names and categories -> kinds."""

from __future__ import annotations

import pytest

from kinetoscope.trace.classify import classify, copy_kind, is_communication
from kinetoscope.trace.kernel_names import kernel_family
from kinetoscope.trace.kinds import CopyKind, Family, Kind


def _host(category: str, name: str) -> Kind:
    return classify(category, name, on_device=False)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("cudaLaunchKernel", Kind.LAUNCH),
        ("cudaLaunchKernelExC", Kind.LAUNCH),
        ("cudaLaunchCooperativeKernel", Kind.LAUNCH),
        ("cuLaunchKernelEx", Kind.LAUNCH),
        ("hipExtModuleLaunchKernel", Kind.LAUNCH),
        ("hipExtLaunchKernel", Kind.LAUNCH),
        ("hipModuleLaunchKernel", Kind.LAUNCH),
        ("urEnqueueKernelLaunch", Kind.LAUNCH),
        ("cudaGraphLaunch", Kind.GRAPH_LAUNCH),
        ("cuGraphLaunch", Kind.GRAPH_LAUNCH),
        ("hipGraphLaunch", Kind.GRAPH_LAUNCH),
        ("cudaMemcpyAsync", Kind.COPY_CALL),
        ("cudaMemcpy2DAsync", Kind.COPY_CALL),
        ("cudaMemsetAsync", Kind.COPY_CALL),
        ("cuMemcpyHtoDAsync_v2", Kind.COPY_CALL),
        ("hipMemcpyWithStream", Kind.COPY_CALL),
        ("urEnqueueUSMMemcpy", Kind.COPY_CALL),
        ("cudaStreamSynchronize", Kind.SYNC_CALL),
        ("cudaDeviceSynchronize", Kind.SYNC_CALL),
        ("cudaEventSynchronize", Kind.SYNC_CALL),
        ("cuCtxSynchronize", Kind.SYNC_CALL),
        ("cudaMalloc", Kind.ALLOC_CALL),
        ("cudaMallocAsync", Kind.ALLOC_CALL),
        ("cuMemCreate", Kind.ALLOC_CALL),
        ("cuMemMap", Kind.ALLOC_CALL),
        ("cudaHostAlloc", Kind.ALLOC_CALL),
        ("hipMalloc", Kind.ALLOC_CALL),
        ("hipHostMalloc", Kind.ALLOC_CALL),
        ("cudaFree", Kind.FREE_CALL),
        ("cudaFreeHost", Kind.FREE_CALL),
        ("cuMemUnmap", Kind.FREE_CALL),
        ("hipFree", Kind.FREE_CALL),
        ("cudaEventRecord", Kind.RUNTIME),
        ("cudaEventQuery", Kind.RUNTIME),
        ("cudaStreamWaitEvent", Kind.RUNTIME),
        ("cudaStreamIsCapturing", Kind.RUNTIME),
        ("cudaFuncGetAttributes", Kind.RUNTIME),
        ("cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags", Kind.RUNTIME),
        ("INVALID", Kind.RUNTIME),
    ],
)
def test_runtime(name: str, kind: Kind) -> None:
    assert _host("cuda_runtime", name) is kind


@pytest.mark.parametrize(
    ("category", "name", "kind"),
    [
        ("cpu_op", "aten::mm", Kind.CPU_OP),
        ("cpu_op", "autograd::engine::evaluate_function: AddBackward0", Kind.CPU_OP),
        ("cpu_op", "c10d::allreduce_", Kind.HOST_COLLECTIVE),
        ("cpu_op", "record_param_comms", Kind.HOST_COLLECTIVE),
        ("user_annotation", "nccl:all_reduce", Kind.HOST_COLLECTIVE),
        ("user_annotation", "gloo:all_reduce", Kind.HOST_COLLECTIVE),
        ("user_annotation", "ProfilerStep#12", Kind.STEP),
        ("user_annotation", "ProfilerStepper", Kind.ANNOTATION),
        (
            "user_annotation",
            "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
            Kind.LOADER,
        ),
        ("cpu_op", "enumerate(DataPipe)#MapperIterDataPipe", Kind.LOADER),
        ("user_annotation", "Optimizer.step#AdamW.step", Kind.ANNOTATION),
        ("user_annotation", "DistributedDataParallel.forward", Kind.ANNOTATION),
        ("cpu_op", "entire_frame_compile", Kind.COMPILE),
        ("cpu_op", "_compile.compile_inner (dynamo_timed)", Kind.COMPILE),
        ("cpu_op", "backend_compile", Kind.COMPILE),
        ("cpu_op", "inductor_compile", Kind.COMPILE),
        ("cpu_op", "CachingAutotuner.benchmark_all_configs", Kind.COMPILE),
        ("cpu_op", "async_compile.wait", Kind.COMPILE),
        ("user_annotation", "dynamo_data: compile_id=0/0", Kind.COMPILE),
        ("cpu_op", "Torch-Compiled Region: 0/0", Kind.CPU_OP),
        ("cpu_op", "TorchDynamo Cache Lookup", Kind.CPU_OP),
        ("user_annotation", "## Call CompiledFxGraph fabc ##", Kind.ANNOTATION),
        ("cpu_op", "gc (dynamo_timed)", Kind.GC),
        ("python_function", "Python GC", Kind.GC),
        ("python_function", "nn.Module: Linear_0", Kind.MODULE),
        ("python_function", "train.py(10): main", Kind.PYTHON),
        ("python_function", "/x/triton/compiler/compiler.py(226): compile", Kind.COMPILE),
        ("python_function", "<built-in function compile>", Kind.PYTHON),
        ("overhead", "Activity Buffer Request", Kind.OVERHEAD),
        ("mtia_runtime", "anything", Kind.RUNTIME),
        ("unheard_of", "x", Kind.OTHER),
    ],
)
def test_host(category: str, name: str, kind: Kind) -> None:
    assert _host(category, name) is kind


@pytest.mark.parametrize(
    ("name", "yes"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", True),
        ("nccldevkernel_Generic", True),
        ("rcclGenericKernel", True),
        ("oneccl_allreduce", True),
        ("hccl_all_reduce", True),
        ("void vllm::cross_device_reduce_1stage<float, 8>(x)", True),
        ("void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(x)", True),
        ("one_shot_all_reduce_kernel", True),
        ("two_shot_all_reduce_kernel_inplace", True),
        ("void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport", True),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(x)", False),
        ("cublasLt::splitKreduce_kernel<32, 16>(x)", False),
    ],
)
def test_communication(name: str, yes: bool) -> None:
    assert is_communication(name) is yes
    assert classify("kernel", name, on_device=True) is (Kind.COLLECTIVE if yes else Kind.KERNEL)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Memcpy HtoD (Pageable -> Device)", CopyKind.H2D_PAGEABLE),
        ("Memcpy HtoD (Pinned -> Device)", CopyKind.H2D_PINNED),
        ("Memcpy HtoD (Host -> Device)", CopyKind.H2D_UNKNOWN),
        ("Memcpy DtoH (Device -> Pinned)", CopyKind.D2H_PINNED),
        ("Memcpy DtoH (Device -> Pageable)", CopyKind.D2H_PAGEABLE),
        ("Memcpy DtoH (Device -> Host)", CopyKind.D2H_UNKNOWN),
        ("Memcpy DtoD (Device -> Device)", CopyKind.D2D),
        ("Memcpy PtoP (Device -> Device)", CopyKind.P2P),
        ("CopyHostToDevice", CopyKind.H2D_UNKNOWN),
        ("CopyDeviceToDevice", CopyKind.D2D),
        ("Memcpy HtoH (Pageable -> Pageable)", CopyKind.H2H),
        ("something", CopyKind.UNKNOWN),
    ],
)
def test_copies(name: str, kind: CopyKind) -> None:
    assert copy_kind(name) is kind


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_cublas", Family.GEMM),
        ("nvjet_tst_128x64_64x7_2cta_h_bz_bias_TNT", Family.GEMM),
        ("Cijk_Ailk_Bljk_BBS_BH_MT128x64x32_MI32x32x4x2", Family.GEMM),
        ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm>(P)", Family.GEMM),
        ("sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc", Family.CONV),
        ("igemm_wrw_gtcx3_nhwc_bf16_bx0", Family.CONV),
        ("void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(P)", Family.CONV),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7", Family.ATTENTION),
        ("void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128>>(P)", Family.ATTENTION),
        ("fmha_cutlassF_f32_aligned_64x64_rf_sm80(P)", Family.ATTENTION),
        (
            "void at::native::vectorized_elementwise_kernel<4, GeluCUDAKernelImpl>(int)",
            Family.ELEMENTWISE,
        ),
        (
            "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(R)",
            Family.REDUCTION,
        ),
        (
            "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float>(int)",
            Family.NORM,
        ),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float>(T)", Family.NORM),
        (
            "void (anonymous namespace)::softmax_warp_forward<float, float, float, 8>(f)",
            Family.SOFTMAX,
        ),
        ("void cudnn::ops::nchwToNhwcKernel<float, float>(P)", Family.LAYOUT),
        ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, 1>(f)", Family.COPY),
        (
            "void at::native::(anonymous namespace)::indexSelectLargeIndex<float, long>(T)",
            Family.INDEX,
        ),
        ("triton_poi_fused_add_relu_0", Family.FUSED),
        (
            "void at::native::distribution_elementwise_grid_stride_kernel(i)",
            Family.RANDOM,
        ),
        ("void at::native::(anonymous namespace)::max_pool_forward_nchw<float>(int)", Family.POOL),
        (
            "void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor>()",
            Family.OPTIMIZER,
        ),
        ("void at::native::_cufft_::regular_fft<512u>(K)", Family.FFT),
        ("my_own_thing", Family.OTHER),
        ("unknown", Family.OTHER),
    ],
)
def test_families(name: str, family: Family) -> None:
    assert kernel_family(name) is family


def test_arguments_do_not_decide_the_family() -> None:
    assert kernel_family("void mine(gemm::Params, conv*)") is Family.OTHER
