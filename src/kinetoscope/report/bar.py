"""The budget bar: how many cells each line gets, and what fills them."""

from __future__ import annotations

from collections.abc import Sequence

FILLS = "█▓▒░▞━┅·"
"""One fill for each line, so that the bar reads without colour."""


def fill(index: int) -> str:
    """Return the fill character of the line with this index."""
    return FILLS[min(index, len(FILLS) - 1)]


def cells(shares: Sequence[float], width: int) -> list[int]:
    """Split `width` cells by `shares`, largest remainders first; sums to `width`.

    Negative shares get nothing. All zero gives all zero. A share above zero gets a cell as long
    as there is a line with more than one to take it from.
    """
    known = [max(share, 0.0) for share in shares]
    total = sum(known)
    if total <= 0 or width <= 0:
        return [0] * len(known)
    exact = [share / total * width for share in known]
    counts = [int(value) for value in exact]
    order = sorted(range(len(known)), key=lambda i: exact[i] - counts[i], reverse=True)
    for index in order[: width - sum(counts)]:
        counts[index] += 1
    for index, share in enumerate(known):
        largest = max(range(len(counts)), key=counts.__getitem__)
        if share > 0 and counts[index] == 0 and counts[largest] > 1:
            counts[index], counts[largest] = 1, counts[largest] - 1
    return counts
