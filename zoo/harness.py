"""What every planted program shares: registration, device and sizes, timing, recording.

A program is a function `build(fixed)` that returns a callable doing one step. The slow
and the fixed variant are the same program but for the planted mistake, whose line ends
in `# PLANT`; the truth file gets its file, line and function from there.
"""

from __future__ import annotations

import ast
import gc
import inspect
import os
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, schedule

DRY = not torch.cuda.is_available()
RANK = int(os.environ.get("RANK", "0"))
WORLD = int(os.environ.get("WORLD_SIZE", "1"))
DEV = torch.device("cpu") if DRY else torch.device("cuda", RANK)

Step = Callable[[], object]
T = TypeVar("T")


def pick(full: T, tiny: T) -> T:
    """The real size on a GPU, the tiny one on a CPU dry run."""
    return tiny if DRY else full


@dataclass(frozen=True)
class Case:
    name: str
    label: str
    build: Callable[[bool], Step]
    cls: str
    also: tuple[str, ...]
    codes: tuple[str, ...]
    functions: tuple[str, ...]  # user functions a stack event can show; default: the planted one
    plant_in: str  # qualified name of the function with the PLANT line, if it is not the program
    ranks: int
    active: int
    marks: bool  # False: a server without ProfilerStep annotations
    stacks: bool  # False: the slow variant is recorded without stacks and memory
    light: bool  # also record the slow variant without shapes, memory and stacks


CASES: dict[str, Case] = {}


def case(
    label: str,
    cls: str,
    *,
    also: tuple[str, ...] = (),
    codes: tuple[str, ...] = (),
    functions: tuple[str, ...] = (),
    plant_in: str = "",
    ranks: int = 1,
    active: int = 4,
    marks: bool = True,
    stacks: bool = True,
    light: bool = False,
) -> Callable[[Callable[[bool], Step]], Callable[[bool], Step]]:
    """Register a program. No codes means a healthy control."""

    def register(build: Callable[[bool], Step]) -> Callable[[bool], Step]:
        name = build.__name__
        CASES[name] = Case(
            name,
            label,
            build,
            cls,
            also,
            codes,
            functions,
            plant_in,
            ranks,
            active,
            marks,
            stacks,
            light,
        )
        return build

    return register


# ---------------------------------------------------------------- where the plant is


def find_plant(c: Case) -> dict[str, object] | None:
    """File, line and enclosing function of the PLANT comment of a case."""
    if not c.codes:
        return None
    path = Path(inspect.getsourcefile(c.build) or "")
    text = path.read_text()
    wanted = c.plant_in or c.build.__name__
    scopes = list(_functions(ast.parse(text), ""))
    low, high = next((n.lineno, n.end_lineno) for q, n in scopes if q == wanted)
    lines = text.splitlines()
    hits = [i for i in range(low, (high or low) + 1) if lines[i - 1].rstrip().endswith("# PLANT")]
    if len(hits) != 1:
        raise ValueError(f"{c.name}: {len(hits)} PLANT lines in {wanted}")
    line = hits[0]
    inner = max(
        (n for _, n in scopes if n.lineno <= line <= (n.end_lineno or 0)), key=lambda n: n.lineno
    )
    return {
        "file": path.name,
        "line": line,
        "function": inner.name,
        # What a stack event shows: the first line of the code, decorators included.
        "function_line": min([inner.lineno, *(d.lineno for d in inner.decorator_list)]),
        "source": lines[line - 1].rsplit("# PLANT", 1)[0].strip(),
    }


def _functions(node: ast.AST, prefix: str):
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            name = f"{prefix}{child.name}"
            if isinstance(child, ast.FunctionDef):
                yield name, child
            yield from _functions(child, f"{name}.")


# ---------------------------------------------------------------- small helpers for programs


def replayed(step: Step) -> Step:
    """The step as one CUDA graph."""
    if DRY:
        return step
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def pinned(t: torch.Tensor) -> torch.Tensor:
    return t if DRY else t.pin_memory()


def compiled(f: Callable, **kw: object) -> Callable:
    """torch.compile, but a plain function on a dry run, where a C++ compiler may be missing."""
    return f if DRY else torch.compile(f, **kw)


# ---------------------------------------------------------------- timing and recording


def fresh() -> None:
    """Undo what the previous case may have left behind, and seed."""
    torch._dynamo.reset()
    torch.autograd.set_detect_anomaly(False)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.benchmark = False
    gc.collect()
    if not DRY:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)


def sync() -> None:
    if not DRY:
        torch.cuda.synchronize()


def agree(value: int) -> int:
    """Rank 0's value on every rank: all ranks must run the same number of steps."""
    if WORLD == 1:
        return value
    box = torch.tensor([value], device=DEV)
    dist.broadcast(box, 0)
    return int(box.item())


def step_ms(step: Step, seconds: float = 0.45, repeats: int = 3) -> list[float]:
    """Unprofiled, pipelined milliseconds per step, one figure per repeat."""
    for _ in range(3):
        step()
    sync()
    start = time.perf_counter()
    for _ in range(2):
        step()
    sync()
    guess = (time.perf_counter() - start) / 2
    n = agree(max(2, min(400, int(seconds / max(guess, 1e-5)))))
    found = []
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(n):
            step()
        sync()
        found.append((time.perf_counter() - start) / n * 1e3)
    return found


def record(step: Step, c: Case, path: Path, *, shapes: bool, stacks: bool) -> None:
    """Record `active` steps of a warm program into a Chrome trace."""
    activities = [ProfilerActivity.CPU] + ([] if DRY else [ProfilerActivity.CUDA])
    flags = {
        "activities": activities,
        "record_shapes": shapes,
        "profile_memory": stacks,
        "with_stack": stacks,
    }
    if c.marks:
        plan = schedule(wait=1, warmup=2, active=c.active, repeat=1)
        with profile(
            schedule=plan, on_trace_ready=lambda p: p.export_chrome_trace(str(path)), **flags
        ) as prof:
            for _ in range(3 + c.active):
                step()
                prof.step()
    else:
        with profile(**flags) as prof:
            for _ in range(c.active):
                step()
            sync()
        prof.export_chrome_trace(str(path))
    sync()


def median(values: list[float]) -> float:
    return statistics.median(values)
