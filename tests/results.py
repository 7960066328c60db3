"""Results made by hand, for the tests of everything that renders one."""

from __future__ import annotations

from typing import Any

import msgspec

from kinetoscope.result import (
    Budget,
    Damage,
    DeviceInfo,
    DeviceTimeline,
    Diagnosis,
    Evidence,
    Finding,
    Fix,
    Gain,
    InputInfo,
    Location,
    NsRange,
    RuleOutcome,
    StepTime,
    Verdict,
)

MS = 1_000_000
LACKS = "the recording lacks"

HOSTILE = "a\x1b[31mred\x07\u202egnp.exe\u2066\x9b2J<script>alert(1)</script>|`\n@team #1"

LOADER = Finding(
    code="DL101",
    name="sync-dataloader-in-main-process",
    class_="data_loading",
    severity="critical",
    confidence=0.9,
    message="The main process loads every batch itself and the GPU waits 79 % of each step.",
    evidence=(
        Evidence("loader_share", 0.794871794, "ratio"),
        Evidence("wait_ns", 31 * MS, "ns"),
        Evidence("batches", 3, "count"),
        Evidence("dataset", "PlantedDataset", "text", "derived"),
    ),
    locations=(
        Location(
            file="cases.py",
            line=42,
            function="__getitem__",
            count=192,
            snippet="    def __getitem__(self, i):",
        ),
        Location(
            file="train.py",
            line=7,
            function="main",
            module="net.stem",
            exact=True,
            snippet="for x, y in loader:",
        ),
    ),
    fix=Fix(
        summary="Let worker processes load the batches.",
        snippet="DataLoader(\n    dataset, num_workers=4, persistent_workers=True)",
        reference="https://docs.pytorch.org/docs/stable/data.html",
    ),
    gain=Gain(low=2.9, mid=4.6, high=5.4, basis="replay"),
    remedies=("dataloader-workers",),
)

PIN = Finding(
    code="MM305",
    name="step-over-step-memory-growth",
    class_="memory",
    severity="medium",
    confidence=0.7,
    message="Each step keeps 12 MiB more than the one before.",
    evidence=(Evidence("growth_bytes", 12 * 2**20, "bytes"),),
    fix=Fix(summary="Keep the loss as a number: losses.append(loss.item())."),
    rank=1,
)


def diagnosis(**changes: Any) -> Diagnosis:
    """Return a result of an input-bound program."""
    base = Diagnosis(
        schema_version=1,
        kinetoscope="0.1.0",
        inputs=(
            InputInfo(
                path="trace.json.gz",
                kind="kineto",
                rank=0,
                events=621_135,
                devices=(DeviceInfo(0, "NVIDIA H200"),),
                torch="2.11.0",
            ),
        ),
        verdict=Verdict(
            bottleneck="data_loading",
            healthy=False,
            confidence=0.93,
            sentence="The GPU waits for the DataLoader 79 % of the time.",
        ),
        step=StepTime(
            count=3,
            source="profiler_step",
            time_ns=NsRange(35 * MS, 39 * MS, 41 * MS),
            recorded_ns=41 * MS,
        ),
        budget=(
            Budget("data_loading", "waiting for the DataLoader", 31 * MS, 31 / 39),
            Budget("compute", "kernels that are limited by arithmetic", 5 * MS, 5 / 39),
            Budget("framework", "the host launches nothing", 2 * MS, 2 / 39),
            Budget("unattributed", "not explained", 1 * MS, 1 / 39),
        ),
        device_timeline=(
            DeviceTimeline(
                rank=0,
                device=0,
                span_ns=123 * MS,
                busy_ns=16 * MS,
                compute_ns=15 * MS,
                comm_ns=0,
                exposed_comm_ns=0,
                memcpy_ns=2 * MS,
                exposed_memcpy_ns=1 * MS,
                idle_ns=107 * MS,
            ),
        ),
        findings=(LOADER, PIN),
        rules=(
            RuleOutcome("CP201", "skipped", f"{LACKS} input shapes (record_shapes=True)"),
            RuleOutcome(
                "CP202",
                "skipped",
                f"{LACKS} input shapes (record_shapes=True); Python stacks (with_stack=True)",
            ),
            RuleOutcome("DL101", "fired"),
            RuleOutcome("DL102", "silent"),
            RuleOutcome("MM305", "fired"),
        ),
    )
    return msgspec.structs.replace(base, **changes)


def healthy() -> Diagnosis:
    """Return a result in which nothing is worth a fix."""
    return diagnosis(
        verdict=Verdict("compute", True, 0.9, "The GPU computes 97 % of the time."),
        budget=(
            Budget("compute", "matrix products", 38 * MS, 38 / 39),
            Budget("framework", "gaps", 1 * MS, 1 / 39),
        ),
        findings=(),
    )


def hostile() -> Diagnosis:
    """Return a result in which every text comes from somebody who means harm."""
    finding = msgspec.structs.replace(
        LOADER,
        message=HOSTILE,
        evidence=(Evidence(HOSTILE, HOSTILE, "text"), Evidence("wait_ns", float("nan"), "ns")),
        locations=(
            Location(file=HOSTILE, line=1, function=HOSTILE, module=HOSTILE, snippet=HOSTILE),
        ),
        fix=Fix(HOSTILE, HOSTILE, HOSTILE),
    )
    return diagnosis(
        inputs=(
            InputInfo(
                path=HOSTILE,
                kind="kineto",
                rank=None,
                events=1,
                devices=(DeviceInfo(0, HOSTILE),),
                torch=HOSTILE,
                damage=(Damage("truncated", 2, HOSTILE, lossy=True), Damage("clock", 1)),
            ),
        ),
        verdict=Verdict("framework", False, 0.3, HOSTILE),
        budget=(Budget("framework", HOSTILE, 39 * MS, 1.0),),
        findings=(finding,),
        rules=(RuleOutcome("DL101", "errored", HOSTILE), RuleOutcome("X", "skipped", HOSTILE)),
        notes=(HOSTILE,),
    )
