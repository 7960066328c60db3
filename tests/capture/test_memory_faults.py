"""Page faults are those of the calling thread."""

from __future__ import annotations

import mmap
import sys
import threading

import pytest

from kinetoscope.capture.memory_faults import Faults, faults_so_far

_PAGES = 600


def _touch() -> None:
    with mmap.mmap(-1, _PAGES * mmap.PAGESIZE) as block:
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            block.madvise(mmap.MADV_NOHUGEPAGE)
        for page in range(_PAGES):
            block[page * mmap.PAGESIZE] = 1


@pytest.mark.skipif(sys.platform != "linux", reason="counted for threads on Linux only")
def test_each_new_page_is_a_fault_of_the_thread_that_writes_to_it() -> None:
    before = faults_so_far()
    _touch()
    between = faults_so_far()
    other = threading.Thread(target=_touch)
    other.start()
    other.join()
    after = faults_so_far()
    assert before is not None
    assert between is not None
    assert after is not None
    assert _PAGES <= (between - before).minor < _PAGES + 100
    assert (after - between).minor < 100


def test_elsewhere_they_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    assert faults_so_far() is None


def test_a_difference() -> None:
    assert Faults(10, 500) - Faults(4, 100) == Faults(6, 400)
