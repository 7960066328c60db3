"""Samples of frames: what is counted, and that looking changes nothing."""

from __future__ import annotations

import sys
import threading
import types
import weakref

import pytest

from kinetoscope.capture.sampling import FrameSampler


class Guard:
    """Something whose end is noticed."""


def _work(started: threading.Event, stop: threading.Event, seen: list[object]) -> None:
    guard = Guard()
    seen.append(weakref.ref(guard))
    started.set()
    stop.wait(10)


@pytest.fixture
def busy() -> object:
    started, stop, seen = threading.Event(), threading.Event(), []
    thread = threading.Thread(target=_work, args=(started, stop, seen))
    thread.start()
    started.wait(10)
    yield thread, stop, seen[0]
    stop.set()
    thread.join()


def test_the_line_of_a_thread_is_counted(busy: object) -> None:
    sampler = FrameSampler()
    for _ in range(3):
        sampler._sample()
    rows = [row for row in sampler.table() if row[2] == "_work"]
    first = _work.__code__.co_firstlineno
    assert [(row[1], row[3], row[4]) for row in rows] == [(first, first + 4, 3)]


def test_no_frame_outlives_a_look(busy: tuple) -> None:  # type: ignore[type-arg]
    thread, stop, guard = busy
    sampler = FrameSampler()
    sampler._sample()
    stop.set()
    thread.join()
    assert guard() is None


def test_nobody_looks_while_dynamo_compiles(busy: object, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = threading.Lock()
    module = types.SimpleNamespace(compile_lock=lock)
    monkeypatch.setitem(sys.modules, "torch._dynamo.convert_frame", module)  # type: ignore[arg-type]
    sampler = FrameSampler()
    with lock:
        sampler._sample()
    assert sampler.samples == 0
    sampler._sample()
    assert sampler.samples == 1
