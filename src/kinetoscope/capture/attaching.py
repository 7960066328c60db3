"""Wraps what a capture watches; what this torch does not have is said, and costs no more than that.

It happens while the program imports torch, and an error of ours would fail that import.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from kinetoscope.capture.import_hook import after_import
from kinetoscope.capture.loader_workers import wrap_workers
from kinetoscope.capture.torch_parts import ALWAYS, COMPILING, DIFFERS, STORE, missing, this_torch

if TYPE_CHECKING:
    from kinetoscope.capture.session import Session


def attach(session: Session) -> None:
    """Wrap every seam of the imported torch, and tell what is missing of it."""
    for text in missing((*ALWAYS, STORE) if session.place.many else ALWAYS):
        session.problem(text)
    for install in _installs(session):
        try:
            install()
        except DIFFERS as error:
            name = type(error).__name__
            session.problem(f"{this_torch()} differs from what captures know: {name}: {error}")

    def compiling() -> None:
        for text in missing(COMPILING):
            session.problem(text)

    session.seams.also_undo(after_import("torch._dynamo", compiling))
    os.register_at_fork(after_in_child=_if_alive(session.abandon))


def _installs(session: Session) -> tuple[Callable[[], None], ...]:
    seams = session.seams
    return (
        *(seams.installs if session.options.find_steps else ()),
        lambda: wrap_workers(session.folder, seams.replace, session.recorder.batches_ahead),
        lambda: seams.also_undo(session.compiling.install()),
        lambda: session.compiled.install(seams.replace, seams.modules.look_no_more),
        lambda: session.foreign.install(seams.replace),
    )


def _if_alive(method: Callable[[], None]) -> Callable[[], None]:
    """The method, for a list that nothing is ever taken from: it must not keep its object."""
    kept = weakref.WeakMethod(method)

    def call() -> None:
        alive = kept()
        if alive is not None:
            alive()

    return call
