"""Where this process stands among the ranks of a job, and how ranks agree on a window."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kinetoscope.capture.torch_parts import STORE
from kinetoscope.errors import UsageError

_KEY = "kinetoscope/"
MARGIN_STEPS = 6
MARGIN_S = 0.3
"""So many steps and seconds lie between the decision and the baseline, for others to hear of it."""


@dataclass(frozen=True)
class Place:
    """This process among the ranks, as torchrun, SLURM or MPI say by variables.

    Attributes:
        job: the same text on all ranks of one run, different for every run.
        lead: the rank that decides and merges: the lowest one that records.
    """

    rank: int
    world: int
    job: str
    lead: int = 0

    @staticmethod
    def here() -> Place:
        """Read the variables."""
        env = os.environ
        rank, world = int(env.get("RANK", "0")), int(env.get("WORLD_SIZE", "1"))
        parts = [env.get("TORCHELASTIC_RUN_ID", ""), env.get("MASTER_PORT", "")]
        if env.get("LOCAL_WORLD_SIZE", str(world)) == str(world):
            parts.append(str(os.getppid()))  # one machine: torchrun itself is the parent of all
        return Place(rank, world, "-".join(part for part in parts if part))

    def led_by(self, ranks: frozenset[int] | None) -> Place:
        """The same place, with the lowest recording rank as the lead."""
        return replace(self, lead=min(self.recording(ranks), default=0))

    @property
    def many(self) -> bool:
        """Are there several ranks?"""
        return self.world > 1

    def captures(self, ranks: frozenset[int] | None) -> bool:
        """Does this rank record?"""
        return not self.many or ranks is None or self.rank in ranks

    def recording(self, ranks: frozenset[int] | None) -> tuple[int, ...]:
        """The ranks that record, in order."""
        return tuple(r for r in range(self.world) if ranks is None or r in ranks)

    @property
    def folder(self) -> Path:
        """Where the ranks of this run put their recordings."""
        safe = "".join(c if c.isalnum() else "-" for c in self.job)
        return Path(tempfile.gettempdir()) / f"kinetoscope-job-{safe}"


def parse_ranks(text: str) -> frozenset[int] | None:
    """The ranks of `0,1`; None for `all`.

    Raises:
        UsageError: not a list of ranks.
    """
    if text.strip().lower() == "all":
        return None
    try:
        return frozenset(int(part) for part in text.split(","))
    except ValueError as error:
        raise UsageError(
            f"{text!r} is not a list of ranks", hint="Write --ranks 0,1 or --ranks all."
        ) from error


class Agreement:
    """The leading rank says when phases are; the others listen. Through the job's own store."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def publish(self, said: dict[str, Any], about: str = "plan") -> None:
        """Tell the other ranks."""
        store = _store()
        if store is not None:
            store.set(_KEY + about, json.dumps(said))

    def ask(self, about: str = "plan") -> dict[str, Any] | None:
        """What the leading rank said; None so far."""
        store = _store()
        if store is None or not store.check([_KEY + about]):
            return None
        said: dict[str, Any] = json.loads(store.get(_KEY + about))
        return said

    @property
    def possible(self) -> bool:
        """Is there a process group whose store can be used?"""
        return self._place.many and _store() is not None

    @property
    def leads(self) -> bool:
        """Does this rank decide?"""
        return self._place.rank == self._place.lead


def _store() -> Any:
    module = sys.modules.get("torch.distributed.distributed_c10d")
    if module is None or not module.is_initialized():
        return None
    store = STORE.get()
    return None if store is None else store()
