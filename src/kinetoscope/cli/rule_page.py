"""The page of one rule, as Markdown: for `kinetoscope rules CODE` and for docs/rules/."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from kinetoscope.rules.api import Rule

GRADES = {
    "E": "reproduced on a CPU",
    "T": "seen in traces of real devices",
    "S": "read in the source of PyTorch",
    "L": "from literature, not yet seen in a recording",
}
"""Why a rule is believed; `Rule.evidence` holds one or more of these letters."""


def page(rule: Rule) -> str:
    """Return the page of a rule."""
    parts = [
        f"# {rule.code} {rule.name}",
        rule.summary,
        _facts(rule),
        _body(rule.doc),
        _thresholds(rule.options),
        _examples(rule),
        _references(rule.references),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def needs(rule: Rule) -> list[str]:
    """Return in words what a recording must hold for this rule."""
    from kinetoscope.rules.api import NEED_TEXT

    return [NEED_TEXT[need] for need in sorted(rule.needs)]


def _facts(rule: Rule) -> str:
    preview = "; preview, off by default: run with `--preview`" if rule.preview else ""
    tried = ", ".join(f"`{name}`" for name in rule.remedies)
    tries = (f"* Tried by `kinetoscope verify --fix {rule.code} SCRIPT`: {tried}",) if tried else ()
    return "\n".join(
        (
            f"* Class: {rule.class_.replace('_', ' ')}",
            f"* Needs: {'; '.join(needs(rule)) or 'any recording'}",
            f"* Evidence: {', '.join(GRADES[grade] for grade in rule.evidence)}",
            f"* Since: {rule.since}{preview}",
            *tries,
        )
    )


def _body(doc: str) -> str:
    """Return the rule's text without its first paragraph, whose place the summary takes."""
    first, _, rest = inspect.cleandoc(doc).partition("\n\n")
    return f"{first}\n\n{rest}" if first.startswith("## ") else rest


def _thresholds(options: Any) -> str:
    docs = field_docs(type(options))
    lines = [
        f"* `{name} = {getattr(options, name)!r}`{f': {docs[name]}' if name in docs else ''}"
        for name in _field_names(options)
    ]
    return "\n".join(["## Thresholds", "", *lines]) if lines else ""


def _field_names(options: Any) -> list[str]:
    return [field.name for field in msgspec.structs.fields(options)]


def thresholds(options: Any) -> list[dict[str, Any]]:
    """Return the thresholds of a rule as data: name, value, doc."""
    docs = field_docs(type(options))
    return [
        {"name": name, "value": getattr(options, name), "doc": docs.get(name, "")}
        for name in _field_names(options)
    ]


def field_docs(struct: type) -> dict[str, str]:
    """Return the sentence under each field of a class, base classes included."""
    docs: dict[str, str] = {}
    for cls in reversed(struct.__mro__):
        if not cls.__module__.startswith(("builtins", "msgspec")):
            docs.update(_own_field_docs(cls))
    return docs


def _own_field_docs(cls: type) -> dict[str, str]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError):
        return {}
    definition = tree.body[0]
    assert isinstance(definition, ast.ClassDef)  # noqa: S101 - the source of a class
    docs = {}
    for field, note in zip(definition.body, definition.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(note, ast.Expr)
            and isinstance(note.value, ast.Constant)
            and isinstance(note.value.value, str)
        ):
            docs[field.target.id] = " ".join(note.value.value.split())
    return docs


def _examples(rule: Rule) -> str:
    lines = [
        f"* {'fires' if example.fires else 'stays silent'}: {example.title}"
        for example in rule.examples
    ]
    return "\n".join(["## Examples", "", *lines]) if lines else ""


def _references(references: Iterable[str]) -> str:
    lines = [f"* <{ref}>" if ref.startswith("https://") else f"* {ref}" for ref in references]
    return "\n".join(["## References", "", *lines]) if lines else ""
