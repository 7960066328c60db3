"""When two ways to name a line of the program are one place."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from kinetoscope.result import Location


def add_place(found: dict[tuple[object, ...], Location], place: Location) -> tuple[object, ...]:
    """Add a place and return its key.

    A line that is known in two ways (recorded, sampled) is one place; so is one that torch gives
    as the first, as it does for functions that run when the recording begins. An exact line
    that ran inside of several modules is in the part of their paths that is the same, one with a
    generator expression on it in the function around that.
    """
    line: tuple[object, ...] = (place.file, place.line, True)
    unsure = (place.file, place.line, False, place.function, place.module)
    exact = (place.exact or line in found) and place.file is not None
    key = line if exact else unsure
    known = found.get(key) or (found.pop(unsure, None) if exact else None)
    if known is not None:
        place = replace(
            known,
            function=min(known.function, place.function, key=_is_anonymous),
            module=_shared(known.module, place.module),
            count=known.count + place.count,
            exact=exact,
        )
    found[key] = place
    return key


def without_vague(places: Iterable[Location]) -> tuple[Location, ...]:
    """Without functions of unknown line of which another place says the line."""
    places = tuple(places)
    known = {(place.file, place.function) for place in places if place.line is not None}
    return tuple(p for p in places if p.line is not None or (p.file, p.function) not in known)


def _is_anonymous(function: str | None) -> bool:
    """Is it a `<genexpr>`, `<lambda>` or `<listcomp>`?"""
    return function is None or function.startswith("<")


def _shared(one: str | None, other: str | None) -> str | None:
    """`GPT / Block / Linear` and `GPT / Block / LayerNorm` -> `GPT / Block`."""
    same = []
    for a, b in zip((one or "").split(" / "), (other or "").split(" / "), strict=False):
        if a != b:
            break
        same.append(a)
    return " / ".join(same) or None
