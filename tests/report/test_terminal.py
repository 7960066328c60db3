"""The terminal page: honest, whole and harmless at every width."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from rich.cells import cell_len

from kinetoscope.report import RenderOptions, render
from kinetoscope.result import (
    Budget,
    DeviceTimeline,
    Evidence,
    Fix,
    Gain,
    Limit,
    Location,
    RuleOutcome,
    StepTime,
    Utilisation,
    Verdict,
)
from kinetoscope.result.diagnosis import NsRange
from tests import results

WIDTHS = (40, 80, 120, 200)


def _page(diagnosis: Any, **options: Any) -> str:
    return render(diagnosis, "terminal", RenderOptions(**options))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("make", [results.diagnosis, results.healthy])
def test_only_code_and_paths_may_pass_the_edge(make: Any, width: int) -> None:
    for line in _page(make(), width=width).splitlines():
        wide = cell_len(line) > width
        assert not wide or "│" in line or "https://" in line or ".py" in line, line


@pytest.mark.parametrize("width", WIDTHS)
def test_it_says_everything_at_every_width(width: int) -> None:
    text = " ".join(_page(results.diagnosis(), width=width).split())
    for part in (
        "DATA LOADING",
        "The GPU waits for the DataLoader 79 % of the time.",
        "high confidence (0.93)",
        "39.0 ms (between 35 and 41 ms)",
        "3 steps marked by the profiler",
        "41.0 ms as recorded",
        "waiting for the DataLoader",
        "CRITICAL DL101",
        "cases.py:42 __getitem__",
        "first line of the function, 192 events",
        "train.py:7 main (net.stem)",
        "exact line",
        "step 2.9x to 5.4x faster, likely 4.6x",
        "no time gain; the benefit is in memory",
        "2 rules need input shapes (record_shapes=True)",
        "1 rule needs Python stacks (with_stack=True)",
        "a step should then take 7.2 to 13.4 ms",
    ):
        assert part in text


def test_snippets_are_whole_lines() -> None:
    page = _page(results.diagnosis(), width=40)
    assert "│ for x, y in loader:" in page
    assert "def __getitem__" not in page, "the name of the function says it already"
    assert re.search(r"^ *│     dataset, num_workers=4, persistent_workers=True\)$", page, re.M)


@pytest.mark.parametrize("color", [False, True])
@pytest.mark.parametrize("width", WIDTHS)
def test_hostile_names_do_nothing(width: int, color: bool) -> None:
    page = _page(results.hostile(), width=width, color=color, verbose=True)
    own = re.sub(r"\x1b\[[0-9;]*m", "", page)
    assert not re.search(
        "[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069]", own
    )
    assert "\\x1b[31mred" in "".join(own.split())
    if not color:
        assert own == page


def test_rich_markup_in_a_name_is_text() -> None:
    finding = msgspec.structs.replace(results.LOADER, message="[bold red]x[/] :bomb: [link=a]b")
    page = _page(results.diagnosis(findings=(finding,)), width=80, color=True)
    assert "[bold red]x[/] :bomb: [link=a]b" in page


def test_ascii_only() -> None:
    assert _page(results.hostile(), width=80, unicode=False).isascii()


def test_without_colour_the_bar_is_read_by_its_fills() -> None:
    page = _page(results.diagnosis(), width=40)
    bar = next(line for line in page.splitlines() if line.startswith("█") and "▓" in line)
    assert bar == "█" * 32 + "▓" * 5 + "▒" * 2 + "░"
    for fill in "█▓▒░":
        assert f"\n{fill * 2} " in page


def test_healthy_reads_healthy() -> None:
    page = _page(results.healthy(), width=80)
    assert "HEALTHY" in page
    assert "healthy: limited by compute" in page
    assert "Findings  none" in page
    assert "Nothing here is worth a fix" in page


def test_undetermined_asks_for_a_better_recording() -> None:
    verdict = Verdict("undetermined", False, 0.2, "The recording holds no device events.")
    page = _page(results.diagnosis(verdict=verdict, findings=()), width=120)
    assert "UNDETERMINED" in page
    assert "the recording cannot tell" in page
    assert "Record again" in page


def test_what_limits_the_step_after_a_fix_is_a_sentence() -> None:
    fixed = msgspec.structs.replace(
        results.LOADER, then=Limit("framework", "operators on the host", 0.66)
    )
    page = _page(results.diagnosis(findings=(fixed,)), width=120)
    assert "then limited by framework, 66 % of the step, mostly operators on the host" in page


def test_a_fix_without_a_faster_step_is_not_what_to_do_next() -> None:
    """The step would take as long as before: there is no time to verify."""
    none = Gain(low=1.0, mid=1.0, high=1.002, basis="replay")
    page = _page(
        results.diagnosis(
            findings=(msgspec.structs.replace(results.LOADER, severity="medium", gain=none),)
        )
    )
    assert "no faster step" in page
    assert "No rule names a cause with a gain" in page


def test_what_ends_the_program_is_what_to_do_next() -> None:
    leak = msgspec.structs.replace(results.PIN, severity="critical")
    page = _page(results.diagnosis(findings=(leak, results.LOADER)), width=120)
    assert "Change one thing, MM305" in page


@pytest.mark.parametrize(
    ("mfu", "lower_bound", "shown"),
    [(0.41, False, "MFU 41 %"), (0.12, True, "MFU at least 12 %"), (0.0002, True, "")],
)
def test_a_lower_bound_that_says_nothing_is_left_out(
    mfu: float, lower_bound: bool, shown: str
) -> None:
    use = Utilisation(0, 0, "X", mfu, mfu, 1, 0.5, lower_bound)
    row = DeviceTimeline(0, 0, 100, 90, 90, 0, 0, 0, 0, 10)
    page = _page(results.diagnosis(utilisation=use, device_timeline=(row,)), width=120)
    assert ("MFU" in page) == bool(shown)
    assert shown in page


def test_five_findings_then_a_number() -> None:
    many = results.diagnosis(findings=(results.LOADER,) * 8)
    assert _page(many).count("CRITICAL") == 5
    assert "3 more: --all-findings" in _page(many)
    assert _page(many, all_findings=True).count("CRITICAL") == 8


def test_no_step_no_budget_no_device() -> None:
    step = StepTime(0, "whole_trace", NsRange(0, 0, 0), 0)
    page = _page(results.diagnosis(step=step, budget=(), device_timeline=(), findings=()))
    assert "Step      not known" in page
    assert "no steps found" in page
    assert "Device" not in page


def test_errored_rules_are_never_hidden() -> None:
    rules = tuple(RuleOutcome(f"XX{n}", "skipped", f"reason {n}") for n in range(20))
    page = _page(results.diagnosis(rules=(*rules, RuleOutcome("DL101", "errored", "KeyError: 1"))))
    assert "DL101 failed: KeyError: 1" in page
    assert "16 for other reasons: --verbose" in page


def test_why_a_rule_said_nothing() -> None:
    rules = (
        RuleOutcome("CP204", "silent", "explained by CP202", "One product takes 40 %."),
        RuleOutcome("CP205", "silent", "the fix would gain less than 2 % of the step", "Slow."),
        *(
            RuleOutcome(f"DL10{n}", "silent", "no gain: hidden behind the device's work", "A copy.")
            for n in range(3, 7)
        ),
    )
    diagnosis = results.diagnosis(rules=rules)
    page = _page(diagnosis)
    assert "DL103: A copy. Not reported (no gain: hidden behind the device's work)." in page
    assert "2 more findings withheld: --verbose" in page
    assert "CP204" not in page
    assert "CP205" not in page
    page = _page(diagnosis, verbose=True)
    assert "CP205: Slow." in page
    assert "DL106: A copy." in page
    assert "CP204: explained by CP202" in page


def test_a_range_without_spread_is_one_number() -> None:
    gain = Gain(1.5, 1.5, 1.5, "bound")
    finding = msgspec.structs.replace(results.LOADER, gain=gain, locations=(Location(),))
    page = _page(results.diagnosis(findings=(finding,)))
    assert "step 1.5x faster (from a formula" in page
    assert "place not recorded" in page


def test_long_names_are_cut_unless_asked() -> None:
    kernel = "void kernel<" + "int, " * 100 + "end>"
    evidence = (Evidence("slowest_kernel", kernel, "text"),)
    finding = msgspec.structs.replace(results.LOADER, evidence=evidence)
    diagnosis = results.diagnosis(findings=(finding,))
    assert kernel not in " ".join(_page(diagnosis, width=200).split())
    assert "…" in _page(diagnosis, width=200)
    assert _page(diagnosis, width=200, verbose=True).count("int,") == 100


def test_many_devices_are_one_line() -> None:
    row = results.diagnosis().device_timeline[0]
    rows = tuple(
        msgspec.structs.replace(row, rank=rank, busy_ns=(rank + 1) * 10 * results.MS)
        for rank in range(8)
    )
    assert "8 devices were busy 8 % (rank 0) to 65 % (rank 7)" in _page(
        results.diagnosis(device_timeline=rows), width=120
    )


def test_a_budget_of_many_lines() -> None:
    lines = (
        Budget("compute", "large", 94 * results.MS, 0.94),
        *(Budget("framework", f"part {n}", n * results.MS // 5, n / 500) for n in range(1, 6)),
        Budget("memory", "middle", 3 * results.MS, 0.03),
    )
    diagnosis = results.diagnosis(budget=lines)
    page = " ".join(_page(diagnosis, width=80).split())
    assert "2 % 2.00 ms several 4 lines below 1 %: --verbose" in page
    assert "part 5" in page
    assert "part 4" not in page
    everything = _page(diagnosis, width=80, verbose=True)
    assert all(f"part {n}" in everything for n in range(1, 6))


def test_a_finding_that_asks_for_a_recording_is_no_change_to_make() -> None:
    fix = Fix("Record all 8 ranks and analyze them together.", "kinetoscope analyze TRACES/")
    finding = msgspec.structs.replace(results.LOADER, fix=fix)
    text = " ".join(_page(results.diagnosis(findings=(finding,)), width=120).split())
    assert "Next Record all 8 ranks and analyze them together. `kinetoscope rules DL101`" in text
    assert "Change one thing" not in text
    assert "then take" not in text.partition("Next ")[2]


def test_a_recorded_time_that_reads_the_same_is_not_said_twice() -> None:
    step = results.diagnosis().step
    for recorded, shown in ((39_004_000, False), (41_000_000, True)):
        close = msgspec.structs.replace(step, recorded_ns=recorded)
        text = _page(results.diagnosis(step=close), width=120)
        assert ("as recorded, with the profiler's cost" in text) is shown


@pytest.mark.parametrize("width", [60, 80])
def test_a_long_path_stays_in_one_piece(width: int) -> None:
    path = "/data/team/experiments/vision/2026-11-30/worker0.1623143089861.pt.trace.json.gz"
    info = msgspec.structs.replace(results.diagnosis().inputs[0], path=path)
    lines = _page(results.diagnosis(inputs=(info,)), width=width).splitlines()
    assert lines[:2] == [path, "  621,135 events · NVIDIA H200 · torch 2.11.0"]
