"""What holds for every rule. A new rule file is picked up without an edit here."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import kinetoscope.rules
from kinetoscope.cli.rule_page import GRADES, field_docs, page
from kinetoscope.result.vocabulary import FindingClass
from kinetoscope.rules.api import NEED_TEXT, Example, Rule
from kinetoscope.rules.registry import all_rules

ROOT = Path(kinetoscope.rules.__file__).parent

HEADINGS = ("## What it finds", "## Why it matters", "## How to fix it", "## Limits")

FAMILIES = {
    "DL": "data_loading",
    "CP": "compute",
    "MM": "memory",
    "CM": "communication",
    "FW": "framework",
    "IN": "inference",
    "PR": "quality",
}
"""Letters of the code -> folder. Inference rules carry the class of their cause."""

RULES = all_rules()
EXAMPLES = [
    pytest.param(rule, example, id=f"{rule.code}-{example.title}")
    for rule in RULES
    for example in rule.examples
]


def _file(rule: Rule) -> Path:
    return Path(sys.modules[rule.check.__module__].__file__ or "")


def test_the_catalogue_is_not_empty() -> None:
    assert RULES


def test_codes_and_names_are_unique_and_sorted() -> None:
    codes = [rule.code for rule in RULES]
    assert codes == sorted(set(codes))
    assert len({rule.name for rule in RULES}) == len(RULES)


def test_every_rule_file_is_found() -> None:
    files = {path for path in ROOT.rglob("*.py") if re.match(r"[a-z]{2}\d{3}", path.name)}
    assert files == {_file(rule) for rule in RULES if ROOT in _file(rule).parents}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_a_rule_keeps_the_contract(rule: Rule) -> None:
    assert re.fullmatch(r"[A-Z]{2}[1-9]\d{2}", rule.code)
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", rule.name)
    assert _file(rule).name == f"{rule.code.lower()}_{rule.name.replace('-', '_')}.py"
    assert _file(rule).parent.name == FAMILIES[rule.code[:2]]
    assert rule.class_ in FindingClass.__args__  # type: ignore[attr-defined]
    if rule.code[:2] != "IN":
        assert rule.class_ == FAMILIES[rule.code[:2]]
    assert rule.needs <= set(NEED_TEXT)
    assert re.fullmatch(r"\d+\.\d+", rule.since)
    assert rule.evidence
    assert set(rule.evidence) <= set(GRADES)
    assert rule.preview or rule.evidence != "L", "a hint alone is a preview"
    assert all(reference.startswith("https://") for reference in rule.references)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_a_rule_is_documented(rule: Rule) -> None:
    places = [rule.doc.find(f"{heading}\n") for heading in HEADINGS]
    assert -1 not in places, [h for h, p in zip(HEADINGS, places, strict=True) if p < 0]
    assert places == sorted(places)
    assert rule.summary.endswith(".")
    assert "\n" not in rule.summary
    assert len(rule.summary) <= 140
    documented = field_docs(type(rule.options))
    assert set(rule.options.__struct_fields__) == set(documented), "every threshold has a sentence"
    assert page(rule).startswith(f"# {rule.code} {rule.name}\n")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_a_rule_has_both_kinds_of_example(rule: Rule) -> None:
    assert {example.fires for example in rule.examples} == {True, False}
    titles = [example.title for example in rule.examples]
    assert len(set(titles)) == len(titles)


@pytest.mark.parametrize(("rule", "example"), EXAMPLES)
def test_examples_do_what_they_say(rule: Rule, example: Example, tmp_path: Path) -> None:
    from kinetoscope.analysis import Analysis
    from kinetoscope.testing import JobBuilder, TraceBuilder
    from kinetoscope.trace.readers import read

    builders = (example.build, *example.peers)
    job = JobBuilder(len(builders)) if example.peers else [TraceBuilder()]
    analyses = []
    for number, (build, builder) in enumerate(zip(builders, job, strict=True)):
        build(builder)
        analyses.append(Analysis(read(builder.write(tmp_path / f"rank{number}.json"))))
    for analysis in analyses:
        analysis.peers = tuple(a for a in analyses if a is not analysis)
    outcome = rule.run(analyses[0])
    assert outcome.status == ("fired" if example.fires else "silent"), outcome.reason


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_large_numbers_in_messages_have_separators(rule: Rule) -> None:
    """As in the evidence beside them: 1,258 and not 1258."""
    assert ":.0f}" not in _file(rule).read_text(encoding="utf-8")
