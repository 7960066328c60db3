"""What a device can do at best."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from kinetoscope.metrics.precision import Math

FLOP_CEILING = 0.8
"""Share of the data-sheet rate that good kernels reach: bf16 8192^3 on an H200 gave 769 to 798 of
989 TFLOP/s on random data."""
BANDWIDTH_CEILING = 0.85
"""Share of the data-sheet bandwidth that good kernels reach: a copy on an H200 gave 4.3 of
4.8 TB/s."""

#: What a device without a unit does instead: TF32 and half types go to the vector units.
_INSTEAD = {
    Math.FP64_MATRIX: Math.FP64,
    Math.FP32_MATRIX: Math.FP32,
    Math.TF32: Math.FP32,
    Math.BF16: Math.FP32,
    Math.FP16: Math.FP32,
    Math.FP8: Math.BF16,
    Math.FP4: Math.FP8,
    Math.INT8: Math.FP32,
}


@dataclass(frozen=True)
class Peaks:
    """Peak dense rates of one device, and what is known about them; None is "not known".

    Attributes:
        name: the device, for people.
        tflops: peak dense rate of each unit, 1e12 operations a second (half types accumulate in
            float32, as PyTorch asks for; a multiply-add is two operations).
        bandwidth_gbps: device memory, 1e9 bytes a second, which is bytes a nanosecond.
        multiprocessors: SMs or CUs.
        memory_gib: device memory, GiB, nominal.
        link: name of the link to peer devices.
        link_gbps: that link, per direction, all peers together, 1e9 bytes a second.
        h2d_gbps: copies from pinned host memory, 1e9 bytes a second.
        achievable_tflops: measured best rates, where known; elsewhere `FLOP_CEILING` counts.
        scale: share of the full device that this one is (partitions); already applied.
        source: where the numbers are from.
        unchecked: the values that are from memory and were not compared with the source.
    """

    name: str
    tflops: dict[Math, float]
    bandwidth_gbps: float
    multiprocessors: int | None = None
    memory_gib: float | None = None
    link: str | None = None
    link_gbps: float | None = None
    h2d_gbps: float | None = None
    achievable_tflops: dict[Math, float] = field(default_factory=dict)
    scale: float = 1.0
    source: str = ""
    unchecked: frozenset[str] = frozenset()

    def flop_per_ns(self, math: Math) -> float:
        """Peak rate of a unit, FLOP/ns; 0 when neither it nor what replaces it is known."""
        return 1e3 * self.tflops.get(_available(self.tflops, math), 0.0)

    def achievable_flop_per_ns(self, math: Math) -> float:
        """Rate that a good kernel reaches, FLOP/ns; 0 when unknown."""
        math = _available(self.tflops, math)
        measured = self.achievable_tflops.get(math)
        return 1e3 * measured if measured else FLOP_CEILING * self.flop_per_ns(math)

    @property
    def achievable_bytes_per_ns(self) -> float:
        """Bandwidth that a good kernel reaches, bytes/ns."""
        return BANDWIDTH_CEILING * self.bandwidth_gbps

    def ridge(self, math: Math) -> float:
        """FLOP per byte above which a kernel of this unit is compute bound (M-12)."""
        return self.flop_per_ns(math) / self.bandwidth_gbps

    def flop_rates(self, *, achievable: bool = False) -> npt.NDArray[np.float64]:
        """`flop_per_ns` of every unit, indexed by `Math`."""
        rate = self.achievable_flop_per_ns if achievable else self.flop_per_ns
        return np.array([rate(math) for math in Math])


def _available(tflops: dict[Math, float], math: Math) -> Math:
    while math not in tflops and math in _INSTEAD:
        math = _INSTEAD[math]
    return math
