"""What the names of host events mean: Python frames, engine calls, waits.

Kernel names, runtime calls and categories are the business of `classify`; this module knows how
torch and Python name frames. Both decide per distinct name, never per event.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass

import msgspec

_GENERATED = re.compile(r"/torchinductor_[^/]*/|/[a-z0-9]{2}/c[a-z2-7]{45,60}\.py$")
_FRAME = re.compile(r"^(?P<file>.+?)\((?P<line>\d+)\): (?P<function>.*)$", re.DOTALL)


@dataclass(frozen=True)
class Frame:
    """A Python frame's name, taken apart. `line` is the first line of the function."""

    file: str
    line: int
    function: str


def parse_frame(name: str) -> Frame | None:
    """Split `file.py(12): func`; None for built-ins, modules and damaged names.

    Line 0 and unprintable text come from damaged recordings and are no place in a program.
    """
    match = _FRAME.match(name)
    if match is None or not name.isprintable() or match["line"] == "0":
        return None
    return Frame(match["file"].replace("\\", "/"), int(match["line"]), match["function"])


_LIBRARY_PARTS = ("/site-packages/", "/dist-packages/", "/torch/", "/lib/python3", "/lib64/python3")

#: Packages whose frames torch writes relative to `sys.path`, so without `site-packages`.
_LIBRARIES = frozenset(
    """torch torchvision torchaudio torchdata torchtext torchrec torchmetrics torchao functorch
    triton numpy scipy pandas sklearn PIL cv2 skimage imageio transformers accelerate
    datasets tokenizers sentencepiece tiktoken huggingface_hub safetensors peft diffusers
    timm einops lightning pytorch_lightning lightning_fabric lightning_utilities deepspeed
    apex flash_attn xformers bitsandbytes fairscale megatron transformer_engine vllm sglang
    sympy networkx tqdm matplotlib wandb tensorboard mlflow hydra omegaconf pydantic yaml
    requests urllib3 fsspec pyarrow joblib numba cupy jax optax onnx onnxruntime gpytorch
    torch_geometric albumentations kornia nltk spacy absl google attr attrs click rich psutil
    packaging setuptools pkg_resources kinetoscope""".split()
)
#: Names of the standard library that people give to their own scripts.
_OFTEN_OWN = frozenset({"test", "profile", "trace", "code", "run", "main", "this", "statistics"})
_STANDARD = frozenset(sys.stdlib_module_names) - _OFTEN_OWN


def is_user_file(file: str) -> bool:
    """Does this file belong to the user's program rather than to a library or Python itself?"""
    if file.startswith("<") or any(part in file for part in _LIBRARY_PARTS):
        return False
    if is_generated_file(file):
        return False
    if file.startswith("/"):
        return True
    top = file.partition("/")[0]
    return top.removesuffix(".py") not in _LIBRARIES and top.removesuffix(".py") not in _STANDARD


def library_of(file: str) -> str | None:
    """Package of a file of a library other than torch; None for the program, torch and Python."""
    for folder in ("/site-packages/", "/dist-packages/"):
        before, found, after = file.partition(folder)
        file = after if found else before
    top = file.partition("/")[0].removesuffix(".py")
    return top if top in _LIBRARIES - {"torch"} else None


def is_torch_file(file: str) -> bool:
    """Does this file belong to torch itself, or did its compiler write it?"""
    own = file.startswith("torch/") or "/site-packages/torch/" in file
    return own or is_generated_file(file)


def is_generated_file(file: str) -> bool:
    """Did TorchInductor write this file? Its cache names each after its content."""
    return _GENERATED.search(file) is not None


def is_builtin(name: str) -> bool:
    """A call of a function of C code, as torch's stack events name it."""
    return name.startswith("<built-in ")


def is_engine_call(name: str) -> bool:
    """The autograd engine's own event around one backward node."""
    return name.startswith("autograd::engine::evaluate_function")


def is_optimizer_step(name: str) -> bool:
    """The range that `torch.optim.Optimizer` puts around `step()` (since 1.8)."""
    return name.startswith("Optimizer.step#")


def is_recompute_frame(name: str) -> bool:
    """Activation checkpointing at work in the backward pass (torch/utils/checkpoint.py)."""
    return "torch/utils/checkpoint.py(" in name and name.endswith(
        (": unpack_hook", ": recompute_fn")
    )


def is_loader_frame(name: str) -> bool:
    """Frames of the DataLoader, its workers' plumbing included."""
    return "torch/utils/data/" in name or name.startswith(
        ("torchdata/", "nvidia/dali", "ffcv/", "webdataset/")
    )


_LOADER_EPOCH_BEGINS = (": _get_iterator", ": _reset")
_LOADER_EPOCH_ENDS = (": _shutdown_workers", ": __del__")


def is_loader_epoch_frame(name: str) -> bool:
    """Frames in which `DataLoader` begins or ends an epoch (torch/utils/data/dataloader.py).

    Not `__iter__`: the sampler of an iterable data set, in the same file, has one as well, which
    runs for every sample.
    """
    ends = _LOADER_EPOCH_BEGINS + _LOADER_EPOCH_ENDS
    return "torch/utils/data/dataloader.py(" in name and name.endswith(ends)


def begins_loader_epoch(name: str) -> bool:
    """Of those frames the ones that begin an epoch, with new workers or with those it has."""
    return is_loader_epoch_frame(name) and name.endswith(_LOADER_EPOCH_BEGINS)


def drops_loader_epoch(name: str) -> bool:
    """The iterator over an epoch is thrown away; before its end, that stops its workers."""
    return is_loader_epoch_frame(name) and name.endswith(": __del__")


def is_loader_request(name: str) -> bool:
    """The loader asks a worker for one more batch, if the epoch has one (`_try_put_index`)."""
    return "torch/utils/data/dataloader.py(" in name and name.endswith(": _try_put_index")


def is_queue_put(name: str) -> bool:
    """Something goes into a queue to another process (multiprocessing/queues.py)."""
    return name.endswith(": put") and "multiprocessing/queues.py(" in name


def is_process_start(name: str) -> bool:
    """`multiprocessing` starts a process: the system call of its start methods."""
    return name in ("<built-in function fork>", "<built-in function spawnv_passfds>")


def is_loader_of_processes(name: str) -> bool:
    """The loader's range when worker processes fetch (`_BaseDataLoaderIter._profile_name`)."""
    return "_MultiProcessingDataLoaderIter" in name


def is_loader_in_process(name: str) -> bool:
    """The loader's range when the main process fetches (`num_workers=0`)."""
    return "_SingleProcessDataLoaderIter" in name


def is_empty_cache_frame(name: str) -> bool:
    """`empty_cache()` of torch.cuda, torch.xpu, torch.mps or torch.accelerator."""
    return name.endswith(": empty_cache") and "torch/" in name


def is_host_memory_call(name: str) -> bool:
    """Runtime calls that take or return pinned host memory (`cudaHostAlloc`, `cudaFreeHost`)."""
    return "Host" in name


def is_stream_ordered_call(name: str) -> bool:
    """Runtime calls of the stream-ordered allocator, which do not wait for the device."""
    return name.endswith("Async")


def is_profiler_frame(name: str) -> bool:
    """Frames of torch's profiler, which the program does not have without it."""
    return "torch/profiler/" in name or "torch/autograd/profiler" in name


def is_profiler_step(name: str) -> bool:
    """`profile.step()` (torch/profiler/profiler.py): between two steps, and the profiler's own.

    `kinetoscope run` does the same where it notes a step.
    """
    return ("torch/profiler/profiler.py(" in name and name.endswith(": step")) or is_capture_mark(
        name
    )


def is_capture_mark(name: str) -> bool:
    """`kinetoscope run` notes that a step passed, and goes on to the next window."""
    return is_capture_frame(name) and "session.py(" in name and name.endswith(": note")


def is_framework_frame(name: str) -> bool:
    """Frames of torch's training loop: modules, autograd, optimizers, profiler, distributed."""
    return any(part in name for part in _FRAMEWORK_PARTS)


_FRAMEWORK_PARTS = (
    "torch/nn/",
    "torch/optim/",
    "torch/autograd/",
    "torch/profiler/",
    "torch/distributed/",
    "torch/_dynamo/",
    "torch/_inductor/",
    "torch/_tensor.py(",
    "torch/amp/",
    "torch/cuda/",
)


def is_compile_frame(name: str) -> bool:
    """Frames of a compiler at work; running compiled code goes through none of these."""
    return name.startswith(_COMPILE_FILES) or any(part in name for part in _COMPILE_PARTS)


_COMPILE_FILES = ("torch/_inductor/compile_fx", "torch/_inductor/graph.py", "triton/compiler/")
_COMPILE_PARTS = (
    "torch/_dynamo/convert_frame.py",
    "torch/_dynamo/symbolic_convert.py",
    "torch/_dynamo/output_graph.py",
    "torch/_inductor/scheduler.py",
    "torch/_inductor/codecache.py",
)


def is_checkpoint_frame(name: str) -> bool:
    """Frames that write a checkpoint."""
    return (
        "torch/serialization.py(" in name and name.endswith((": save", ": _save", ": _legacy_save"))
    ) or "torch/distributed/checkpoint/" in name


def is_collective_wait_frame(name: str) -> bool:
    """Frames in which the host waits for a collective."""
    return name.startswith("<built-in method wait of ") and "Work" in name


def is_autograd_wait(name: str) -> bool:
    """The main thread inside `backward()`, while the engine's threads do the work."""
    return name.startswith("<built-in method run_backward of ") or name.endswith(
        ": _engine_run_backward"
    )


_WAIT_NAMES = (
    "<built-in method acquire of _thread.",
    "<built-in method poll of select.",
    "<built-in method poll of _multiprocessing",
    "<built-in function sleep>",
    "<built-in method select of",
    "<built-in function select>",
    "<built-in method recv of",
    "<built-in method recv_into of",
    "<built-in function waitpid>",
    "<built-in method get of _queue.",
)
_WAIT_FRAMES = (
    re.compile(r"^threading\.py\(\d+\): (wait|join|_wait_for_tstate_lock)$"),
    re.compile(r"^queue\.py\(\d+\): get$"),
    re.compile(r"^selectors\.py\(\d+\): select$"),
    re.compile(r"^multiprocessing/connection\.py\(\d+\): (wait|poll|_poll|recv|_recv)$"),
    re.compile(r"^concurrent/futures/_base\.py\(\d+\): (result|wait)$"),
    re.compile(r"^subprocess\.py\(\d+\): (wait|_wait|communicate)$"),
)


def is_wait(name: str) -> bool:
    """Frames that wait for a lock, a queue, a socket or the clock: waiting, not working."""
    return name.startswith(_WAIT_NAMES) or any(p.match(name) for p in _WAIT_FRAMES)


_STACK_LINE = re.compile(r"(?P<file>[^\n;]+?)\((?P<line>\d+)\): (?P<function>[^\n;]+)")


def parse_call_stack(extra: str) -> list[tuple[str, int, str]]:
    """Entries (file, line, function) of an operator's `Call stack`, innermost first.

    `extra` is the raw JSON of the remaining args. The lines are those of the calls themselves
    (torch 1.8 to 1.11).
    """
    if "Call stack" not in extra:
        return []
    try:
        stack = msgspec.json.decode(extra).get("Call stack", "")
    except msgspec.DecodeError:
        return []
    return [
        (m["file"].strip().replace("\\", "/"), int(m["line"]), m["function"].strip())
        for m in _STACK_LINE.finditer(str(stack))
    ]


def is_capture_frame(name: str) -> bool:
    """A frame of `kinetoscope run` itself: its hooks, and the thread that looks after them."""
    return "kinetoscope/capture/" in name.replace("\\", "/")


def has_fast_path(name: str) -> bool:
    """Torch's modules with a fused forward that runs only without gradients, in `eval()`."""
    return name.startswith(
        ("nn.Module: TransformerEncoderLayer_", "nn.Module: MultiheadAttention_")
    )


def is_fast_path(name: str) -> bool:
    """The fused operators of those modules."""
    return name in ("aten::_transformer_encoder_layer_fwd", "aten::_native_multi_head_attention")


def is_driver_call(name: str) -> bool:
    """A call of CUDA's driver (`cuLaunchKernel`), below its runtime (`cudaLaunchKernel`)."""
    return name.startswith("cu") and not name.startswith("cuda")


def is_graph_call(name: str) -> bool:
    """Inductor's range around the code of one compiled graph."""
    return name.startswith("## Call CompiledFxGraph")


def is_anomaly_frame(name: str) -> bool:
    """Work of `torch.autograd.set_detect_anomaly`: the stack stored with each forward operator.

    AnomalyMode formats it through torch/fx/traceback.py or Python's traceback module.
    """
    return name.endswith((": format_stack", ": extract_stack")) and (
        name.startswith("traceback.py(") or "/traceback.py(" in name
    )


def is_anomaly_switch(name: str) -> bool:
    """The context manager of anomaly detection (torch/autograd/anomaly_mode.py)."""
    return "torch/autograd/anomaly_mode.py(" in name


def is_grad_clip_frame(name: str) -> bool:
    """`clip_grad_norm_` and its kin (torch/nn/utils/clip_grad.py)."""
    return "torch/nn/utils/clip_grad.py(" in name


def is_training_mark(name: str) -> bool:
    """What only a training program records: the backward engine, an optimizer's step."""
    return is_engine_call(name) or name.startswith("Optimizer.step#")


def is_event_wait(name: str) -> bool:
    """Runtime calls in which the host waits for one event of the device."""
    return name.endswith("EventSynchronize")


def is_zero_grad(name: str) -> bool:
    """Clearing of gradients: the optimizer's range, or the frames of `zero_grad`
    (torch/optim/optimizer.py, torch/nn/modules/module.py)."""
    return name.startswith("Optimizer.zero_grad#") or (
        name.endswith(": zero_grad")
        and ("torch/optim/" in name or "torch/nn/modules/module.py(" in name)
    )


_PINNING = ("cudaHostAlloc", "cudaMallocHost", "cudaHostRegister", "hipHostMalloc")


def pins_batches(name: str) -> bool:
    """The loader copies batches to pinned memory (torch/utils/data/_utils/pin_memory.py)."""
    return "torch/utils/data/_utils/pin_memory.py(" in name


def is_pinning_call(name: str) -> bool:
    """Runtime calls that lock host memory (`hipHostRegister` and versioned names included)."""
    return name.startswith((*_PINNING, "hipHostRegister", "hipHostAlloc"))


def is_offload_frame(name: str) -> bool:
    """Saved tensors on their way to the host or back (torch/autograd/graph.py: save_on_cpu), and
    the wrappers that use it."""
    return name.endswith((": pack_to_cpu", ": unpack_from_cpu")) or (
        "offload" in name and ("torch/" in name or "checkpoint" in name)
    )
