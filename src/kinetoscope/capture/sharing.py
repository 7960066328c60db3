"""The capture that is active in this process, so that `kinetoscope.step()` can reach it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kinetoscope.capture.session import Session

_current: list[Session] = []


def set_current(session: Session | None) -> None:
    """Make a session the active one; None when it ends."""
    _current.clear()
    if session is not None:
        _current.append(session)


def current() -> Session | None:
    """The active session."""
    return _current[-1] if _current else None


def step() -> None:
    """A step of the program ended. Does nothing when nobody captures."""
    if _current:
        _current[-1].note("user", 0, "kinetoscope.step()")
