"""The catalogue of remedies, and the plan; no torch needed."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from kinetoscope.errors import UsageError
from kinetoscope.experiments.plan import plan
from kinetoscope.experiments.registry import all_remedies, remedies_for, remedy_of
from kinetoscope.experiments.remedy import RELATIVE, Facts, named
from kinetoscope.result import Gain, RuleOutcome
from kinetoscope.rules.registry import all_rules
from tests import results

LOADER = {"num_workers": 0, "pin_memory": False, "persistent_workers": False}
TRAINING = Facts(
    training=True,
    loaders=(LOADER,),
    optimizers=({"class": "AdamW", "fused": False, "foreach": None, "has_fused": True},),
    parameters=10,
    dtypes=("float32",),
    settings={"matmul_precision": "highest", "threads": 1, "gc_enabled": True},
    cores=4,
)


@pytest.mark.parametrize("remedy", all_remedies(), ids=lambda remedy: remedy.id)
def test_each_remedy_is_complete(remedy: object) -> None:
    from kinetoscope.experiments.remedy import Remedy

    assert isinstance(remedy, Remedy)
    home = __import__(remedy.patch.__module__, fromlist=["x"])
    if remedy.patch.__name__ != "<lambda>":
        assert "Patch point" in (home.__doc__ or "")
    assert remedy.id == remedy.id.lower()
    assert remedy.tolerance in RELATIVE
    assert set(remedy.must_not_worsen) <= {"loss", "outputs", "memory"}
    assert remedy.snippet(remedy.values(TRAINING)[0] if remedy.values(TRAINING) else "x2")


def test_rules_name_remedies_that_exist_and_no_remedy_is_out_of_reach() -> None:
    ids = [remedy.id for remedy in all_remedies()]
    assert len(set(ids)) == len(ids)
    named = {name.partition("=")[0] for rule in all_rules() for name in rule.remedies}
    assert named <= set(ids)
    assert [r.id for r in all_remedies() if not r.general and r.id not in named] == []


def test_names_and_codes() -> None:
    assert remedy_of("dataloader-workers=4")[1] == "4"
    chosen = remedies_for(["DL101", "compile=default"])
    assert [remedy.id for remedy, _ in chosen] == ["dataloader-workers", "compile"]
    with pytest.raises(UsageError, match="no remedy"):
        remedies_for(["DL113"])
    assert remedies_for(["dl101"]) == remedies_for(["DL101"])
    for unknown in ("magic", "DL1"):
        with pytest.raises(UsageError, match=f"there is no rule and no remedy '{unknown}'"):
            remedies_for([unknown])


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("dataloader-workers=abc", "takes a whole number from 1 on"),
        ("threads=0", "takes a whole number from 1 on"),
        ("threads=²", "takes a whole number from 1 on"),
        ("compile=fast", "takes default, reduce-overhead, max-autotune-no-cudagraphs"),
        ("zero-grad=1", "takes no parameter"),
    ],
)
def test_a_parameter_that_a_remedy_does_not_take(name: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        remedy_of(name)


def test_remedies_take_what_they_try() -> None:
    many = dataclasses.replace(TRAINING, device="cuda", cores=16)
    for remedy in all_remedies():
        for facts in (TRAINING, SERVING, many):
            values = () if remedy.applies(facts) else remedy.values(facts)
            assert [v for v in values if remedy.wrong(v)] == [], remedy.id


def test_the_diagnosis_orders_the_plan() -> None:
    found = plan(TRAINING, results.diagnosis())
    assert found.candidates[0].remedy.id == "dataloader-workers"
    assert found.candidates[0].codes == ("DL101",)
    assert found.candidates[0].predicted is not None
    skipped = {remedy.id: reason for remedy, reason in found.skipped}
    assert skipped["cuda-graph"] == "needs a GPU"
    assert skipped["pin-memory"] == "needs a GPU"
    assert skipped["batch-size"].startswith("only for inference")
    assert skipped["garbage-collection"] == "no finding recommends it"


SERVING = Facts(device="cuda", parameters=10, dtypes=("float32",), grad_enabled=False, batch=1)
GRAPH = Gain(low=3.0, mid=6.0, high=8.0, basis="replay")


def test_an_explained_finding_still_predicts_what_its_remedy_gains() -> None:
    silent = RuleOutcome("FW501", "silent", "explained by IN603", "launches", GRAPH)
    found = plan(SERVING, results.diagnosis(findings=(), rules=(silent,)))
    by_name = {named(c.remedy, c.value): c for c in found.candidates}
    assert by_name["cuda-graph"].predicted == GRAPH
    assert by_name["cuda-graph"].codes == ("FW501",)
    assert found.candidates[0].predicted == GRAPH


def test_the_gain_of_graphs_is_promised_to_the_mode_that_makes_them() -> None:
    silent = RuleOutcome("FW501", "silent", "explained by IN603", "launches", GRAPH)
    found = plan(SERVING, results.diagnosis(findings=(), rules=(silent,)))
    by_name = {named(c.remedy, c.value): c for c in found.candidates}
    assert by_name["compile=reduce-overhead"].predicted == GRAPH
    assert by_name["compile=default"].predicted is None
    assert [named(r, v) for r, v in remedies_for(["FW501"])] == [
        "compile=reduce-overhead",
        "cuda-graph",
    ]


def test_a_remedy_is_tried_alone_so_its_own_gain_is_predicted() -> None:
    """A general finding that comes after its cause states what is left; tune measures all of it."""
    left = msgspec.structs.replace(results.LOADER, gain=Gain(1.0, 1.2, 1.4, "replay"))
    alone = Gain(2.9, 4.6, 5.4, "replay")
    rules = (RuleOutcome("DL101", "fired", gain=alone),)
    found = plan(TRAINING, results.diagnosis(findings=(left,), rules=rules)).candidates
    assert [
        c.predicted for c in found if (c.remedy.id, c.value) == ("dataloader-workers", "8")
    ] == [alone]


def test_a_gain_is_predicted_for_the_remedy_that_it_was_computed_for() -> None:
    """The gain of CP201 is that of TF32; bfloat16 also halves the traffic, and gains more."""
    tf32 = Gain(2.4, 3.2, 4.2, "replay")
    rules = (RuleOutcome("CP201", "silent", "explained", "float32 products", tf32),)
    facts = dataclasses.replace(SERVING, settings={"matmul_precision": "highest", "tf32": True})
    found = plan(facts, results.diagnosis(findings=(), rules=rules)).candidates
    by_name = {named(c.remedy, c.value): c for c in found}
    assert by_name["matmul-precision=high"].predicted == tf32
    assert by_name["autocast=bfloat16"].predicted is None
    assert by_name["autocast=bfloat16"].codes == ("CP201",)
    first = {named(c.remedy, c.value) for c in found[:3]}
    assert first == {"matmul-precision=high", "autocast=bfloat16", "autocast=float16"}


def test_a_device_without_tf32_is_not_offered_it() -> None:
    facts = dataclasses.replace(SERVING, settings={"matmul_precision": "highest", "tf32": False})
    skipped = {remedy.id: reason for remedy, reason in plan(facts, None).skipped}
    assert skipped["matmul-precision"] == "this device has no TF32"


def test_gains_are_of_remedies_that_the_rule_names() -> None:
    for rule in all_rules():
        assert set(rule.gain_of) <= set(rule.remedies), rule.code


def test_two_workers_load_twice_as_fast_and_no_faster() -> None:
    """Nine tenths of a step are loading: 10x without it. Two workers take 0.45 of the step for it:
    1 / 0.45 = 2.22x; four take 0.225: 4.44x."""
    loading = msgspec.structs.replace(results.LOADER, gain=Gain(8.0, 10.0, 12.0, "replay"))
    few = dataclasses.replace(TRAINING, cores=2)
    found = plan(few, results.diagnosis(findings=(loading,), rules=())).candidates
    mids = {named(c.remedy, c.value): c.predicted.mid for c in found if c.predicted}
    assert mids["dataloader-workers=2"] == pytest.approx(2.22, abs=0.01)
    assert mids["dataloader-workers=4"] == pytest.approx(4.44, abs=0.01)
    for candidate in found:
        if gain := candidate.predicted:
            assert gain.low <= gain.mid <= gain.high


def test_what_is_on_already_is_not_tried() -> None:
    gpu = dataclasses.replace(
        TRAINING,
        device="cuda",
        compiled=True,
        autocast=True,
        settings={"matmul_precision": "high", "cudnn_benchmark": True, "threads": 4},
        optimizers=({"fused": True, "has_fused": True},),
    )
    reasons = {remedy.id: reason for remedy, reason in plan(gpu, None).skipped}
    assert reasons["matmul-precision"] == "it is high already"
    assert "already" in reasons["compile"]
    assert "already" in reasons["autocast"]
    assert "already" in reasons["optimizer-implementation"]


def test_an_iterable_dataset_gets_no_workers() -> None:
    facts = dataclasses.replace(TRAINING, loaders=({**LOADER, "iterable": True},))
    reasons = {remedy.id: reason for remedy, reason in plan(facts, None).skipped}
    assert "IterableDataset" in reasons["dataloader-workers"]


def test_only_and_skip() -> None:
    chosen = remedies_for(["threads=2"])
    assert [(c.remedy.id, c.value) for c in plan(TRAINING, None, chosen=chosen).candidates] == [
        ("threads", "2")
    ]
    left = plan(TRAINING, None, skip=["threads"])
    assert "threads" not in {c.remedy.id for c in left.candidates}


def test_the_sweep_leaves_the_present_number_out() -> None:
    values = [c.value for c in plan(TRAINING, None).candidates if c.remedy.id == "threads"]
    assert values == ["2", "4"]


def test_two_parameters_of_one_remedy_are_two_candidates() -> None:
    found = plan(TRAINING, None, chosen=remedies_for(["threads=1", "threads=2"]))
    assert [(c.remedy.id, c.value) for c in found.candidates] == [
        ("threads", "1"),
        ("threads", "2"),
    ]
