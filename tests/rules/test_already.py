"""What the capture saw of the program outweighs a rule."""

from __future__ import annotations

from typing import Any

import pytest

from kinetoscope.rules.already import without_what_is_on
from kinetoscope.rules.api import Outcome
from kinetoscope.rules.registry import all_rules

AMPERE = {"devices": [{"capability": "9.0"}]}
VOLTA = {"devices": [{"capability": "7.0"}]}


def _after(code: str, facts: dict[str, Any]) -> Outcome:
    rule = next(rule for rule in all_rules() if rule.code == code)
    (outcome,) = without_what_is_on([Outcome(rule, "fired")], facts)
    return outcome


def _cast(ratio: float, device: str = "cuda") -> dict[str, Any]:
    return {"modes": {"autocast": [{"device": device, "dtype": "bfloat16", "ratio": ratio}]}}


@pytest.mark.parametrize(
    ("code", "facts", "status"),
    [
        ("CP201", _cast(0.9), "silent"),
        ("CP201", _cast(0.3), "fired"),
        ("CP201", _cast(0.9, "cpu"), "fired"),
        ("CP201", {"settings": {"float32_matmul_precision": "high"}, "machine": AMPERE}, "silent"),
        ("CP201", {"settings": {"float32_matmul_precision": "high"}, "machine": VOLTA}, "fired"),
        ("CP201", {"settings": {"float32_matmul_precision": "high"}}, "fired"),
        (
            "CP201",
            {"settings": {"float32_matmul_precision": "highest"}, "machine": AMPERE},
            "fired",
        ),
        ("IN601", {"modes": {"grad_ratio": 0.05}}, "silent"),
        ("IN601", {"modes": {"grad_ratio": 0.9}}, "fired"),
        ("IN601", {"modes": {}}, "fired"),
        ("DL101", {"loaders": [{"num_workers": 4}]}, "silent"),
        ("DL101", {"loaders": [{"num_workers": 4}, {"num_workers": 0}]}, "fired"),
        ("FW508", {"optimizers": [{"fused": True}]}, "silent"),
        ("FW508", {"modes": "x", "settings": 3, "machine": []}, "fired"),
    ],
)
def test_no_advice_for_what_is_on(code: str, facts: dict[str, Any], status: str) -> None:
    outcome = _after(code, facts)
    assert outcome.status == status
    assert status == "fired" or (outcome.reason or "").startswith("already on: ")
