"""The modes that the program's own calls run under: gradients, inference, autocast.

A function mode sees every call of torch's Python interface before autograd and autocast take it,
so it reads the modes as the program set them, also by a context manager that is gone by the time
a step ends. Calls out of torch's own files (optimizers, the loader) do not count. Like the dispatch
mode it is active for one step, and left out for programs that compile; there calls of the outermost
modules tell.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

from kinetoscope.capture.torch_parts import FUNCTION_MODE

_State = tuple[bool, bool, str, str]
"""Gradients, inference mode, device and dtype of autocast ("" for none)."""

_MOST_CALLS = 64
_IGNORED = frozenset(
    {"_set_grad_enabled", "_enter_inference_mode", "_exit_autocast", "__get__", "__set__"}
)
"""Calls that change a mode are not under the one that they find; attributes are no work."""
_DEEPEST = 8
"""Frames that are looked at for an optimizer."""


class Modes:
    """Counts the modes of calls."""

    def __init__(self) -> None:
        self._seen: Counter[_State] = Counter()
        self._mode: Any = None

    def start(self) -> None:
        """Begin, in the thread of the steps."""
        self._mode = _mode(self.note)
        self._mode.__enter__()

    def stop(self) -> None:
        """End, if it is active."""
        if self._mode is not None and self.outermost:
            self._mode.__exit__(None, None, None)

    @property
    def outermost(self) -> bool:
        """Would the next call come here first? Not inside of one, and not once it is over."""
        current = FUNCTION_MODE.get()
        return current is not None and current() is self._mode

    def note(self) -> None:
        """One call of the program."""
        self._seen[_state()] += 1

    def called(self) -> None:
        """One call of an outermost module; only the first ones are looked at."""
        if sum(self._seen.values()) < _MOST_CALLS:
            self.note()

    def facts(self) -> dict[str, Any]:
        """Shares of the calls under each mode; {} when no call was seen."""
        total = sum(self._seen.values())
        if not total:
            return {}
        cast: Counter[tuple[str, str]] = Counter()
        for (_, _, device, dtype), count in self._seen.items():
            if device:
                cast[device, dtype] += count
        return {
            "calls": total,
            "grad_ratio": self._ratio(0, total),
            "inference_ratio": self._ratio(1, total),
            "autocast": [
                {"device": device, "dtype": dtype, "ratio": round(count / total, 4)}
                for (device, dtype), count in cast.most_common()
            ],
        }

    def _ratio(self, place: int, total: int) -> float:
        return round(sum(n for state, n in self._seen.items() if state[place]) / total, 4)


def _state() -> _State:
    import torch

    # The device that autocast is on for; the accelerator's counts before the processor's.
    device = next((name for name in ("cuda", "cpu") if torch.is_autocast_enabled(name)), "")
    dtype = str(torch.get_autocast_dtype(device)).removeprefix("torch.") if device else ""
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), device, dtype


def _mode(note: Any) -> Any:
    from torch.overrides import TorchFunctionMode

    def called(_mode: Any, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") not in _IGNORED and not _in_optimizer(sys._getframe(1)):
            note()
        return func(*args, **(kwargs or {}))

    return type("Watching", (TorchFunctionMode,), {"__torch_function__": called})()


def _in_optimizer(frame: Any) -> bool:
    """Is the call one of an optimizer's? Those run without gradients in every program."""
    for _ in range(_DEEPEST):
        if frame is None:
            return False
        if "/torch/optim/" in frame.f_code.co_filename.replace("\\", "/"):
            return True
        frame = frame.f_back
    return False
