"""Finds the rules: every file of this package whose name starts with a code, and entry points.

Files are found by name on purpose: a rule that fails to import must be an error, not a gap.
"""

from __future__ import annotations

import importlib
import re
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

from kinetoscope.errors import UsageError
from kinetoscope.rules.api import Rule

ENTRY_POINT = "kinetoscope.rules"
"""A plugin's entry point of this group names a `Rule` or a function that returns rules."""

_RULE_FILE = re.compile(r"[a-z]{2}\d{3}_[a-z0-9_]+\.py")


@cache
def all_rules() -> tuple[Rule, ...]:
    """All rules, by code; raise `UsageError` when two share one."""
    rules = [*_own_rules(), *_plugin_rules()]
    by_code: dict[str, Rule] = {}
    for rule in rules:
        if rule.code in by_code:
            raise UsageError(
                f"two rules have the code {rule.code}: {by_code[rule.code].name} and {rule.name}",
                hint="Uninstall one of the plugins, or ask its author to change the code.",
            )
        by_code[rule.code] = rule
    return tuple(by_code[code] for code in sorted(by_code))


def _own_rules() -> list[Rule]:
    root = Path(__file__).parent
    found = []
    for file in sorted(root.rglob("*.py")):
        if _RULE_FILE.fullmatch(file.name):
            dotted = ".".join(file.relative_to(root).with_suffix("").parts)
            found.append(importlib.import_module(f"kinetoscope.rules.{dotted}").RULE)
    return found


def _plugin_rules() -> list[Rule]:
    found: list[Rule] = []
    for point in entry_points(group=ENTRY_POINT):
        loaded = point.load()
        if isinstance(loaded, Rule):
            found.append(loaded)
        else:
            found.extend(loaded())
    return found


def select_rules(
    rules: tuple[Rule, ...],
    select: tuple[str, ...] = (),
    ignore: tuple[str, ...] = (),
    *,
    preview: bool = False,
) -> tuple[Rule, ...]:
    """Choose by code prefix; the longest matching prefix decides, `ignore` wins a tie.

    Raises:
        UsageError: a prefix that fits no rule.
    """
    for prefix in (*select, *ignore):
        if not any(rule.code.startswith(prefix.upper()) for rule in rules):
            raise UsageError(
                f"no rule has a code that starts with {prefix!r}",
                hint="`kinetoscope rules` lists the codes.",
            )

    def chosen(rule: Rule) -> bool:
        wanted = _longest(rule.code, select) if select else 0
        unwanted = _longest(rule.code, ignore)
        if rule.preview and not preview and wanted < len(rule.code):
            return False
        return wanted > unwanted if unwanted >= 0 else wanted >= 0

    return tuple(rule for rule in rules if chosen(rule))


def _longest(code: str, prefixes: tuple[str, ...]) -> int:
    """Length of the longest prefix that fits; -1 for none."""
    return max((len(p) for p in prefixes if code.startswith(p.upper())), default=-1)
