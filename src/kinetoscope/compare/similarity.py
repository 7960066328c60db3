"""How alike two programs are, by the sizes of their products, else by operators and kernels.

The border was set on 21 programs of which two variants each were recorded (other operators,
other precision, compiled or not, padded, captured into a graph) and on all pairs of different
programs: variants of one program share 0.6 or more of their products, different ones 0.1 or less.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kinetoscope.result.profile import Fingerprint, Mark

SAME_PRODUCTS = 0.3
"""From this weighted Jaccard index of the products on, two programs are the same."""
SAME_NAMES = 0.25
"""The same border for operators, kernels or modules, where products are not recorded."""
SAME_OPERATORS = 0.4
"""Programs with other sizes of everything must at least use the same operators, to this part."""
CONTAINED = 0.9
"""Part of the products of a side with a fused recurrent layer that the other side must show."""
PADDED = 1.13
"""Sizes that differ by less were padded to a multiple: still the same program."""
SAME_WORK = 1.25
"""Arithmetic that differs by less is the same work, done in other pieces."""


@dataclass(frozen=True)
class Likeness:
    """How alike two programs are.

    Attributes:
        similarity: 0 to 1; None when the recordings share nothing to compare by.
        basis: what it was computed from, for people.
        same: whether this is one program.
        size_ratio: one size of every product differs by this factor (after / before): another
            batch or sequence length; 1.0 for equal sizes.
        work_ratio: arithmetic of a step, after / before; None when not recorded.
        shared_ratio: how often a step does what both sides do (products, else operators or
            kernels), after / before; None when they share nothing.
    """

    similarity: float | None
    basis: str
    same: bool
    size_ratio: float = 1.0
    work_ratio: float | None = None
    shared_ratio: float | None = None


def likeness(before: Fingerprint, after: Fingerprint) -> Likeness:
    """Compare two fingerprints."""
    names = jaccard(_names(before.operators), _names(after.operators))
    if before.products and after.products:
        by_size = _by_products(_counts(before.products), _counts(after.products), names)
        return by_size if by_size.same else _with_hidden_products(before, after, names) or by_size
    found = [
        (jaccard(_counts(a), _counts(b)), word, _shared(_counts(a), _counts(b)))
        for a, b, word in (
            (before.operators, after.operators, "operators"),
            (before.kernels, after.kernels, "kernels"),
            (before.modules, after.modules, "modules"),
        )
        if a and b
    ]
    if not found:
        return Likeness(None, "nothing that both recordings hold", same=True)
    similarity, word, often = max(found, key=lambda one: one[0])
    same = similarity >= SAME_NAMES
    return Likeness(similarity, f"names of {word}", same=same, shared_ratio=often)


def _by_products(before: Mapping[str, float], after: Mapping[str, float], names: float) -> Likeness:
    basis = "sizes of matrix products and convolutions"
    work = _work(after) / max(_work(before), 1.0)
    plain = jaccard(before, after)
    if plain >= SAME_PRODUCTS:
        often = _shared(before, after)
        return Likeness(plain, basis, same=True, work_ratio=work, shared_ratio=often)
    ratio = _size_ratio(before, after)
    scaled = jaccard(_scaled(before, after, ratio), after) if ratio else 0.0
    if ratio and scaled >= SAME_PRODUCTS and names >= SAME_OPERATORS:
        return Likeness(scaled, basis, same=True, size_ratio=ratio, work_ratio=work)
    return Likeness(max(plain, scaled), basis, same=False, work_ratio=work)


def _with_hidden_products(before: Fingerprint, after: Fingerprint, names: float) -> Likeness | None:
    """Compare when one side does in one operator what the other does in many products.

    A recurrent layer of the library records no sizes of the products inside it. Then the products
    of that side must all be among those of the other one, and the operators alike.
    """
    sides = [before, after]
    hiding = [any(_hides(mark.name) for mark in side.operators) for side in sides]
    if hiding[0] == hiding[1] or names < SAME_OPERATORS:
        return None
    short, long = sides if hiding[0] else reversed(sides)
    mine, other = _counts(short.products), _counts(long.products)
    inside = {name: min(count, other.get(name, 0.0)) for name, count in mine.items()}
    contained = jaccard(inside, mine)
    if contained < CONTAINED:
        return None
    basis = "sizes of products outside the recurrent layer"
    return Likeness(contained, basis, same=True)


def _hides(operator: str) -> bool:
    return operator in ("lstm", "gru") or "_rnn" in operator or operator.startswith("rnn_")


def jaccard(before: Mapping[str, float], after: Mapping[str, float]) -> float:
    """Weighted Jaccard index, counts by their logarithm: a layer more is no new program."""
    names = {*before, *after}
    pairs = [(math.log1p(before.get(n, 0.0)), math.log1p(after.get(n, 0.0))) for n in names]
    total = sum(max(pair) for pair in pairs)
    return sum(min(pair) for pair in pairs) / total if total else 0.0


def _shared(before: Mapping[str, float], after: Mapping[str, float]) -> float | None:
    names = before.keys() & after.keys()
    total = sum(before[name] for name in names)
    return sum(after[name] for name in names) / total if total else None


def _names(marks: Sequence[Mark]) -> dict[str, float]:
    return {mark.name: 1.0 for mark in marks}


def _counts(marks: Sequence[Mark]) -> dict[str, float]:
    return {mark.name: mark.count for mark in marks}


def _sizes(label: str) -> tuple[int, ...]:
    """Sizes of a matrix product; () of anything else."""
    kind, _, rest = label.partition(" ")
    words = rest.split()
    if kind not in ("mm", "bmm") or not all(word.isdigit() for word in words):
        return ()
    return tuple(int(word) for word in words)


def _work(counts: Mapping[str, float]) -> float:
    return sum(count * math.prod(_sizes(label)) for label, count in counts.items() if _sizes(label))


def _other_size(before: tuple[int, ...], after: tuple[int, ...]) -> float | None:
    """The factor between two products that differ in one size only."""
    if len(before) != len(after):
        return None
    gone, new = Counter(before) - Counter(after), Counter(after) - Counter(before)
    if gone.total() != 1 or new.total() != 1:
        return None
    return next(iter(new)) / max(next(iter(gone)), 1)


def _size_ratio(before: Mapping[str, float], after: Mapping[str, float]) -> float | None:
    """The factor by which one size of most products changed."""
    votes: Counter[float] = Counter()
    for a in before:
        for b in after:
            ratio = _other_size(_sizes(a), _sizes(b)) if _sizes(a) and _sizes(b) else None
            if ratio is not None:
                votes[round(ratio, 4)] += 1
    return votes.most_common(1)[0][0] if votes else None


def _scaled(
    before: Mapping[str, float], after: Mapping[str, float], ratio: float
) -> dict[str, float]:
    """The products of the first side under the names that they have on the second one."""
    result: dict[str, float] = {}
    for a, count in before.items():
        match = next(
            (
                b
                for b in after
                if (other := _other_size(_sizes(a), _sizes(b))) is not None
                and math.isclose(other, ratio, rel_tol=1e-3)
            ),
            a,
        )
        # One product of twice the size and two of the plain size are the same work.
        weight = after[match] if match != a and match in after else count
        result[match] = max(result.get(match, 0.0), weight)
    return result
