"""The program's own use of torch's profiler: only one profile can be active in a process.

Ours gives way. While a profile of the program is prepared or active, none of our windows starts;
when the program starts one in the middle of a window of ours, the window ends with the steps that
it has. Without that the program would fail, for torch refuses a second profile.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kinetoscope.capture.torch_parts import PREPARE, START

_own = threading.local()


@contextmanager
def own_profile() -> Iterator[None]:
    """Around calls of ours to torch's profiler: they are not the program's."""
    _own.active = True
    try:
        yield
    finally:
        _own.active = False


class ForeignProfile:
    """Watches `torch.autograd.profiler.profile`, which `torch.profiler` uses as well.

    Args:
        starting: called before a profile of the program starts.
        drop: takes back a window of ours that was prepared and never started; False without one.

    Attributes:
        seen: did the program ever begin a profile?
    """

    def __init__(self, starting: Callable[[], None], drop: Callable[[], bool]) -> None:
        self._starting = starting
        self._drop = drop
        self.seen = False
        self._open: set[int] = set()

    @property
    def active(self) -> bool:
        """Is a profile of the program prepared or running?"""
        return bool(self._open)

    def install(self, replace: Callable[[Any, str, Any], None]) -> None:
        """Wrap the three seams; `replace` sets an attribute so that it can be put back."""
        from torch.autograd import profiler

        kind = profiler.profile
        for part in (PREPARE, START):
            method = part.get()
            if method is not None:
                wrapped = self._before(method, self._begins)
                replace(kind, part.path.rpartition(".")[2], wrapped)
        replace(kind, "__exit__", self._before(kind.__exit__, self._ends))

    def _begins(self, profile: Any) -> None:
        self.seen = True
        if id(profile) not in self._open:
            self._open.add(id(profile))
            self._starting()

    def _ends(self, profile: Any) -> None:
        self._open.discard(id(profile))

    def _before(self, method: Any, then: Callable[[Any], None]) -> Any:
        @functools.wraps(method)
        def wrapper(profile: Any, *args: Any, **kwargs: Any) -> Any:
            if getattr(_own, "active", False):
                return method(profile, *args, **kwargs)
            then(profile)
            try:
                return method(profile, *args, **kwargs)
            except RuntimeError:
                if not self._drop():
                    raise
            return method(profile, *args, **kwargs)

        return wrapper
