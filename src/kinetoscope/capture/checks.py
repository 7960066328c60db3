"""What `kinetoscope doctor` looks at: can we profile here, and what quietly costs speed."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from kinetoscope.capture import device
from kinetoscope.capture.precision import matmul_precision
from kinetoscope.capture.torch_parts import ALWAYS, TRIED, missing

State = Literal["ok", "slow", "missing", "problem"]


@dataclass(frozen=True)
class Check:
    """One line.

    Attributes:
        state: ok; slow: costs speed; missing: we can do less; problem: profiling will not work.
        step: what to do next; "" when nothing.
    """

    state: State
    name: str
    text: str
    step: str = ""


def examine() -> Iterator[Check]:
    """Every check, in the order in which they matter."""
    yield Check("ok", "python", f"{sys.version.split()[0]} on {sys.platform}")
    torch = _torch()
    if torch is None:
        yield Check(
            "problem",
            "torch",
            "not installed here, or broken; recordings can still be analyzed",
            "Run doctor in the environment of the program: its-python -m kinetoscope doctor",
        )
    else:
        yield from _torch_checks(torch)
    yield from _process_checks()


def _torch() -> Any:
    if find_spec("torch") is None:
        return None
    try:
        return import_module("torch")
    except (ImportError, OSError):
        return None


def _torch_checks(torch: Any) -> Iterator[Check]:
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    oldest, newest = ("{}.{}".format(*tried) for tried in TRIED)
    known = version >= TRIED[0]
    newer = f"; captures were tried up to {newest}" if version > TRIED[1] else ""
    yield Check(
        "ok" if known else "missing",
        "torch",
        f"{torch.__version__}, CUDA {torch.version.cuda or 'no'}, "
        f"ROCm {getattr(torch.version, 'hip', None) or 'no'}{newer}",
        "" if known else f"Captures are tried with torch {oldest} and later; upgrade when you can.",
    )
    for text in missing(ALWAYS):
        yield Check(
            "missing", "torch", text, "Upgrade kinetoscope; captures do without until then."
        )
    kineto = bool(torch.profiler.kineto_available())
    yield Check(
        "ok" if kineto else "problem",
        "kineto",
        "built into torch" if kineto else "missing from this torch: no profile can be recorded",
        "" if kineto else "Install torch from pytorch.org or PyPI.",
    )
    yield from _device_checks(torch)
    for check in _SETTINGS:
        found = check(torch)
        if found is not None:
            yield found


def _device_checks(torch: Any) -> Iterator[Check]:
    if not torch.cuda.is_available():
        yield Check(
            "ok" if torch.version.cuda is None else "missing",
            "device",
            "none: programs run on the CPU, and recordings speak of the host alone",
            ""
            if torch.version.cuda is None
            else "nvidia-smi should list the device; check the "
            "driver, and the container's --gpus option.",
        )
        return
    names = [torch.cuda.get_device_properties(i).name for i in range(torch.cuda.device_count())]
    yield Check("ok", "device", ", ".join(names))
    cupti = not device.missing_cupti()
    yield Check(
        "ok" if cupti else "problem",
        "CUPTI",
        "device events can be recorded" if cupti else "missing: no device events",
        "" if cupti else "Install a CUDA build of torch from pytorch.org.",
    )
    if cupti:
        yield _device_trial(torch)
    if device.restricted():
        yield Check(
            "missing",
            "permission",
            "the driver shows performance counters to administrators only",
            "Timelines work without; for counters set NVreg_RestrictProfilingToAdminUsers=0.",
        )


def _device_trial(torch: Any) -> Check:
    """Record one kernel: the only test that tells the truth."""
    from kinetoscope.capture.quiet import quiet_stderr

    try:
        with quiet_stderr() as errors, tempfile.TemporaryDirectory() as folder:
            with torch.profiler.profile() as profile:
                torch.ones(8, device="cuda").add_(1)
                torch.cuda.synchronize()
            path = Path(folder) / "trial.json"
            profile.export_chrome_trace(str(path))
            why = device.why_no_device_events(path)
    except RuntimeError as error:
        why = str(error).split("\n")[0]
    why = device.explain_cupti(errors) if why and errors else why
    if why:
        return Check("problem", "trial", why, "Detach the other tool, or see the line above.")
    return Check("ok", "trial", "a kernel was recorded")


def _process_checks() -> Iterator[Check]:
    tool = device.other_profiler()
    if tool:
        yield Check(
            "problem", "profiler", f"{tool} is attached", "Only one can be: start without it."
        )
    for name, (bad, text, step) in _VARIABLES.items():
        value = os.environ.get(name, "")
        if value and bad(value):
            yield Check("slow", name, f"={value}: {text}", step)
    if _usable() > 1 and os.environ.get("OMP_NUM_THREADS") == "1":
        yield Check(
            "slow",
            "OMP_NUM_THREADS",
            f"=1 with {_usable()} usable processors (torchrun sets this)",
            "Set it to the processors per process when work on the CPU matters.",
        )
    for module, what in (("psutil", "processor use"), ("pynvml", "device use, clocks and power")):
        if find_spec(module) is None:
            yield Check(
                "missing",
                module,
                f"not installed: captures do not sample {what}",
                "pip install 'kinetoscope[capture]'",
            )
    free = shutil.disk_usage(tempfile.gettempdir()).free
    enough = free > 2_000_000_000
    yield Check(
        "ok" if enough else "problem",
        "disk",
        f"{free / 1e9:.1f} GB free in {tempfile.gettempdir()}",
        "" if enough else "Captures need up to 2 GB there; set TMPDIR to a larger disk.",
    )


def _usable() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _on(value: str) -> bool:
    return value not in ("0", "false", "False", "")


_VARIABLES: dict[str, tuple[Callable[[str], bool], str, str]] = {
    "CUDA_LAUNCH_BLOCKING": (_on, "every launch waits for the device", "Unset it."),
    "HIP_LAUNCH_BLOCKING": (_on, "every launch waits for the device", "Unset it."),
    "AMD_SERIALIZE_KERNEL": (_on, "kernels run one after another", "Unset it."),
    "PYTORCH_NO_CUDA_MEMORY_CACHING": (_on, "every allocation asks the driver", "Unset it."),
    "TORCH_DISTRIBUTED_DEBUG": (
        lambda value: value.upper() == "DETAIL",
        "collectives are checked and slowed down",
        "Unset it, or set INFO.",
    ),
    "NCCL_DEBUG": (
        lambda value: value.upper() in ("TRACE", "INFO"),
        "NCCL writes a log",
        "Set it to WARN.",
    ),
    "NCCL_P2P_DISABLE": (_on, "devices talk through host memory", "Unset it, if links allow."),
    "NCCL_BLOCKING_WAIT": (_on, "the host waits in every collective", "Unset it."),
    "TORCH_NCCL_BLOCKING_WAIT": (_on, "the host waits in every collective", "Unset it."),
    "TORCH_COMPILE_DISABLE": (_on, "torch.compile does nothing", "Unset it."),
    "TORCHDYNAMO_DISABLE": (_on, "torch.compile does nothing", "Unset it."),
    "TORCH_SHOW_CPP_STACKTRACES": (_on, "errors are slow to build", "Unset it."),
    "NVIDIA_TF32_OVERRIDE": (
        lambda value: value == "0",
        "TF32 is off whatever the program sets",
        "Unset it.",
    ),
    "CUDA_CACHE_DISABLE": (_on, "kernels are compiled anew in every process", "Unset it."),
    "PYTHONDEVMODE": (_on, "Python checks more and runs slower", "Unset it."),
    "PYTHONMALLOC": (lambda value: "debug" in value, "allocations are checked", "Unset it."),
}


def _debug_build(torch: Any) -> Check | None:
    if not torch.version.debug:
        return None
    return Check("slow", "torch build", "a debug build", "Install a release build.")


def _anomaly(torch: Any) -> Check | None:
    if not torch.is_anomaly_enabled():
        return None
    return Check("slow", "anomaly mode", "on by default here", "Remove set_detect_anomaly(True).")


def _deterministic(torch: Any) -> Check | None:
    if not torch.are_deterministic_algorithms_enabled():
        return None
    return Check("slow", "deterministic", "algorithms are forced", "Switch it off for speed.")


def _tf32(torch: Any) -> Check | None:
    """Matrix products in float32 do not use tensor cores unless one asks for it."""
    if not torch.cuda.is_available() or matmul_precision() != "highest":
        return None
    if torch.cuda.get_device_capability()[0] < 8:
        return None
    return Check(
        "slow",
        "TF32",
        "off, which is torch's default: float32 matrix products do not use tensor cores",
        'torch.set_float32_matmul_precision("high") if the accuracy allows.',
    )


_SETTINGS = (_debug_build, _anomaly, _deterministic, _tf32)
