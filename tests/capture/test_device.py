"""Why there are no device events. What torch would say on a GPU is written by hand here."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kinetoscope.capture import device
from kinetoscope.capture.quiet import quiet_stderr

BUSY = (
    "WARNING:2026-11-29 10:00:00 1:1 init.cpp:178] function cbapi_->getCuptiStatus() failed with "
    "error CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED (39)\n"
)
FORBIDDEN = (
    "WARNING:2026-11-29 10:00:00 1:1 CuptiActivityProfiler.cpp:243] function status failed with "
    "error CUPTI_ERROR_INSUFFICIENT_PRIVILEGES (35)\n"
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (BUSY, "another profiler holds CUPTI"),
        (FORBIDDEN, "NVreg_RestrictProfilingToAdminUsers=0"),
        (BUSY.replace("MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED", "UNKNOWN"), "CUPTI does not start"),
    ],
)
def test_what_cupti_says_at_the_start(
    text: str, words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with quiet_stderr() as errors:
        os.write(2, text.encode() + b"the program's own words\n")
    assert capfd.readouterr().err == "the program's own words\n"
    said = device.explain_cupti(errors)
    assert said.startswith("no device events: ")
    assert words in said


def test_a_start_without_errors_says_nothing() -> None:
    with quiet_stderr() as errors:
        pass
    assert device.explain_cupti(errors) == ""


@pytest.fixture
def launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A window of a program on a device, with launches but no kernels."""
    monkeypatch.setattr(device, "in_use", lambda: True)
    monkeypatch.setattr(device, "missing_cupti", lambda: False)
    monkeypatch.setattr(device, "restricted", lambda: False)
    for name in device._OTHER_PROFILER:
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "light.json"
    path.write_text('{"traceEvents": [{"cat": "cuda_runtime", "name": "cudaLaunchKernel"}]}')
    return path


def test_another_process_may_hold_cupti(launched: Path) -> None:
    assert "another process may hold CUPTI" in device.why_no_device_events(launched)


def test_the_tool_around_the_program_is_named(
    launched: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "1")
    assert "Nsight Systems is attached" in device.why_no_device_events(launched)


@pytest.mark.parametrize(
    ("what", "words"),
    [("missing_cupti", "no CUPTI"), ("restricted", "administrators only")],
)
def test_what_torch_and_driver_lack(
    launched: Path, monkeypatch: pytest.MonkeyPatch, what: str, words: str
) -> None:
    monkeypatch.setattr(device, what, lambda: True)
    assert words in device.why_no_device_events(launched)


def test_steps_without_work_for_the_device(launched: Path) -> None:
    launched.write_text('{"traceEvents": []}')
    assert "launched no work" in device.why_no_device_events(launched)


def test_kernels_are_all_that_is_wanted(launched: Path) -> None:
    launched.write_text('{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "gemm"}]}')
    assert device.why_no_device_events(launched) == ""


@pytest.mark.parametrize(
    ("cuda", "before", "after", "attached"),
    [
        ("12.8", None, "1", False),
        ("12.8", "0", "0", True),  # somebody decided that
        ("12.4", None, None, True),  # detaching crashed with CUDA graphs
        (None, None, None, True),
    ],
)
def test_cupti_is_detached_where_that_works(
    monkeypatch: pytest.MonkeyPatch,
    cuda: str | None,
    before: str | None,
    after: str | None,
    attached: bool,
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(device, "in_use", lambda: True)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setenv("TEARDOWN_CUPTI", before or "1")
    if before is None:
        monkeypatch.delenv("TEARDOWN_CUPTI")
    device.detach_after_profiles()
    assert os.environ.get("TEARDOWN_CUPTI") == after
    assert device.stays_attached() is attached


def test_without_a_device_nothing_stays_attached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "in_use", lambda: False)
    assert not device.stays_attached()
