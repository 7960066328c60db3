"""How busy the machine is during the baseline: processors, memory, devices."""

from __future__ import annotations

import threading
import time
from importlib import import_module
from typing import Any

_EVERY_S = 0.25
_LARGEST_SHARE = 0.005
"""Part of the time that samples may take; where the driver answers slowly there are fewer."""


class Utilisation:
    """Asks psutil at both ends and NVML in between; what is not installed is left out.

    Processors are not sampled: the difference between both ends is the mean, and on a host with
    hundreds of them each look takes milliseconds of a core, which the threads of a parallel
    operator would have to wait for.
    """

    def __init__(self, *, device: bool) -> None:
        self._psutil = _module("psutil")
        self._nvml = _module("pynvml") if device else None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._devices: list[dict[str, float]] = []
        self._process: Any = None

    def start(self) -> None:
        """Begin."""
        if self._psutil is not None:
            self._process = self._psutil.Process()
            self._process.cpu_percent()
            self._psutil.cpu_percent(percpu=True)
        if self._nvml is not None:
            self._thread = threading.Thread(target=self._work, name="kinetoscope-use", daemon=True)
            self._thread.start()

    def stop(self) -> dict[str, Any]:
        """End, and return means over the time since the start."""
        facts: dict[str, Any] = {}
        if self._psutil is not None:
            cores = self._psutil.cpu_percent(percpu=True)
            facts["cpu_percent_per_core"] = [round(value, 1) for value in cores]
            facts["process_cpu_percent"] = round(self._process.cpu_percent(), 1)
            facts["process_memory_bytes"] = int(self._process.memory_info().rss)
            facts["memory_percent"] = float(self._psutil.virtual_memory().percent)
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        for key in self._devices[0] if self._devices else ():
            facts[key] = round(_mean([sample[key] for sample in self._devices]), 1)
        return facts

    def _work(self) -> None:
        handle = self._device_handle()
        pause = _EVERY_S
        while handle is not None and not self._stop.wait(pause):
            started = time.perf_counter()
            self._devices.append(self._sample_device(handle))
            pause = max(_EVERY_S, (time.perf_counter() - started) / _LARGEST_SHARE)

    def _device_handle(self) -> Any:
        if self._nvml is None:
            return None
        try:
            self._nvml.nvmlInit()
            return self._nvml.nvmlDeviceGetHandleByIndex(0)
        except self._nvml.NVMLError:
            return None

    def _sample_device(self, handle: Any) -> dict[str, float]:
        nvml = self._nvml
        assert nvml is not None  # noqa: S101 - asked by the callers
        try:
            rates = nvml.nvmlDeviceGetUtilizationRates(handle)
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
            return {
                "device_percent": float(rates.gpu),
                "device_memory_percent": 100.0 * memory.used / max(memory.total, 1),
                "sm_clock_mhz": float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
                "power_watts": nvml.nvmlDeviceGetPowerUsage(handle) / 1000.0,
            }
        except nvml.NVMLError:
            return dict.fromkeys(
                ("device_percent", "device_memory_percent", "sm_clock_mhz", "power_watts"), 0.0
            )


def _module(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        return None


def _mean(values: Any) -> float:
    listed = list(values)
    return sum(listed) / len(listed) if listed else 0.0
