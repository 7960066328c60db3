"""Names that torch gives to its own machinery: modes, module calls, scalers, loading of code.

They decide per distinct name, as those of `frames` do.
"""

from __future__ import annotations

import re

from kinetoscope.trace.frames import parse_frame


def is_zero_grad(name: str) -> bool:
    """The range of `Optimizer.zero_grad` (torch/optim/optimizer.py), or `Module.zero_grad`."""
    return name.startswith("Optimizer.zero_grad#") or (
        "torch/nn/modules/module.py(" in name and name.endswith(": zero_grad")
    )


def is_queue_full(name: str) -> bool:
    """CUPTI's overhead record of a launch that found the command buffer full."""
    return name == "Command Buffer Full"


_LOADING = (
    "Lazy Function Loading",
    "Runtime Triggered Module Loading",
    "cuModuleLoad",
    "cuLibraryLoad",
    "cudaLibraryLoad",
    "hipModuleLoad",
    "hipLibraryLoad",
)


def is_code_loading(name: str) -> bool:
    """Device code on its way to the device: the driver's calls and CUPTI's overhead records."""
    return name.startswith(_LOADING)


def is_module_call(name: str) -> bool:
    """Frames through which `nn.Module.__call__` reaches hooks and `forward`."""
    return "torch/nn/modules/module.py(" in name and name.endswith(
        (": _call_impl", ": _wrapped_call_impl", ": inner", ": _slow_forward")
    )


def is_forward(name: str) -> bool:
    """A frame of a `forward`, the one call of a module that is no hook."""
    frame = parse_frame(name)
    return frame is not None and frame.function.lstrip("_") in ("forward", "conv_forward")


def is_parallel_wrapper(name: str) -> bool:
    """Modules of torch and its libraries that wrap another one to do work of their own."""
    return name.startswith(_WRAPPERS)


_WRAPPERS = tuple(
    f"nn.Module: {name}_"
    for name in (
        "DistributedDataParallel",
        "DataParallel",
        "FullyShardedDataParallel",
        "OptimizedModule",
        "DeepSpeedEngine",
        "CheckpointWrapper",
        "PipelineStage",
    )
)

_MODE_OPS = frozenset({"PythonDispatchMode", "PythonSubclass", "PythonTLSSnapshot"})


def is_dispatch_mode(name: str) -> bool:
    """An operator that goes through Python: a dispatch or function mode, a tensor subclass.

    The first three are torch's own marks (since 2.7), the others the handlers' frames.
    """
    return name in _MODE_OPS or name.endswith((": __torch_dispatch__", ": __torch_function__"))


def is_scaler_frame(name: str) -> bool:
    """Frames of the gradient scaler (torch/amp/grad_scaler.py)."""
    return "/amp/grad_scaler.py(" in name


def is_scaler_check(name: str) -> bool:
    """The operator that unscales gradients and looks for infinities among them."""
    return name.startswith("aten::_amp_foreach_non_finite_check_and_unscale")


def is_autotuning(name: str) -> bool:
    """Frames of Triton and Inductor that compile a kernel or try variants of it out.

    Not `run`: every launch goes through that one.
    """
    return name.endswith(_TRIALS) and any(part in name for part in _TUNERS)


_TRIALS = tuple(
    f": {name}"
    for name in (
        "do_bench",
        "do_bench_cudagraph",
        "_bench",
        "bench",
        "benchmark",
        "benchmark_gpu",
        "compile",
        "_do_compile",
        "_init_handles",
    )
)
_TUNERS = (
    "triton/runtime/",
    "triton/testing.py(",
    "triton/compiler/compiler.py(",
    "torch/_inductor/runtime/",
    "torch/_inductor/autotune_process.py(",
    "torch/_inductor/select_algorithm.py(",
)


def is_graph_capture(name: str) -> bool:
    """Runtime calls that record a graph and make it ready to run."""
    return name.startswith(_CAPTURES)


_CAPTURES = (
    "cudaStreamBeginCapture",
    "cudaStreamEndCapture",
    "cudaGraphInstantiate",
    "cuStreamBeginCapture",
    "cuStreamEndCapture",
    "cuGraphInstantiate",
    "hipStreamBeginCapture",
    "hipStreamEndCapture",
    "hipGraphInstantiate",
)


def is_datapipe(name: str) -> bool:
    """The range of one stage of a DataPipe (torch/utils/data/datapipes/_hook_iterator.py)."""
    return name.startswith("enumerate(DataPipe)#")


def is_datapipe_frame(name: str) -> bool:
    """Frames of DataPipes, and of torchdata's."""
    return "torch/utils/data/datapipes/" in name or name.startswith("torchdata/datapipes/")


_VLLM_STEP = re.compile(r"execute_(?:\d+_)?context_(\d+)\(.*?\)_generation_(\d+)\(")
_SGLANG_STEP = re.compile(r"step\[(EXTEND|PREFILL|MIXED|DECODE)\b")


def serving_step(name: str) -> tuple[bool, bool] | None:
    """Does a server's step hold prompts, does it hold tokens to generate? None: no such mark.

    vLLM counts both in its mark (`execute_.._context_9(..)_generation_37(..)`), SGLang names the
    kind of the batch (`step[DECODE bs=32]`).
    """
    found = _VLLM_STEP.match(name)
    if found is not None:
        return int(found[1]) > 0, int(found[2]) > 0
    found = _SGLANG_STEP.match(name)
    if found is not None:
        return found[1] != "DECODE", found[1] in ("DECODE", "MIXED")
    return None
