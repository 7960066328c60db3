"""Peak rates of known devices, one TOML file each with its source, and how to find a device's."""

from __future__ import annotations

from kinetoscope.metrics.hardware.lookup import load_peaks, peaks_of
from kinetoscope.metrics.hardware.peaks import Peaks

__all__ = ["Peaks", "load_peaks", "peaks_of"]
