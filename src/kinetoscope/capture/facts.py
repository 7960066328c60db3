"""What a capture knows at its end: the sidecar, or why there is nothing to put it into."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kinetoscope.capture import sidecar
from kinetoscope.capture.boundaries import StepFinder
from kinetoscope.capture.torch_parts import DIFFERS, this_torch
from kinetoscope.capture.watcher import CHILDREN, HINT

if TYPE_CHECKING:
    from kinetoscope.capture.session import Session


def why_nothing(finder: StepFinder, *, children: bool) -> str:
    """Why no phase began.

    Args:
        finder: the marks that were seen.
        children: did the program start processes of its own?
    """
    marks = finder.current
    if "torch" not in sys.modules:
        return "the program never imported torch"
    if not finder.marks and children:
        return f"no step was seen; {CHILDREN}"
    if not finder.marks:
        return (
            "no step was seen: no optimizer step, DataLoader, backward, graph replay or module "
            f"call; {HINT}"
        )
    if marks is None or marks.count < 3:
        seen = max(m.count for m in finder.marks.values())
        return f"the program ended after {seen} steps, too few to record any"
    return f"the program ended after {marks.count} steps, before they were steady"


def facts(session: Session) -> dict[str, Any]:
    """Everything that goes into the sidecar."""
    marks, plan = session.finder.current, session.plan
    return {
        "version": sidecar.VERSION,
        "facts": _program(session),
        "steps": {
            "source": marks.kind if marks else None,
            "label": marks.label if marks else None,
            "seen": marks.count if marks else 0,
            "first_recorded": plan.start if plan else None,
            "steady": plan.steady if plan else False,
        },
        **session.recorder.facts(),
        "problems": list(session.problems),
    }


def _program(session: Session) -> dict[str, Any]:
    """What a trace lacks; {} when the program never imported torch."""
    if "torch" not in sys.modules:
        return {}
    sources: dict[str, Callable[[], Any]] = {
        "machine": sidecar.machine,
        "settings": sidecar.settings,  # replaced by those at the end of the baseline
        "environment": sidecar.environment,
        "memory": sidecar.memory,
        "compile_events": session.compiling.table,
        "compile_calls": lambda: session.compiled.found,
        "modes": session.recorder.modes.facts,
    }
    known: dict[str, Any] = {}
    for name, ask in sources.items():
        try:
            known[name] = ask()
        except DIFFERS as error:  # one fact less, not the recording
            session.problem(
                f"{name} is not known: {this_torch()} differs: {type(error).__name__}: {error}"
            )
    return {**known, **session.recorder.program_facts}
