"""The remedies, by file name; no list names them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from kinetoscope.errors import UsageError
from kinetoscope.experiments import remedies
from kinetoscope.experiments.remedy import Remedy
from kinetoscope.rules.registry import all_rules


@cache
def all_remedies() -> tuple[Remedy, ...]:
    """Return every remedy, by id."""
    found = [
        import_module(f"{remedies.__name__}.{module.name}").REMEDY
        for module in iter_modules(remedies.__path__)
        if not module.name.startswith("_")
    ]
    return tuple(sorted(found, key=lambda remedy: remedy.id))


def remedy_of(name: str) -> tuple[Remedy, str]:
    """Return the remedy and the parameter of `dataloader-workers=4`.

    Raises:
        UsageError: there is no such remedy, or it does not take this parameter.
    """
    wanted, _, value = name.partition("=")
    for remedy in all_remedies():
        if remedy.id == wanted:
            if wrong := remedy.wrong(value):
                raise UsageError(f"{name}: {wanted} {wrong}", hint="kinetoscope tune --list")
            return remedy, value
    known = ", ".join(remedy.id for remedy in all_remedies())
    raise UsageError(f"there is no rule and no remedy {wanted!r}", hint=f"Remedies: {known}.")


def codes_of(remedy: Remedy) -> tuple[str, ...]:
    """Return the codes of the rules that recommend a remedy; the rules name it."""
    return tuple(sorted({code for code, id_, _ in _named_by_rules() if id_ == remedy.id}))


def _named_by_rules() -> list[tuple[str, str, str]]:
    """Code, remedy and parameter ("": all of them) of everything that the rules recommend."""
    named = [(rule.code, name.partition("=")) for rule in all_rules() for name in rule.remedies]
    return [(code, remedy, value) for code, (remedy, _, value) in named]


def remedies_for(names: Sequence[str]) -> list[tuple[Remedy, str]]:
    """Return the remedies of rule codes and remedy names; the parameter is "" when not given.

    Raises:
        UsageError: a code without a remedy, or an unknown name.
    """
    chosen: list[tuple[Remedy, str]] = []
    codes = {rule.code for rule in all_rules()}
    for name in names:
        code = name.upper()
        if code not in codes:
            chosen.append(remedy_of(name))
            continue
        fitting = [
            (remedy, value)
            for remedy in all_remedies()
            for of, id_, value in _named_by_rules()
            if of == code and id_ == remedy.id
        ]
        if not fitting:
            raise UsageError(
                f"no remedy can be applied from outside for {code}",
                hint=f"`kinetoscope rules {code}` says what to change in the program; then "
                "`kinetoscope compare` says whether it helped.",
            )
        chosen += [pair for pair in fitting if pair not in chosen]
    return chosen
