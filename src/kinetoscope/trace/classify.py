"""What an event is: category and name -> `Kind`, `Family`, `CopyKind`.

The only module that looks at these spellings. The reader calls it once for each distinct pair of
category and name, never for each event, so clarity wins over speed here.
"""

from __future__ import annotations

import re

from kinetoscope.trace.kernel_names import kernel_family
from kinetoscope.trace.kinds import CopyKind, Family, Kind

__all__ = [
    "classify",
    "copy_kind",
    "family",
    "is_communication",
    "is_device_category",
    "is_housekeeping",
    "is_housekeeping_category",
]

# Kineto's ActivityType.h, in lower case, with the older spellings (Operator, Kernel, Memcpy,
# Memset, Runtime, User: PyTorch 1.8-1.12) and those of other backends.
_HOST_CATEGORIES = {
    "cpu_op": Kind.CPU_OP,
    "operator": Kind.CPU_OP,
    "hpu_op": Kind.CPU_OP,
    "user": Kind.ANNOTATION,
    "user_annotation": Kind.ANNOTATION,
    "user_scope": Kind.ANNOTATION,
    "python_function": Kind.PYTHON,
    "overhead": Kind.OVERHEAD,
    "runtime": Kind.RUNTIME,
    "cuda_runtime": Kind.RUNTIME,
    "cuda_driver": Kind.RUNTIME,
    "hip_runtime": Kind.RUNTIME,
    "hip_driver": Kind.RUNTIME,
    "xpu_runtime": Kind.RUNTIME,
    "xpu_driver": Kind.RUNTIME,
    "mtia_runtime": Kind.RUNTIME,
    "glow_runtime": Kind.RUNTIME,
    "privateuse1_runtime": Kind.RUNTIME,
    "privateuse1_driver": Kind.RUNTIME,
}
_DEVICE_CATEGORIES = {
    "kernel": Kind.KERNEL,
    "concurrent_kernel": Kind.KERNEL,
    "mtia_ccp_events": Kind.KERNEL,
    "collective_comm": Kind.COLLECTIVE,
    "gpu_memcpy": Kind.COPY,
    "memcpy": Kind.COPY,
    "gpu_memset": Kind.MEMSET,
    "memset": Kind.MEMSET,
    "gpu_user_annotation": Kind.DEVICE_ANNOTATION,
    "cuda_sync": Kind.DEVICE_SYNC,
    "xpu_sync": Kind.DEVICE_SYNC,
    "cuda_event": Kind.DEVICE_SYNC,
    "cuda_profiler_range": Kind.DEVICE_OTHER,
    "mtia_insight": Kind.DEVICE_OTHER,
}
# The profiler's own bookkeeping: spans and instants that are nobody's work.
_HOUSEKEEPING_CATEGORIES = frozenset({"trace"})
_HOUSEKEEPING_NAME = re.compile(
    r"PyTorch Profiler \(-?\d+\)|__cupti_profiler__ \(-?\d+\)|Iteration Start: |Record Window End"
)

# Calls of CUDA's runtime and driver, HIP, Level Zero / Unified Runtime / SYCL, MTIA and
# PrivateUse1 back ends. The first pattern that matches wins.
_RUNTIME_CALLS: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    (Kind.GRAPH_LAUNCH, re.compile(r"(cuda|cu|hip|acl|mtia)Graph(Exec)?Launch", re.I)),
    (
        Kind.LAUNCH,
        re.compile(
            r"(cuda|cu|hip)\w*Launch(Cooperative)?(Kernel|Grid|HostFunc)?\w*"
            r"|hip(Ext|Module|ExtModule|HccModule|Drv)\w*Launch\w*"
            r"|zeCommandList\w*AppendLaunch\w*|urEnqueueKernelLaunch\w*|piEnqueueKernelLaunch\w*"
            r"|urEnqueueCooperativeKernelLaunch\w*|aclrtLaunch\w*|\w*launch_?kernel\w*",
            re.I,
        ),
    ),
    (
        Kind.COPY_CALL,
        re.compile(
            r"(cuda|cu|hip)Mem(cpy|set|Prefetch)\w*|hipMemcpy\w*|aclrtMem(cpy|set)\w*"
            r"|zeCommandList\w*Append(MemoryCopy|MemoryFill|ImageCopy)\w*"
            r"|(ur|pi)EnqueueU?S?M?\w*(Memcpy|Memset|Fill|BufferRead|BufferWrite|BufferCopy)\w*",
            re.I,
        ),
    ),
    (
        Kind.SYNC_CALL,
        re.compile(
            r"(cuda|hip)(Device|Stream|Event|Thread)Synchronize\w*"
            r"|cu(Ctx|Stream|Event)Synchronize\w*|hipCtxSynchronize|aclrtSynchronize\w*"
            r"|ze(CommandQueue|CommandList|Event|Fence)(Host)?Synchronize"
            r"|(ur|pi)(EventWait|EventsWait|QueueFinish)|\w*(stream|device)_?synchronize\w*",
            re.I,
        ),
    ),
    (
        Kind.FREE_CALL,
        re.compile(
            r"(cuda|hip)(Free\w*|HostUnregister)|hipHostFree"
            r"|cuMem(Free\w*|HostUnregister|Unmap|Release|AddressFree)"
            r"|hipMem(Unmap|Release|AddressFree)|zeMemFree|urUSMFree|piextUSMFree|aclrtFree\w*",
            re.I,
        ),
    ),
    (
        Kind.ALLOC_CALL,
        re.compile(
            r"(cuda|hip)(Malloc\w*|Host(Alloc|Malloc|Register)\w*|MemAllocAsync|ArrayCreate)"
            r"|hipExtMalloc\w*|hipMem(Create|Map|AddressReserve)\w*"
            r"|cuMem(Alloc\w*|HostAlloc|HostRegister\w*|Create|Map|AddressReserve|SetAccess)"
            r"|zeMemAlloc\w*|urUSM\w*Alloc|piextUSM\w*Alloc|aclrtMalloc\w*",
            re.I,
        ),
    ),
)
# Runtime names that look like one of the above and are not.
_NOT_A_LAUNCH = re.compile(r"\w*(GetAttribute|ThreadExchange|LaunchDelay|Occupancy)\w*", re.I)

_STEP = re.compile(r"ProfilerStep\*?#\d+|ProfilerStep\*")
_LOADER = re.compile(
    r"enumerate\(Data(Loader|Pipe)\)#|enumerate\(DataLoader\)|DataLoader\.__next__"
    r"|dataloader_next|\[pl\]\[profile\].*(\.train_dataloader_next|\.\w*dataloader_next)"
)
# torch.distributed's RecordFunction labels: ProcessGroupNCCL/Gloo, c10d ops, and its debug op.
_HOST_COLLECTIVE = re.compile(
    r"(nccl|gloo|mpi|ucc|xccl|rccl|hccl|oneccl|ccl):|c10d::|_c10d_functional(_autograd)?::"
    r"|record_param_comms$|(vllm|sgl_kernel|symm_mem)::\w*(all_reduce|all_gather|reduce_scatter)"
)
# dynamo_timed phases (torch/_dynamo/utils.py) and CompileEventLogger's "..._data:" twins;
# Inductor's autotuner and its worker pool; Triton's compiler.
_COMPILE = re.compile(
    r".* \(dynamo_timed\)$|entire_frame_compile|entire_backward_compile|_compile\.compile_inner"
    r"|backend_compile|inductor_compile|bytecode_tracing|code_gen$|compile_attempt_\d+"
    r"|async_compile\.wait|CachingAutotuner\.|fx_codegen_and_compile|build_guards$"
    r"|create_aot_dispatcher_function|aot_collect_metadata|additional_fake_tensor_prop"
    r"|_recursive_(joint_graph|post_grad|pre_grad)_passes|pass\.(joint|post|pre)_grad\w*\."
    r"|pass\.joint_graph_passes\.|PyCodeCache\.|PythonWrapperCodegen\.|TritonBundler\."
    r"|GraphLowering\.|Scheduler\.(__init__|codegen|fused_nodes)|compile_fx|dynamo$"
    r"|insert_deferred_runtime_asserts|OutputGraph\.call_user_compiler|triton_compile"
    r"|cudagraphify|TorchInductor compile|torch\.?compile:"
)
_COMPILE_DATA = re.compile(r".+_data: .*compile_id=")
_COMPILE_FRAME = re.compile(
    r"(.*[/\\])?torch[/\\]_(dynamo|inductor)[/\\](convert_frame|compile_fx|async_compile|output_graph)"
    r"\.py\(\d+\): (_?compile\w*|call_user_compiler|compile_and_call_fx_graph|wait|fx_codegen\w*)$"
    r"|(.*[/\\])?triton[/\\]compiler[/\\]compiler\.py\(\d+\): compile$"
)
_GC = re.compile(r"Python GC\b|gc\.collect$|gc( \(dynamo_timed\))?$")
_SPECIAL_RANGES = (
    (Kind.STEP, _STEP),
    (Kind.LOADER, _LOADER),
    (Kind.HOST_COLLECTIVE, _HOST_COLLECTIVE),
    (Kind.GC, _GC),
)

# Communication kernels. NCCL and its kin by prefix; the custom collectives are those of vLLM,
# SGLang, TensorRT-LLM, FlashInfer, AITER and torch's symmetric memory.
_COMMUNICATION = re.compile(
    r"nccl|rccl|oneccl|hccl|cross_device_reduce|multimem_(all_reduce|all_gather|one_shot)"
    r"|(one|two)_?shot_?all_?(reduce|gather)|all_?reduce_?(fusion|kernel|one_?shot|two_?shot|prototype)"
    r"|quick_?all_?reduce|lamport_?\w*all_?reduce|moe_?all_?reduce|trtllm_\w*allreduce"
    r"|all_?gather_(kernel|lamport|one_shot)|reduce_scatter_(kernel|cross_device)"
    r"|allreduce_(twoshot|oneshot)|nvshmem\w*_(put|get|signal|barrier|alltoall)"
    r"|deep_?ep::|intranode::(dispatch|combine)|internode(_ll)?::(dispatch|combine)",
    re.I,
)


def is_device_category(category: str) -> bool | None:
    """True for a category of device lanes, False for one of the host, None if unknown."""
    low = category.lower()
    if low in _DEVICE_CATEGORIES:
        return True
    if low in _HOST_CATEGORIES or low.endswith(("_runtime", "_driver")):
        return False
    return None


def is_housekeeping_category(category: str) -> bool:
    """True for the category of the profiler's own spans."""
    return category.lower() in _HOUSEKEEPING_CATEGORIES


def is_housekeeping(category: str, name: str) -> bool:
    """True for the profiler's own marks, which are nobody's work and may lie anywhere in time."""
    return is_housekeeping_category(category) or _HOUSEKEEPING_NAME.match(name) is not None


def is_communication(name: str) -> bool:
    """True if a kernel of this name moves data between devices or waits for another rank."""
    return _COMMUNICATION.search(name) is not None


def classify(category: str, name: str, *, on_device: bool) -> Kind:
    """The kind of an event.

    Args:
        category: `cat` as written; any case, any version.
        name: `name` as written.
        on_device: whether its lane is a stream; decides only for unknown categories.
    """
    low = category.lower()
    kind = _DEVICE_CATEGORIES.get(low)
    if kind is not None:
        return _device_kind(kind, name)
    kind = _HOST_CATEGORIES.get(low)
    if kind is None and low.endswith(("_runtime", "_driver")):
        kind = Kind.RUNTIME
    if kind is None:
        return Kind.DEVICE_OTHER if on_device else Kind.OTHER
    if kind is Kind.RUNTIME:
        return _runtime_kind(name)
    if kind is Kind.PYTHON:
        return _python_kind(name)
    if kind is Kind.OVERHEAD:
        return kind
    return _host_range_kind(kind, name)


def _device_kind(kind: Kind, name: str) -> Kind:
    if kind is not Kind.KERNEL:
        return kind
    if is_communication(name):
        return Kind.COLLECTIVE
    if name == "Marker":  # roctracer's barrier packets carry the kernel category
        return Kind.DEVICE_OTHER
    return kind


def _runtime_kind(name: str) -> Kind:
    if _NOT_A_LAUNCH.fullmatch(name):
        return Kind.RUNTIME
    for kind, pattern in _RUNTIME_CALLS:
        if pattern.fullmatch(name):
            return kind
    return Kind.RUNTIME


def _python_kind(name: str) -> Kind:
    if name.startswith("nn.Module: "):
        return Kind.MODULE
    if _GC.match(name):
        return Kind.GC
    if _COMPILE_FRAME.match(name):
        return Kind.COMPILE
    return Kind.PYTHON


def _host_range_kind(kind: Kind, name: str) -> Kind:
    for special, pattern in _SPECIAL_RANGES:
        if pattern.match(name):
            return special
    if not name.startswith("aten::") and (_COMPILE.match(name) or _COMPILE_DATA.match(name)):
        return Kind.COMPILE
    # Before 1.9 the marks of the optimizer and of the user shared the category of operators.
    if kind is Kind.CPU_OP and name.startswith(("Optimizer.step#", "Optimizer.zero_grad#")):
        return Kind.ANNOTATION
    return kind


def family(kind: Kind, name: str) -> Family:
    """The kernel family; `Family.NONE` for what is not a compute kernel."""
    return kernel_family(name) if kind is Kind.KERNEL else Family.NONE


_ENDS = {
    ("H", "D"): (CopyKind.H2D_UNKNOWN, CopyKind.H2D_PAGEABLE, CopyKind.H2D_PINNED),
    ("D", "H"): (CopyKind.D2H_UNKNOWN, CopyKind.D2H_PAGEABLE, CopyKind.D2H_PINNED),
}


def copy_kind(name: str) -> CopyKind:
    """Direction and host memory of a copy, from `Memcpy HtoD (Pageable -> Device)` and its kin."""
    low = name.lower().replace("_", " ")
    match = re.search(r"\b([hdpa])(?:to|2)([hdpa])\b", low)
    if match is None:
        match = re.search(r"(host|device|peer)\s*to\s*(host|device|peer)", low)
    if match is None:
        return CopyKind.UNKNOWN
    source, target = match.group(1)[0].upper(), match.group(2)[0].upper()
    if "P" in (source, target):
        return CopyKind.P2P
    if (source, target) in _ENDS:
        unknown, pageable, pinned = _ENDS[(source, target)]
        if "pageable" in low:
            return pageable
        return pinned if "pinned" in low else unknown
    return {("D", "D"): CopyKind.D2D, ("H", "H"): CopyKind.H2H}.get(
        (source, target), CopyKind.UNKNOWN
    )
