"""The matrix units that a device offers for float32 products, and how a program gets to them."""

from __future__ import annotations

from dataclasses import dataclass

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.hardware import Peaks
from kinetoscope.metrics.precision import Math
from kinetoscope.result import Evidence, Fix


@dataclass(frozen=True)
class MatrixUnits:
    """What the device offers instead of float32."""

    tf32: bool
    half: Math


def matrix_units(analysis: Analysis, device: Peaks | None) -> MatrixUnits | None:
    """Matrix units of the device for 32-bit data, and the half type to propose."""
    if device is not None:
        half = Math.BF16 if Math.BF16 in device.tflops else Math.FP16
        has_half = device.tflops.get(half, 0.0) > 1.5 * device.tflops.get(Math.FP32, 0.0)
        has_tf32 = device.tflops.get(Math.TF32, 0.0) > 1.5 * device.tflops.get(Math.FP32, 0.0)
        return MatrixUnits(has_tf32, half) if has_tf32 or has_half else None
    for entry in analysis.trace.header.devices:
        if entry.compute_capability is not None and analysis.trace.header.vendor != "amd":
            major = entry.compute_capability[0]
            half = Math.BF16 if major >= 8 else Math.FP16
            return MatrixUnits(major >= 8, half) if major >= 7 else None
    return None


def peak_evidence(device: Peaks | None, units: MatrixUnits) -> tuple[Evidence, ...]:
    """The peak of the units that are nearest; nothing where the device is not known."""
    if device is None:
        return ()
    math = Math.TF32 if units.tf32 else units.half
    peak = round(device.tflops.get(math, 0.0) * 1e12)
    return (Evidence(f"{math.name.lower()}_peak", peak, "flop_per_s", "derived"),)


def to_matrix_units(units: MatrixUnits, *, left_out: bool) -> Fix:
    """What to change; `left_out`: other products of the program run in half precision."""
    if left_out:
        name = "bfloat16" if units.half is Math.BF16 else "float16"
        return Fix(
            summary="Other products run in half precision: bring this part under autocast as well, "
            "or allow TF32 for it.",
            snippet=f'with torch.autocast("cuda", dtype=torch.{name}):   # around this call too\n'
            "    answer = model(x)",
            reference="https://docs.pytorch.org/docs/stable/amp.html",
        )
    if units.tf32:
        return Fix(
            summary="Allow TF32 for float32 matrix products, or run the forward pass in bfloat16.",
            snippet='torch.set_float32_matmul_precision("high")\n'
            "torch.backends.cudnn.allow_tf32 = True",
            reference="https://docs.pytorch.org/docs/stable/generated/"
            "torch.set_float32_matmul_precision.html",
        )
    name = "bfloat16" if units.half is Math.BF16 else "float16"
    scaler = "\n# training: scale the loss with torch.amp.GradScaler()"
    scaler = "" if units.half is Math.BF16 else scaler
    return Fix(
        summary=f"Run the forward pass under autocast in {name}.",
        snippet=f'with torch.autocast("cuda", dtype=torch.{name}):\n    loss = model(x){scaler}',
        reference="https://docs.pytorch.org/docs/stable/amp.html",
    )
