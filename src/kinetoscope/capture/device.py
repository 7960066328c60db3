"""Is there a device, and if its events are missing: why?"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

_OTHER_PROFILER = {
    "NSYS_PROFILING_SESSION_ID": "Nsight Systems",
    "NSIGHT_SYSTEMS_SESSION": "Nsight Systems",
    "CUDA_INJECTION64_PATH": "a tool that is injected through CUDA_INJECTION64_PATH",
    "NVTX_INJECTION64_PATH": "a tool that is injected through NVTX_INJECTION64_PATH",
    "NV_COMPUTE_PROFILER_PERFWORKS_DIR": "Nsight Compute",
    "HSA_TOOLS_LIB": "a ROCm tool that is loaded through HSA_TOOLS_LIB",
    "ROCPROFILER_REGISTER_FORCE_LOAD": "a ROCm profiler",
}
"""Variables that profilers set in the programs that they start."""

_DETACH = "TEARDOWN_CUPTI"
"""Kineto reads this variable whenever a profile ends."""
_DETACHES = "12.6"
"""From this CUDA on CUPTI can be detached while there are CUDA graphs."""

_DRIVER = Path("/proc/driver/nvidia/params")
_SOURCE = "NVreg_RestrictProfilingToAdminUsers"


def in_use() -> bool:
    """Has the program used a CUDA or ROCm device so far?"""
    import torch

    return bool(torch.cuda.is_available() and torch.cuda.is_initialized())


def detach_after_profiles() -> None:
    """Ask torch to detach CUPTI from the process whenever a profile ends.

    While it stays attached each launch costs more, although nothing is recorded: launch-bound
    steps of an H200 took 25 to 45 % longer after a profile (torch 2.11). Newer torch detaches by
    itself. Once asked it stays asked for: after a profile that did not detach CUPTI, the one that
    follows may hold no device events. With CUDA graphs before CUDA 12.6 that crashed, and torch
    itself keeps CUPTI attached.
    """
    from torch import version
    from torch.torch_version import TorchVersion

    if in_use() and version.cuda and TorchVersion(version.cuda) >= _DETACHES:
        os.environ.setdefault(_DETACH, "1")


def stays_attached() -> bool:
    """Does CUPTI go on to cost time after a profile has ended?"""
    return in_use() and os.environ.get(_DETACH) != "1"


def other_profiler() -> str | None:
    """The profiler that this process was started under, by the variables it sets."""
    return next((tool for name, tool in _OTHER_PROFILER.items() if os.environ.get(name)), None)


def restricted() -> bool:
    """Does the driver let only administrators read performance counters?"""
    try:
        text = _DRIVER.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return "RmProfilingAdminOnly: 1" in text and os.geteuid() != 0


def missing_cupti() -> bool:
    """True when torch was built without the library that records device events."""
    from torch.profiler import ProfilerActivity, supported_activities

    return ProfilerActivity.CUDA not in supported_activities()


def explain(phase: str, error: BaseException) -> str:
    """Say what a failed start, stop or export of torch's profiler means."""
    text = " ".join(str(error).split())[:300] or type(error).__name__
    if isinstance(error, OSError):
        return f"the {phase} window could not be written: {error.strerror or text}"
    lowered = text.lower()
    if "already" in lowered or "in progress" in lowered or "multiple" in lowered:
        return (
            f"the {phase} window could not start, because another profiler is active in this "
            f"process ({text}); take torch.profiler out of the program for this run"
        )
    return f"the {phase} phase failed: {text}"


_CUPTI = {
    "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED": (
        "another profiler holds CUPTI, and only one can; detach Nsight, DCGM's profiling, dynolog "
        "or a debugger"
    ),
    "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES": (
        f"the driver allows profiling to administrators only; set {_SOURCE}=0 for the nvidia "
        "module, run as root, or give the container CAP_SYS_ADMIN"
    ),
    "CUPTI_ERROR_VIRTUALIZED_DEVICE_NOT_SUPPORTED": (
        "this virtual GPU does not allow profiling; the hypervisor has to"
    ),
    "CUPTI_ERROR_NOT_COMPATIBLE": "CUPTI does not fit the driver; update the driver",
    "CUPTI_ERROR_OLD_DRIVER": "CUPTI does not fit the driver; update the driver",
}


def explain_cupti(errors: set[str]) -> str:
    """What CUPTI's errors at the start of a profile mean; "" without any."""
    if not errors:
        return ""
    known = [text for code, text in _CUPTI.items() if code in errors]
    code = sorted(errors)[0]
    return f"no device events: {known[0] if known else 'CUPTI does not start'} ({code})"


def why_no_device_events(plain: Path) -> str:
    """Why a window of a program that uses the device holds no device events; "" if it does."""
    if not in_use() or _contains(plain, b'"cat": "kernel"', b'"cat": "gpu_memcpy"'):
        return ""
    tool = other_profiler()
    if tool:
        return f"no device events: {tool} is attached and only one profiler can be; run without it"
    if missing_cupti():
        return (
            "no device events: this torch has no CUPTI (kineto was built without it); install a "
            "CUDA build of torch from pytorch.org"
        )
    if restricted():
        return (
            f"no device events: the driver allows profiling to administrators only; set "
            f"{_SOURCE}=0 for the nvidia module, or run as root"
        )
    if not _contains(plain, b"cudaLaunchKernel", b"cuLaunchKernel", b"hipLaunchKernel"):
        return "no device events: the recorded steps launched no work on the device"
    return (
        "no device events, although work was launched: another process may hold CUPTI (DCGM, "
        "dynolog, a debugger); `kinetoscope doctor` looks for it"
    )


def _contains(path: Path, *texts: bytes) -> bool:
    if path.stat().st_size == 0:
        return False
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        return any(view.find(text) >= 0 for text in texts)
