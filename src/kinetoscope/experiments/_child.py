"""Runs a program once, with remedies installed, and writes what it measured.

    python -m kinetoscope.experiments._child --folder DIR --parent PID [--remedies a=1,b]
        [--steps N] [--seconds S] [--seed N] [--trace] -- script.py [args]

It imports torch, then waits until it is let go: importing says nothing about the program, and is
done for several processes at once. The program's own output goes wherever the caller sent stdout
and stderr.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import runpy
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kinetoscope.capture.torch_parts import LOADER_NEXT
from kinetoscope.experiments import _ranks
from kinetoscope.experiments._hooks import TOP
from kinetoscope.experiments._hopeless import Watch
from kinetoscope.experiments._observe import Observer
from kinetoscope.experiments._process import EXITED, GO, POLL_S, READY, REPORT, TRACE, Turn, alive
from kinetoscope.experiments._steps import EndedError, StepTimer, condensed
from kinetoscope.experiments.registry import remedy_of

TRACED_STEPS = 8
SKIPPED_STEPS = 6
RECORDED_BY = SKIPPED_STEPS + 2 + TRACED_STEPS + 2
"""Step by which a recording is written."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; returns 0 when it could be measured."""
    options = _parse(arguments)
    import torch

    turn = _wait_for_the_turn(options.folder, options.parent)
    global _born  # noqa: PLW0603 - the process begins anew
    _born = time.perf_counter_ns()
    _seed(options.seed)
    timer = _timer(options, turn, torch)
    observer = Observer()
    for name in filter(None, options.remedies.split(",")):
        remedy, value = remedy_of(name)
        remedy.patch(value)
    observer.install()
    TOP.after.append(lambda _module, _args, _output: timer.mark("module"))
    _watch(timer, torch)
    TOP.install()
    trace = options.folder / TRACE.format(_ranks.rank())
    finish = _trace(trace, timer, torch) if options.trace else None

    def report(error: str | None = None) -> None:
        if _ranks.rank() == 0:
            _write(options.folder, {**_report(timer, observer, torch), "error": error})

    if _ranks.several():
        timer.end = _ranks.end_of_run(options.folder, options.parent, report)
    error = _run(options.program)
    if finish is not None:
        finish()
    _ranks.tell_failure(options.folder, error)
    report(error)
    code = 0 if error is None else 1
    if _ranks.several():
        _ranks.leave(0 if (options.folder / REPORT).exists() else code)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        _ranks.leave(code)
    return code


def _write(folder: Path, report: dict[str, Any]) -> None:
    """Write the report; it is there as a whole or not at all, as others look out for it."""
    part = folder / f"{REPORT}.part"
    part.write_text(json.dumps(report), encoding="utf-8")
    part.rename(folder / REPORT)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m kinetoscope.experiments._child")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--remedies", default="")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("program", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    if options.program[:1] == ["--"]:
        options.program = options.program[1:]
    return options


def _timer(options: argparse.Namespace, turn: Turn, torch: Any) -> StepTimer:
    least_ns = int(options.seconds * 1e9)
    synchronize = torch.cuda.synchronize if torch.cuda.is_available() else None
    give_up_ns = _born + int(turn.patience_s * 1e9)
    watched = turn.usual_ns > 0 and not options.trace
    return StepTimer(
        turn.mark or None,
        most=max(options.steps, RECORDED_BY if options.trace else 0),
        least_ns=least_ns,
        synchronize=synchronize,
        watch=Watch(turn.usual_ns, least_ns, give_up_ns, synchronize=synchronize)
        if watched
        else None,
    )


def _wait_for_the_turn(folder: Path, parent: int) -> Turn:
    """Say that the imports are done; returns what the parent says when it lets go."""
    ready = folder / f"{READY}{_ranks.rank()}"
    ready.write_text(str(os.getpid()), encoding="utf-8")
    while not (folder / GO).exists():
        time.sleep(POLL_S)
        if not folder.exists() or not alive(parent):
            sys.exit("not needed any more")
    return Turn(**json.loads((folder / GO).read_text("utf-8")))


def _seed(seed: int) -> None:
    """The same random numbers in every run, unless the program seeds itself."""
    import torch

    random.seed(seed)
    torch.manual_seed(seed)
    if "numpy" in sys.modules or _has_numpy():
        import numpy as np

        np.random.seed(seed)


def _has_numpy() -> bool:
    from importlib.util import find_spec

    return find_spec("numpy") is not None


def _watch(timer: StepTimer, torch: Any) -> None:
    """Let optimizers and loaders mark steps."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    leader: list[int] = []

    def stepped(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        leader[:] = leader or [id(optimizer)]
        if id(optimizer) == leader[0]:  # of several optimizers, the first one marks
            timer.mark("optimizer")

    register_optimizer_step_post_hook(stepped)
    fetch = LOADER_NEXT.get()
    if fetch is None:  # optimizers and modules mark steps as well
        return

    def fetched(iterator: Any) -> Any:
        batch = fetch(iterator)
        timer.mark("loader")
        return batch

    torch.utils.data.dataloader._BaseDataLoaderIter.__next__ = fetched


def _trace(path: Path, timer: StepTimer, torch: Any) -> Callable[[], None]:
    """Record a few steps in the middle of the run; the diagnosis orders the remedies."""
    from torch.profiler import ProfilerActivity, profile, schedule

    def exported(profiler: Any) -> None:
        part = path.with_name(f"part.{path.name}")
        profiler.export_chrome_trace(str(part))
        part.rename(path)

    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    recorder = profile(
        activities=activities,
        schedule=schedule(wait=SKIPPED_STEPS, warmup=2, active=TRACED_STEPS, repeat=1),
        on_trace_ready=exported,
        record_shapes=True,
        with_stack=True,
    )
    recorder.start()
    pending: list[int] = []

    def turn(args: tuple[Any, ...]) -> tuple[Any, ...]:
        if pending:
            pending.clear()
            recorder.step()
        return args

    def stepped(count: int) -> None:
        # An optimizer's hook runs inside a range of the profiler, in which a step must not end:
        # torch crashes. The next call of the model is outside of it.
        if timer.best() == "optimizer":
            pending.append(count)
        else:
            recorder.step()

    TOP.arguments.insert(0, turn)
    timer.on_step.append(stepped)
    return recorder.stop  # type: ignore[no-any-return]


def _run(program: list[str]) -> str | None:
    """Run the script as its own main module; returns an error as text."""
    script, *rest = program
    sys.argv = [script, *rest]
    sys.path[0] = str(Path(script).resolve().parent)
    try:
        runpy.run_path(script, run_name="__main__")
    except EndedError:
        return None
    except SystemExit as stop:
        return None if stop.code in (None, 0) else f"{EXITED} {stop.code}"
    except BaseException as error:
        traceback.print_exc()
        return f"{type(error).__name__}: {error}"[:500]
    return None


def _report(timer: StepTimer, observer: Observer, torch: Any) -> dict[str, Any]:
    periods = timer.periods()
    kept, cut = timer.steady()
    cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
    usual = sorted(kept)[len(kept) // 2] if kept else 0
    return {
        "mark": timer.best(),
        "marks": {kind: len(marks) for kind, marks in timer.marks.items()},
        "steps": condensed(kept),
        "ended_early": timer.ended_early,
        "compiling": timer.watch is not None and timer.watch.compiling,
        "warmup_ns": sum(periods[:cut]) - cut * usual if kept else 0,
        "first_ns": _before_first(timer),
        "peak_bytes": torch.cuda.max_memory_reserved() if cuda else _peak_rss(),
        "device": torch.cuda.get_device_name() if cuda else "CPU",
        "torch": torch.__version__,
        **observer.report(),
        "training": len(timer.marks["optimizer"]) > 0,
    }


_born = 0
"""When this process was let go."""


def _before_first(timer: StepTimer) -> int:
    """Time from the start of the program to the first mark: where compilation hides."""
    marks = timer.marks[timer.best()]
    return marks[0] - _born if marks else 0


def _peak_rss() -> int:
    """Peak memory of the process and its largest child, bytes."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = [
        resource.getrusage(who).ru_maxrss
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    ]
    return sum(peak) * (1 if sys.platform == "darwin" else 1024)


if __name__ == "__main__":
    sys.exit(main())
