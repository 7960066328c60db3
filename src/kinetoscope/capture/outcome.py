"""What a capture leaves behind, and how it ends a program that was recorded."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kinetoscope.capture.recorder import Recorder


class EnoughError(SystemExit):
    """Raised inside the program when `stop_after` is set and everything is recorded."""


@dataclass
class Recording:
    """What a capture left behind.

    Attributes:
        recorder: holds the file of each window, compressed, without our facts yet.
        facts: everything that goes into the sidecar.
        problems: what went wrong or is missing, for people.
    """

    recorder: Recorder
    facts: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
