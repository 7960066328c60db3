"""One profiled window: torch.profiler, started and stopped at step boundaries."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import Any

from kinetoscope.capture.foreign import own_profile
from kinetoscope.capture.quiet import quiet_stderr
from kinetoscope.capture.torch_parts import COLLECTOR, PROFILES

FLAGS: dict[str, dict[str, bool]] = {
    "light": {},
    "full": {"record_shapes": True, "profile_memory": True, "with_stack": True},
}
"""The options of torch.profiler in each window."""


class Window:
    """Records some steps with torch's profiler.

    `prepare` comes one step before `start`, so that setting the profiler up is not recorded.

    Attributes:
        steps: complete steps so far.
        errors: names of CUPTI's errors at the start.
    """

    def __init__(self, name: str, *, device: bool) -> None:
        from torch.profiler import ProfilerActivity, profile, supported_activities

        self.name = name
        self.steps = 0
        self.errors: set[str] = set()
        activities = {ProfilerActivity.CPU}
        if device:
            activities |= supported_activities()
        self._profile = profile(
            activities=sorted(activities, key=str),
            experimental_config=_collector_events() if name == "full" else None,
            **FLAGS[name],
        )
        self._mark: Any = None

    def prepare(self) -> None:
        """Set the profiler up; events are not kept yet.

        Raises:
            RuntimeError: the program profiles itself. Older torch would end its profile silently.
        """
        if PROFILES.get():
            raise RuntimeError("a torch.profiler is already active")
        with own_profile(), quiet_stderr() as errors:
            self._profile.prepare_trace()
        _prepared[:] = [self]
        self.errors |= errors

    def start(self) -> None:
        """Begin to record, at a step boundary."""
        import torch

        _prepared.clear()
        with own_profile(), quiet_stderr() as errors:
            before = torch.empty(1)
            self._profile.start_trace()
            del before  # torch warns about the first free of memory that it did not see allocated
        self.errors |= errors
        self._open_step()

    def next_step(self) -> None:
        """A step ended and the next one begins."""
        self._close_step()
        self._open_step()

    def stop(self) -> None:
        """End the recording, at a step boundary."""
        self._close_step()
        with own_profile(), quiet_stderr():
            self._profile.stop_trace()

    def give_up(self) -> None:
        """Stop in the middle of a step; the steps recorded so far stay."""
        if self._mark is not None:
            self._mark.__exit__(None, None, None)
            self._mark = None
        with own_profile(), quiet_stderr():
            self._profile.stop_trace()

    @property
    def results(self) -> Any:
        """Torch's own record of what happened; None where this torch keeps it elsewhere."""
        return getattr(self._profile.profiler, "kineto_results", None)

    def export(self, path: Path) -> None:
        """Write the plain JSON. Torch's compression re-reads it as text and may fail (A7).

        Raises:
            OSError: not everything arrived in the file; torch itself does not say so.
        """
        with quiet_stderr():
            self._profile.export_chrome_trace(str(path))
        _check_whole(path)

    def release(self) -> None:
        """Let go of torch's events: the profile itself lives in a cycle until collected."""
        self._profile.profiler = None

    def drop(self) -> None:
        """Take back what `prepare` did."""
        with own_profile(), quiet_stderr():
            self._profile.start_trace()
            self._profile.stop_trace()

    def _open_step(self) -> None:
        from torch.autograd.profiler import record_function

        self._mark = record_function(f"ProfilerStep#{self.steps}")
        self._mark.__enter__()

    def _close_step(self) -> None:
        self._mark.__exit__(None, None, None)
        self._mark = None
        self.steps += 1


_prepared: list[Window] = []
"""The window that was prepared last, until it starts."""


def drop_prepared() -> bool:
    """Take back a window that was prepared and never started; False without one.

    Torch before 2.13 (2.4, 2.8) cannot prepare another profile over it, and fails.
    """
    if not _prepared:
        return False
    _prepared.pop().drop()
    return True


def _check_whole(path: Path) -> None:
    """A disk that is full, or a limit on files, cuts the JSON off.

    Torch writes it under another name first and renames it when that worked.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(size - _TAIL, 0))
            if file.read().rstrip().endswith(b"}"):
                return
    except FileNotFoundError:
        pass
    folder = path.parent
    if not folder.is_dir():
        raise OSError(errno.ENOENT, f"{folder} is gone; keep it until the program ends")
    free = shutil.disk_usage(folder).free
    for part in folder.glob(path.name + "*"):
        part.unlink()
    if free < _LITTLE:
        raise OSError(errno.ENOSPC, f"{folder} is full; set TMPDIR to a larger disk")
    raise OSError(errno.EFBIG, f"{folder} took a part only; look for a quota or `ulimit -f`")


_TAIL = 64
_LITTLE = 50_000_000
"""With less than this left, the disk was too small for the trace."""


def _collector_events() -> Any:
    """Record pauses of Python's garbage collector, where torch can (2.9 and later)."""
    config = COLLECTOR.get()
    if config is None:
        return None
    try:
        return config(record_python_gc_info=True)
    except TypeError:
        return None
