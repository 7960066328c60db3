"""Where the time went: budget lines and costs of both sides, matched, with their noise."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from kinetoscope.result import Diagnosis
from kinetoscope.result.comparison import BudgetChange, Change, CostChange
from kinetoscope.result.difference import LEAST_HOST_NOISE, LEAST_NOISE, SMALLEST
from kinetoscope.result.profile import Cost, CostKind, Profile
from kinetoscope.result.vocabulary import BudgetClass

MOST_ROWS = 60
"""Changes of each kind of row that are kept, largest first."""
_NOISE = 2.0
"""Standard errors that a change must pass."""


_TOLD_BY_STACKS = ("Python code", "autograd engine", "host code that was not recorded")
"""Lines that only Python stacks tell apart."""
_OUTSIDE_OPERATORS = "host code outside operators"


def budget_changes(
    before: Sequence[Diagnosis], after: Sequence[Diagnosis]
) -> tuple[BudgetChange, ...]:
    """Return the budget lines of both sides, largest change first.

    Where one side has no stacks, the lines that they tell apart are one line on both: time that is
    only named otherwise did not change.
    """
    joined = _TOLD_BY_STACKS if _one_sided_stacks(before, after) else ()
    a, b = _budget_means(before, joined), _budget_means(after, joined)
    step = max(_mean_step(before), _mean_step(after))
    rows = []
    for key in dict.fromkeys([*a, *b]):
        old, new = a.get(key, (0.0, 0.0)), b.get(key, (0.0, 0.0))
        noise = max(
            _NOISE * math.hypot(old[1], new[1]),
            LEAST_NOISE * max(old[0], new[0]),
            SMALLEST * step,
        )
        rows.append(
            BudgetChange(
                class_=key[0],
                label=key[1],
                before_ns=round(old[0]),
                after_ns=round(new[0]),
                change_ns=round(new[0] - old[0]),
                noise_ns=round(noise),
                change=_change(old[0], new[0], noise),
            )
        )
    return tuple(sorted(rows, key=lambda row: -abs(row.change_ns)))


_Key = tuple[BudgetClass, str]


def _one_sided_stacks(before: Sequence[Diagnosis], after: Sequence[Diagnosis]) -> bool:
    known = [p.recorded.stacks for run in (*before, *after) if (p := run.profile) is not None]
    return len(set(known)) > 1


def _budget_means(
    runs: Sequence[Diagnosis], joined: Sequence[str]
) -> dict[_Key, tuple[float, float]]:
    """(class, label) -> mean and standard error over the runs; missing lines count as zero."""
    values: dict[_Key, list[int]] = defaultdict(list)
    for run in runs:
        lines: dict[_Key, int] = defaultdict(int)
        for line in run.budget:
            label = _OUTSIDE_OPERATORS if line.label in joined else line.label
            lines[line.class_, label] += line.ns
        for key, ns in lines.items():
            values[key].append(ns)
    size = len(runs)
    result = {}
    for key, found in values.items():
        padded = [*found, *([0] * (size - len(found)))]
        mean = sum(padded) / size
        spread = math.sqrt(sum((v - mean) ** 2 for v in padded) / max(size - 1, 1))
        result[key] = (mean, spread / math.sqrt(size))
    return result


def _mean_step(runs: Sequence[Diagnosis]) -> float:
    return sum(run.step.time_ns.mid for run in runs) / len(runs)


def _change(old: float, new: float, noise: float) -> Change:
    if abs(new - old) <= noise:
        return "same"
    if old == 0:
        return "added"
    if new == 0:
        return "gone"
    return "slower" if new > old else "faster"


# ---- operators, kernels, modules ---------------------------------------------------------

Key = tuple[str, str, str]


@dataclass
class _Row:
    """A cost summed at the level that both sides recorded, mean over the runs of a side."""

    calls: float = 0.0
    host: float = 0.0
    device: float = 0.0
    host_var: float = 0.0
    device_var: float = 0.0
    position: int = 1 << 30

    def add(self, cost: Cost, part: float, steps: int) -> None:
        """Add one run's row, which is `part` of the side."""
        self.calls += part * cost.calls
        self.host += part * cost.host_ns
        self.device += part * cost.device_ns
        self.host_var += part**2 * cost.host_sd_ns**2 / max(steps, 1)
        self.device_var += part**2 * cost.device_sd_ns**2 / max(steps, 1)
        self.position = min(self.position, cost.position)


def cost_changes(before: Sequence[Profile], after: Sequence[Profile]) -> tuple[CostChange, ...]:
    """Return the changed operators, kernels and modules of both sides, largest first of each."""
    shapes = all(p.recorded.shapes for p in (*before, *after))
    stacks = all(p.recorded.stacks for p in (*before, *after))

    def key(cost: Cost) -> Key:
        return cost.name, cost.shape if shapes else "", cost.module if stacks else ""

    step = max(_pace(before), _pace(after))
    tables: tuple[tuple[CostKind, Callable[[Profile], tuple[Cost, ...]]], ...] = (
        ("operator", lambda p: p.operators),
        ("kernel", lambda p: p.kernels),
        ("module", lambda p: p.modules),
    )
    found: list[CostChange] = []
    for kind, table in tables:
        if kind == "module" and not stacks:
            continue
        a, b = _summed(before, table, key), _summed(after, table, key)
        if not a or not b:
            continue  # one side did not record them: nothing was added or removed
        # A row that a full table leaves out may cost as much as the smallest one in it.
        unseen = max(_unseen(before, table), _unseen(after, table))
        rows = [_compared(kind, k, m, a.get(k), b.get(m), (step, unseen)) for k, m in _pairs(a, b)]
        rows.sort(key=lambda row: (row.change == "same", -abs(row.change_ns)))
        found += rows[:MOST_ROWS]
    return tuple(found)


def _unseen(side: Sequence[Profile], table: Callable[[Profile], tuple[Cost, ...]]) -> float:
    full = [table(p) for p in side if len(table(p)) >= MOST_ROWS]
    return float(max((min(max(c.host_ns, c.device_ns) for c in rows) for rows in full), default=0))


def _pace(profiles: Sequence[Profile]) -> float:
    return max(float(r.mid_ns) for p in profiles for r in p.ranks)


def _summed(
    side: Sequence[Profile],
    table: Callable[[Profile], tuple[Cost, ...]],
    key: Callable[[Cost], Key],
) -> dict[Key, _Row]:
    rows: dict[Key, _Row] = {}
    for profile in side:
        steps = max(len(profile.ranks[0].host_ns), 1)
        for cost in table(profile):
            rows.setdefault(key(cost), _Row()).add(cost, 1 / len(side), steps)
    return rows


def _pairs(a: dict[Key, _Row], b: dict[Key, _Row]) -> Iterable[tuple[Key, Key]]:
    """Equal keys; then rows of one name that remain, in the order of their first call.

    What is left stands alone: a key that only one side has is paired with itself.
    """
    both = [k for k in a if k in b]
    yield from ((k, k) for k in both)
    left: dict[str, list[Key]] = defaultdict(list)
    right: dict[str, list[Key]] = defaultdict(list)
    for keys, table, rest in ((left, a, b), (right, b, a)):
        for k in sorted((k for k in table if k not in rest), key=lambda k: table[k].position):
            keys[k[0]].append(k)
    for name in dict.fromkeys([*left, *right]):
        mine, other = left.get(name, []), right.get(name, [])
        if len(mine) == len(other):
            yield from zip(mine, other, strict=True)
        else:
            yield from ((k, k) for k in (*mine, *other))


def _compared(
    kind: CostKind,
    old_key: Key,
    new_key: Key,
    old: _Row | None,
    new: _Row | None,
    scale: tuple[float, float],
) -> CostChange:
    step, unseen = scale
    a, b = old or _Row(), new or _Row()
    on_device = max(a.device, b.device) > 0
    before, after = (a.device, b.device) if on_device else (a.host, b.host)
    var = a.device_var + b.device_var if on_device else a.host_var + b.host_var
    least = LEAST_NOISE if on_device else LEAST_HOST_NOISE
    noise = max(_NOISE * math.sqrt(var), least * max(before, after), SMALLEST * step)
    if old is None or new is None:
        noise = max(noise, unseen)
    change = _change(before, after, noise)
    if change != "same" and old is None:
        change = "added"
    if change != "same" and new is None:
        change = "gone"
    shape = old_key[1] if old_key[1] == new_key[1] else f"{old_key[1]} -> {new_key[1]}"
    return CostChange(
        kind=kind,
        name=old_key[0],
        shape=shape,
        module=old_key[2] or new_key[2],
        change=change,
        change_ns=round(after - before),
        noise_ns=round(noise),
        on="device" if on_device else "host",
        before_calls=round(a.calls, 3),
        after_calls=round(b.calls, 3),
        before_host_ns=round(a.host),
        after_host_ns=round(b.host),
        before_device_ns=round(a.device),
        after_device_ns=round(b.device),
    )
