"""How often does `tune` accept, or call harmful, a remedy that does nothing?

    python -m benchmarks.experiments [--most 60]

Processes are made of random numbers: their pace differs by a known amount, drifts by half of that
from one to the next, and their steps vary by 3 %. Rounds, early end and decision are those of
`tune`. Heavy tails: a neighbour slows some of the processes down (Student's t, two degrees).
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence

import numpy as np

from kinetoscope.experiments.registry import remedies_for
from kinetoscope.experiments.rounds import Side, interleave, pairs
from kinetoscope.experiments.runner import Chosen, Outcome, Runner
from kinetoscope.experiments.verdict import interval, status_of

SEED, STEPS, STEP_SD = 5, 60, 0.03


class Pretended(Runner):
    """A program whose processes take random times, whatever is installed."""

    def __init__(self, random: np.random.Generator, sd: float, *, heavy: bool) -> None:
        super().__init__(["program.py"], 1e9)
        self._random, self._sd, self._heavy, self._drift = random, sd, heavy, 0.0

    def prepare(self, upcoming: Sequence[Chosen]) -> None:
        """Nothing has to be started."""

    def run(self, chosen: Chosen = (), **_: object) -> Outcome:  # noqa: ARG002
        """One process."""
        random = self._random
        self._drift += random.normal(0, self._sd / 2)
        late = abs(random.standard_t(2)) * self._sd if self._heavy else 0.0
        mean = 1e7 * np.exp(random.normal(0, self._sd) + self._drift + late)
        steps = mean * np.exp(random.normal(0, STEP_SD, STEPS))
        return Outcome({"steps": steps.astype(int).tolist()}, "", 1.0)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=int, default=60, help="experiments a row")
    most = parser.parse_args().most
    random = np.random.default_rng(SEED)
    print("| runs differ by | tails | accepted | harmful | no gain | undecided | rounds |")
    print("|--:|---|--:|--:|--:|--:|--:|")
    for heavy in (False, True):
        for sd in (0.02, 0.05, 0.15):
            found: Counter[str] = Counter()
            rounds = 0
            for _ in range(most):
                base, side = Side(()), Side(tuple(remedies_for(["zero-grad"])))
                runner = Pretended(random, sd, heavy=heavy)
                interleave(runner, base, [side], lambda _: None, until_s=0.0)
                found[status_of(interval(*pairs(base, side)), ())[0]] += 1
                rounds += len(side.runs)
            words = ("accepted", "harmful", "no_gain", "undecided")
            shares = " | ".join(f"{found[word] / most:.1%}" for word in words)
            tails = "heavy" if heavy else "normal"
            print(f"| {sd:.0%} | {tails} | {shares} | {rounds / most:.1f} |", flush=True)


if __name__ == "__main__":
    main()
