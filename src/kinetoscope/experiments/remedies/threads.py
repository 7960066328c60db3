"""Use another number of threads inside operators on the CPU.

Patch points: `OMP_NUM_THREADS` before the process starts and `torch.set_num_threads`, whose later
calls by the program do nothing. The knee is the smallest number whose step time is within three
percent of the best; fewer threads leave cores to the workers of a DataLoader.
"""

from __future__ import annotations

from kinetoscope.experiments.remedy import Facts, Remedy

KNEE = 0.03


def _applies(facts: Facts) -> str:
    if facts.cores < 2:
        return "there is one core"
    return "" if not facts.on_gpu or facts.loaders else "the work is on the GPU"


def _values(facts: Facts) -> tuple[str, ...]:
    now = int(facts.settings.get("threads") or 0)
    numbers = [1 << power for power in range(facts.cores.bit_length())]
    numbers = sorted({n for n in (*numbers, facts.cores) if n <= facts.cores and n != now})
    return tuple(str(n) for n in numbers)


def _patch(value: str) -> None:
    import torch

    torch.set_num_threads(int(value))
    torch.set_num_threads = lambda _: None


REMEDY = Remedy(
    id="threads",
    title="another number of threads inside operators",
    tolerance="reordered",
    applies=_applies,
    takes="number",
    values=_values,
    patch=_patch,
    environment=lambda value: {"OMP_NUM_THREADS": value},
    snippet=lambda value: f"torch.set_num_threads({value})",
)
