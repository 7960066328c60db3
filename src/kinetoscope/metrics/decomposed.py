"""Norms, activations and position encodings that were written out in single operators.

An operator that seldom stands elsewhere tells: `rsqrt` (or `sqrt`) after a mean for a norm, `erf`
or `tanh` between products for GELU, `neg` and `cat` before products for a rotation of positions.
What stands around it, as long as it is of the kind that belongs there, is the group. The backward
pass belongs to it through autograd's sequence numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kinetoscope.metrics.device_ops import DeviceOps
from kinetoscope.trace.trace import IntArray

__all__ = ["Written", "written_out"]


@dataclass(frozen=True)
class Pattern:
    """How a group is recognised.

    Attributes:
        name: what it is.
        key: operators one of which tells.
        before, after: operators that may stand before and after it, in any order.
        reach: how many of them at most, before and after.
        needs: one of these must be among those before (of the first set) and after (second).
        follows: what may come right after the telling operator.
    """

    name: str
    key: frozenset[str]
    before: frozenset[str]
    after: frozenset[str]
    reach: tuple[int, int]
    needs: tuple[frozenset[str], frozenset[str]]
    follows: frozenset[str]


@dataclass(frozen=True)
class Written:
    """One group of the forward pass, as positions among the device events."""

    name: str
    members: IntArray


_CASTS = frozenset({"copy_", "_to_copy"})
_NORM = Pattern(
    name="RMSNorm or LayerNorm",
    key=frozenset({"rsqrt", "sqrt"}),
    before=frozenset("pow square mul mean var sub add add_ rsub".split()) | _CASTS,
    after=frozenset("mul div add mul_ add_ div_ reciprocal".split()) | _CASTS,
    reach=(8, 5),
    needs=(frozenset({"mean", "var"}), frozenset({"mul", "div", "mul_", "div_"})),
    follows=frozenset("mul div add mul_ div_ add_ reciprocal".split()) | _CASTS,
)
_GELU = Pattern(
    name="GELU",
    key=frozenset({"tanh", "erf"}),
    before=frozenset("pow mul add div".split()),
    after=frozenset("add mul add_ mul_".split()),
    reach=(7, 3),
    needs=(frozenset({"mul", "div"}), frozenset({"mul", "mul_"})),
    follows=frozenset({"add", "add_"}),
)
_ROTATION = Pattern(
    name="rotary position encoding",
    key=frozenset({"neg"}),
    before=frozenset({"mul"}),
    after=frozenset("cat mul add mul_ add_".split()),
    reach=(1, 3),
    needs=(frozenset(), frozenset({"cat"})),
    follows=frozenset({"cat"}),
)
_PATTERNS = (_NORM, _GELU, _ROTATION)
_LEAST = {_NORM.name: 5, _GELU.name: 5, _ROTATION.name: 4}
"""Kernels of the shortest way to write it: mean, add, rsqrt, mul and a square for a norm."""


def written_out(work: DeviceOps) -> tuple[Written, ...]:
    """All groups, in launch order."""
    if not any(work.by_op_name(pattern.key.__contains__).any() for pattern in _PATTERNS):
        return ()
    usable = np.flatnonzero((work.op >= 0) & (work.call >= 0) & ~work.backward & ~work.optimizer)
    order = usable[np.lexsort((work.call[usable], work.stream[usable]))]
    found: list[Written] = []
    taken = np.zeros(order.size, dtype=bool)
    names = work.op_names[order]
    for pattern in _PATTERNS:
        for at in np.flatnonzero(work.by_op_name(pattern.key.__contains__)[order]).tolist():
            group = _group(pattern, names, taken, at)
            if group is not None and _same_lane(work, order[group]):
                taken[group] = True
                found.append(Written(pattern.name, order[group]))
    return tuple(sorted(found, key=lambda w: int(w.members[0])))


def _group(pattern: Pattern, names: np.ndarray, taken: np.ndarray, at: int) -> IntArray | None:
    """Positions of the group around one telling operator; None when something is missing."""
    if taken[at] or at + 1 >= names.size or names[at + 1] not in pattern.follows:
        return None
    first = at
    while first > 0 and at - first < pattern.reach[0]:
        if names[first - 1] not in pattern.before or taken[first - 1]:
            break
        first -= 1
    last = at
    while last + 1 < names.size and last - at < pattern.reach[1]:
        if names[last + 1] not in pattern.after or taken[last + 1]:
            break
        last += 1
    before, after = set(names[first:at]), set(names[at + 1 : last + 1])
    missing = (pattern.needs[0] and not pattern.needs[0] & before) or (
        pattern.needs[1] and not pattern.needs[1] & after
    )
    if missing or last - first + 1 < _LEAST[pattern.name]:
        return None
    return np.arange(first, last + 1)


def _same_lane(work: DeviceOps, members: IntArray) -> bool:
    """Is the group launched by one thread, one after the other, within one function?"""
    tree, nodes = work.trace.tree, work.trace.links.node[work.rows[members]]
    if nodes.min(initial=0) < 0 or work.stream[members[0]] != work.stream[members[-1]]:
        return False
    frames = tree.user_frame[nodes]
    modules = tree.module[nodes]
    return bool((frames == frames[0]).all() or (modules == modules[0]).all())
