"""`kinetoscope rules`: the catalogue, or the page of one rule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kinetoscope.rules.api import Rule


@click.command("rules")
@click.argument("codes", metavar="[CODE]...", nargs=-1)
@click.option(
    "--format",
    "form",
    type=click.Choice(("terminal", "json")),
    default="terminal",
    show_default=True,
    help="What to print on stdout.",
)
@click.option("--no-color", is_flag=True, help="No colours; NO_COLOR does the same.")
def command(codes: tuple[str, ...], form: str, no_color: bool) -> None:
    """List the rules, or explain one.

    CODE is a rule (DL101 or its name) or the start of codes (DL, FW5).
    """
    from kinetoscope.cli import output
    from kinetoscope.rules.registry import all_rules

    chosen = choose(all_rules(), codes)
    if form == "json":
        output.write(as_json(chosen), utf8=True)
    elif len(codes) == 1 and codes[0].lower() in (chosen[0].code.lower(), chosen[0].name):
        output.write(_page(chosen[0], color=output.color_wanted(no_color=no_color)))
    else:
        output.write(_table(chosen, color=output.color_wanted(no_color=no_color)))


def choose(rules: Sequence[Rule], codes: Sequence[str]) -> list[Rule]:
    """Return the rules that `codes` name, in the order of the catalogue; no codes, all rules.

    Raises:
        UsageError: a code is neither a rule, nor a name, nor the start of a code.
    """
    if not codes:
        return list(rules)
    chosen: set[str] = set()
    for code in codes:
        found = {r.code for r in rules if r.code.startswith(code.upper()) or r.name == code.lower()}
        if not found:
            _unknown(rules, code)
        chosen |= found
    return [rule for rule in rules if rule.code in chosen]


def _unknown(rules: Sequence[Rule], code: str) -> None:
    from difflib import get_close_matches

    from kinetoscope.errors import UsageError

    names = {rule.code: rule.code for rule in rules} | {rule.name: rule.code for rule in rules}
    codes = [rule.code for rule in rules]
    look_alike = code[:2].upper() + code[2:].upper().translate(str.maketrans("OIL", "011"))
    close = [look_alike] if look_alike in codes else get_close_matches(code.upper(), codes)
    close += get_close_matches(code.lower(), [r.name for r in rules], cutoff=0.5)
    near = ", ".join(dict.fromkeys(names[name] for name in close))
    raise UsageError(
        f"there is no rule {code}",
        hint=f"Did you mean {near}? " * bool(near) + "`kinetoscope rules` lists all.",
    )


def as_json(rules: Sequence[Rule]) -> str:
    """Return the rules as a JSON list."""
    import json

    from kinetoscope.cli.rule_page import thresholds

    rows: list[dict[str, Any]] = [
        {
            "code": rule.code,
            "name": rule.name,
            "class": rule.class_,
            "summary": rule.summary,
            "needs": sorted(rule.needs),
            "preview": rule.preview,
            "since": rule.since,
            "thresholds": thresholds(rule.options),
            "references": list(rule.references),
            "doc": rule.doc,
        }
        for rule in rules
    ]
    return json.dumps(rows, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _page(rule: Rule, *, color: bool) -> str:
    from kinetoscope.cli.rule_page import page

    text = page(rule)
    if not color:
        return text
    lines = (
        click.style(line.lstrip("# "), bold=True) if line.startswith("#") else line
        for line in text.splitlines()
    )
    return "\n".join(lines) + "\n"


def _table(rules: Sequence[Rule], *, color: bool) -> str:
    """Return one line a rule; on a terminal the summary is wrapped in its column."""
    import shutil
    import sys

    from rich.text import Text

    from kinetoscope.report.budget_lines import CLASS_STYLES
    from kinetoscope.report.layout import Page

    page = Page(width=shutil.get_terminal_size((100, 24)).columns, color=color)
    name_width = max((len(rule.name) for rule in rules), default=0)
    for rule in rules:
        name = rule.class_.replace("_", " ")
        head = Text()
        head.append(f"{rule.code}  ", style="bold")
        head.append(f"{rule.name:<{name_width}}  ")
        head.append(f"{name:<13}  ", style=CLASS_STYLES.get(rule.class_, ""))
        summary = f"{rule.summary}{' (preview)' if rule.preview else ''}"
        if not sys.stdout.isatty():
            head.append(summary)
            page.whole(head)
        elif page.width >= 110:
            page.hanging(head, Text(summary, style="dim"), indent=0, column=len(head.plain))
        else:
            page.whole(head)
            page.prose(Text(summary, style="dim"), indent=7)
    return page.text()
