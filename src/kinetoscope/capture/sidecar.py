"""What a trace lacks: versions, device, settings, environment. An allow-list, nothing else."""

from __future__ import annotations

import fnmatch
import os
import platform
import sys
from importlib import import_module
from typing import Any

from kinetoscope.capture.device import in_use
from kinetoscope.capture.precision import convolution_tf32, matmul_precision

VERSION = 1
"""Version of the sidecar."""

ALLOWED = (
    "CUDA_LAUNCH_BLOCKING CUDA_DEVICE_MAX_CONNECTIONS CUDA_MODULE_LOADING CUDA_VISIBLE_DEVICES "
    "CUDA_CACHE_DISABLE CUBLAS_WORKSPACE_CONFIG HIP_VISIBLE_DEVICES HIP_LAUNCH_BLOCKING "
    "AMD_SERIALIZE_KERNEL PYTORCH_ALLOC_CONF PYTORCH_*ALLOC_CONF PYTORCH_NO_CUDA_MEMORY_CACHING "
    "PYTORCH_JIT OMP_* MKL_NUM_THREADS MKL_DYNAMIC KMP_AFFINITY KMP_BLOCKTIME GOMP_CPU_AFFINITY "
    "NCCL_* RCCL_* GLOO_SOCKET_IFNAME TORCH_NCCL_* TORCH_DISTRIBUTED_DEBUG TORCH_CUDNN_* "
    "NVIDIA_TF32_OVERRIDE TORCH_ALLOW_TF32_* TORCH_LOGS TORCHDYNAMO_DISABLE TORCH_COMPILE_DISABLE "
    "TORCHINDUCTOR_* TORCH_SHOW_CPP_STACKTRACES DISABLE_ADDMM_CUDA_LT TOKENIZERS_PARALLELISM "
    "PYTHONHASHSEED PYTHONDEVMODE PYTHONASYNCIODEBUG PYTHONMALLOC MALLOC_CONF WORLD_SIZE "
    "LOCAL_WORLD_SIZE"
).split()
"""Names, with `*`, of the variables that are stored. They cost or change speed; none is secret."""


def environment() -> dict[str, str]:
    """The variables of the allow-list that are set."""
    return {
        name: value[:500]
        for name, value in sorted(os.environ.items())
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in ALLOWED)
    }


def machine() -> dict[str, Any]:
    """Versions and the host."""
    import torch

    facts: dict[str, Any] = {
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
        "debug_build": bool(torch.version.debug),
        "cpu_count": os.cpu_count(),
        "usable_cpus": _usable_cpus(),
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
    }
    if in_use():
        facts["devices"] = _devices()
        facts["driver"], facts["clocks"] = _driver()
    return facts


def settings() -> dict[str, Any]:
    """Precision and library flags that change speed."""
    import torch

    backends = torch.backends
    return {
        "float32_matmul_precision": matmul_precision(),
        "cudnn_allow_tf32": convolution_tf32(),
        "cudnn_benchmark": bool(backends.cudnn.benchmark),
        "cudnn_deterministic": bool(backends.cudnn.deterministic),
        "cudnn_enabled": bool(backends.cudnn.enabled),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "anomaly_mode": torch.is_anomaly_enabled(),
        "grad_enabled": torch.is_grad_enabled(),
        "default_dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "profiler_hooks": sys.getprofile() is not None,
        "trace_hooks": sys.gettrace() is not None,
    }


def memory() -> dict[str, Any]:
    """What the allocator says about the device."""
    import torch

    if not in_use():
        return {}
    stats = torch.cuda.memory_stats()
    names = {
        "allocated_bytes.all.peak": "peak_allocated_bytes",
        "reserved_bytes.all.peak": "peak_reserved_bytes",
        "inactive_split_bytes.all.current": "inactive_split_bytes",
        "num_alloc_retries": "alloc_retries",
        "num_ooms": "out_of_memory",
        "num_device_alloc": "device_allocations",
        "num_device_free": "device_frees",
    }
    known = {mine: stats[name] for name, mine in names.items() if name in stats}
    facts: dict[str, Any] = {name: int(value) for name, value in known.items()}
    free, total = torch.cuda.mem_get_info()
    facts.update(free_bytes=free, total_bytes=total, backend=torch.cuda.get_allocator_backend())
    return facts


def _usable_cpus() -> int | None:
    """Processors that this process may use, by its affinity."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None


def _devices() -> list[dict[str, Any]]:
    import torch

    found = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        found.append(
            {
                "id": index,
                "name": properties.name,
                "memory_bytes": properties.total_memory,
                "multiprocessors": properties.multi_processor_count,
                "capability": f"{properties.major}.{properties.minor}",
            }
        )
    return found


def _driver() -> tuple[str | None, dict[str, Any]]:
    """Driver version, and clocks and power limits, as far as NVML tells."""
    try:
        nvml = import_module("pynvml")
    except ImportError:
        return None, {}
    try:
        nvml.nvmlInit()
        version = nvml.nvmlSystemGetDriverVersion()
        handle = nvml.nvmlDeviceGetHandleByIndex(0)
        return str(version), {
            "sm_mhz": nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            "sm_max_mhz": nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM),
            "power_watts": nvml.nvmlDeviceGetPowerUsage(handle) / 1000.0,
            "power_limit_watts": nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000.0,
            "throttle_reasons": int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
        }
    except nvml.NVMLError:
        return None, {}
