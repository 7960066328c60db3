"""Sentences about parts of a result."""

from __future__ import annotations

from types import SimpleNamespace

from kinetoscope.report.phrases import together
from kinetoscope.result import Gain
from kinetoscope.result.diagnosis import Together


def test_a_rule_that_found_two_places_is_named_once() -> None:
    gain = Gain(1.5, 2.0, 2.5, basis="replay")
    both = SimpleNamespace(together=(Together(("CP219", "CP219"), gain),))
    three = SimpleNamespace(together=(Together(("CP219", "DL101", "CP219"), gain),))
    assert together(both).startswith("both (CP219 twice): ")  # type: ignore[arg-type]
    assert together(three).startswith("all three (CP219 twice, DL101): ")  # type: ignore[arg-type]
