"""The call paths of two sides laid over each other, for a difference flame graph.

Frames are the same when they stand at the same place below the same callers and are called the
same; a Python frame may have moved to another line, or lie in another folder, since a fix moves
lines and another machine has other paths.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from kinetoscope.result.difference import DIFFERENCE_VERSION, ComparisonView, FlameDifference
from kinetoscope.result.view import DEVICE_KINDS, Column, Flame, Name
from kinetoscope.trace.frames import parse_frame
from kinetoscope.viewdata.pack import pack, unpack

_LEVELS = (("Python frames", frozenset({"python", "user"})), ("modules", frozenset({"module"})))
"""Kinds of frames that only some recordings have."""
_SUMS = 3
"""Host, device, calls of one side."""

Key = tuple[str, str]


@dataclass
class _Node:
    """A frame: its own sums a step, first those before, then those after."""

    name: Name
    own: list[float] = field(default_factory=lambda: [0.0] * (2 * _SUMS))
    children: dict[Key, _Node] = field(default_factory=dict)

    def child(self, name: Name) -> _Node:
        """The child of this exact name, made when there is none."""
        return self.children.setdefault((name.kind, name.text), _Node(name))

    def add(self, own: Sequence[float]) -> None:
        """Add sums to its own."""
        self.own = [a + b for a, b in zip(self.own, own, strict=True)]


def comparison_view(
    before: Sequence[Flame | None], after: Sequence[Flame | None]
) -> ComparisonView:
    """Return the view of a comparison.

    Args:
        before: call paths of each run of the first side; None where a run was a saved result.
        after: those of the second side.
    """
    sides = [[flame for flame in side if flame is not None] for side in (before, after)]
    if not all(sides):
        which = " and ".join(
            word for word, side in zip(("before", "after"), sides, strict=True) if not side
        )
        return ComparisonView(DIFFERENCE_VERSION, None, _MISSING.format(which=which))
    return ComparisonView(DIFFERENCE_VERSION, flame_difference(*sides))


_MISSING = (
    "No call paths are known of the side {which}: a saved result holds none. For this section "
    "compare the recordings themselves: `kinetoscope compare TRACE TRACE -o comparison.html`."
)


def flame_difference(before: Sequence[Flame], after: Sequence[Flame]) -> FlameDifference:
    """Lay the call paths of two sides over each other.

    Args:
        before: call paths of each run of the first side, one at least.
        after: those of the second side.
    """
    hidden, notes = _not_on_both(before, after)
    old, new = (_side(side, at, hidden) for at, side in ((0, before), (_SUMS, after)))
    whole = _laid_over(old, new)
    return _written(whole, tuple(notes))


def _not_on_both(
    before: Sequence[Flame], after: Sequence[Flame]
) -> tuple[frozenset[str], list[str]]:
    """Kinds of frames that one side did not record, and what to say about them."""
    hidden: frozenset[str] = frozenset()
    notes = []
    for word, kinds in _LEVELS:
        there = [any(_has(flame, kinds) for flame in side) for side in (before, after)]
        if there[0] != there[1]:
            hidden |= kinds
            side = "after" if there[0] else "before"
            notes.append(
                f"{word.capitalize()} were not recorded {side}, so they are left out on both sides."
            )
    return hidden, notes


def _has(flame: Flame, kinds: frozenset[str]) -> bool:
    used = {flame.names[i].kind for i in set(unpack(flame.name).tolist())}
    return bool(used & kinds)


def _side(flames: Sequence[Flame], at: int, hidden: frozenset[str]) -> _Node:
    """One side as a tree, the mean of its runs, without the hidden kinds of frames."""
    root = _Node(Name("all", "other"))
    for flame in flames:
        columns = [unpack(c).tolist() for c in (flame.host_ns, flame.device_ns, flame.calls)]
        on_device, on_host = (
            1.0 / (len(flames) * max(steps, 1)) for steps in (flame.steps, flame.host_steps)
        )
        path = [root]
        for i, (name, depth) in enumerate(
            zip(unpack(flame.name).tolist(), unpack(flame.depth).tolist(), strict=True)
        ):
            del path[depth + 1 :]
            called = flame.names[name]
            # What a hidden frame does counts for its caller, and its callees move up.
            gone = called.kind in hidden
            path.append(path[-1] if gone else path[-1].child(_everywhere(called)))
            node, of_calls = path[-1], on_device if called.kind in DEVICE_KINDS else on_host
            node.own[at] += on_host * columns[0][i]
            node.own[at + 1] += on_device * columns[1][i]
            node.own[at + 2] += 0.0 if gone else of_calls * columns[2][i]
    return root


_NUMBER = re.compile(r"\d+")


def _everywhere(name: Name) -> Name:
    """A name without what changes from run to run: the numbers of threads."""
    return Name(_NUMBER.sub("#", name.text), name.kind) if name.kind == "other" else name


def _laid_over(old: _Node, new: _Node) -> _Node:
    """Both trees as one; changes and returns the second."""
    new.add(old.own)
    for mine, other in _pairs(old.children, new.children):
        if other is None:
            new.children[(mine.name.kind, f"{mine.name.text}\0gone")] = mine
        else:
            _laid_over(mine, other)
    return new


def _pairs(old: dict[Key, _Node], new: dict[Key, _Node]) -> Iterable[tuple[_Node, _Node | None]]:
    """Each child of the first side with that of the second which is the same.

    First by the exact name, then what is left by file and function, in the order of the lines.
    """
    left: dict[Key, list[_Node]] = defaultdict(list)
    for key in sorted((k for k in new if k not in old), key=_line):
        left[_loose(new[key].name)].append(new[key])
    for key in sorted(old, key=_line):
        node = old[key]
        if key in new:
            yield node, new[key]
        else:
            others = left[_loose(node.name)]
            yield node, others.pop(0) if others else None


def _line(key: Key) -> int:
    frame = parse_frame(key[1]) if key[0] in ("python", "user") else None
    return frame.line if frame is not None and frame.line is not None else 0


def _loose(name: Name) -> Key:
    """A Python frame by the name of its file and its function."""
    frame = parse_frame(name.text) if name.kind in ("python", "user") else None
    if frame is None:
        return name.kind, name.text
    return "python", f"{PurePosixPath(frame.file).name}: {frame.function}"


def _written(root: _Node, notes: tuple[str, ...]) -> FlameDifference:
    """The tree depth first, the largest first among siblings."""
    numbers: dict[Key, int] = {}
    name: list[int] = []
    depth: list[int] = []
    own: list[list[float]] = []
    stack = [(node, 0) for node in _smallest_first(root)]
    while stack:
        node, level = stack.pop()
        name.append(numbers.setdefault((node.name.kind, node.name.text), len(numbers)))
        depth.append(level)
        own.append(node.own)
        stack += [(child, level + 1) for child in _smallest_first(node)]

    def column(index: int, scale: float = 1.0) -> Column:
        return pack([round(scale * sums[index]) for sums in own])

    return FlameDifference(
        names=tuple(Name(text, kind) for kind, text in numbers),
        name=pack(name),
        depth=pack(depth),
        before_host_ns=column(0),
        after_host_ns=column(_SUMS),
        before_device_ns=column(1),
        after_device_ns=column(_SUMS + 1),
        before_calls=column(2, 100),
        after_calls=column(_SUMS + 2, 100),
        notes=notes,
    )


def _smallest_first(node: _Node) -> list[_Node]:
    return sorted(node.children.values(), key=_weight)


def _weight(node: _Node) -> float:
    return sum(node.own) + sum(_weight(child) for child in node.children.values())
