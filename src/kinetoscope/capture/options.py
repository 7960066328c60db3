"""What a caller may set about a capture."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PHASES = ("waiting", "baseline", "light", "full", "lines", "samples", "second", "done")
"""The phases of a capture, in their order."""


@dataclass(frozen=True)
class CaptureOptions:
    """How to capture.

    Attributes:
        budget_s: seconds that the capture may take from the first step on, waiting included.
        size_bytes: how large the full window's trace may become, uncompressed.
        stop_after: end the program once enough is recorded.
        folder: where recordings are kept while the program runs; a temporary one when None.
        name: how recordings are called.
        find_steps: when False, nothing but `step()` counts as a step.
    """

    budget_s: float = 60.0
    size_bytes: int = 200_000_000
    stop_after: bool = False
    folder: Path | None = None
    find_steps: bool = True
    name: str = "program"
