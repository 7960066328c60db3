"""The undocumented parts of torch that a capture rests on, and what is lost without each.

Torch may rename them in any release. A capture says what is missing by its name, once, and goes on
with the rest; `kinetoscope doctor` says it before. Whoever needs such a part asks for it here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any

TRIED = (2, 4), (2, 15)
"""The oldest and the newest torch that captures were tried with."""


DIFFERS = (AttributeError, ImportError, KeyError, RuntimeError, TypeError)
"""What asking torch for something raises where it has changed."""


@dataclass(frozen=True)
class Part:
    """One attribute of one of torch's modules.

    Attributes:
        path: its name in the module, with dots.
        lost: what a capture cannot do without it.
    """

    module: str
    path: str
    lost: str

    def get(self) -> Any:
        """The part; None when it is missing, or its module was not imported."""
        found: Any = sys.modules.get(self.module)
        for name in self.path.split("."):
            found = None if found is None else getattr(found, name, None)
        return found


_FOREIGN = "a profile of the program's own is not noticed, and one of both may fail"

LOADER_START = Part(
    "torch.utils.data.dataloader",
    "_BaseDataLoaderIter.__init__",
    "batches of different loaders count as one mark",
)
LOADER_NEXT = Part(
    "torch.utils.data.dataloader", "_BaseDataLoaderIter.__next__", "batches mark no steps"
)
WORKERS = Part(
    "torch.utils.data.dataloader",
    "_MultiProcessingDataLoaderIter.__init__",
    "lines inside of a loader's workers are not known",
)
PREPARE = Part("torch.autograd.profiler", "profile._prepare_trace", _FOREIGN)
START = Part("torch.autograd.profiler", "profile._start_trace", _FOREIGN)
PROFILES = Part("torch.autograd.profiler", "_is_profiler_enabled", _FOREIGN)
COLLECTOR = Part(
    "torch._C._profiler", "_ExperimentalConfig", "pauses of the garbage collector are not recorded"
)
EVENT_TYPES = Part("torch._C._profiler", "_EventType", "exact lines of calls are not known")
CALLBACKS = Part(
    "torch._C._autograd",
    "_clear_callbacks",
    "a process forked in a window goes on recording",
)
FUNCTION_MODE = Part(
    "torch.overrides",
    "_get_current_function_mode",
    "lines of operators without a call, and modes, are not known",
)
DISPATCH_MODE = Part(
    "torch.utils._python_dispatch",
    "_get_current_dispatch_mode",
    "lines of operators without a call, and modes, are not known",
)
MODULE_CALL = Part(
    "torch.nn.modules.module",
    "Module._call_impl",
    "of nested modules an inner one may be taken for the step",
)
ALWAYS = (
    *(LOADER_START, LOADER_NEXT, WORKERS, PREPARE, START, PROFILES, COLLECTOR, EVENT_TYPES),
    *(CALLBACKS, FUNCTION_MODE, DISPATCH_MODE, MODULE_CALL),
)
"""Parts that every capture uses."""

STORE = Part(
    "torch.distributed.distributed_c10d",
    "_get_default_store",
    "ranks do not agree on the steps that they record",
)

COMPILED_MODULE = Part(
    "torch._dynamo.eval_frame", "OptimizedModule", "calls of compiled modules mark no steps"
)
BACKENDS = Part(
    "torch._dynamo.eval_frame",
    "cached_backends",
    "calls of modules are looked at late, for something may be compiled",
)
COMPILE_LOCK = Part(
    "torch._dynamo.convert_frame",
    "compile_lock",
    "lines of plain Python are not known in programs that compile",
)
COUNTERS = Part(
    "torch._dynamo.utils", "counters", "whether the program compiles, and how often, is not known"
)
BREAKS = Part("torch._dynamo.utils", "graph_break_reasons", "where graphs break may not be known")
GUARDS = Part("torch._dynamo.utils", "guard_failures", "which guards failed is not known")
METRICS = Part(
    "torch._dynamo.utils", "get_compilation_metrics", "what is compiled again is not known"
)
COMPILING = (COMPILED_MODULE, BACKENDS, COMPILE_LOCK, COUNTERS, BREAKS, GUARDS, METRICS)
"""Parts that are used once the program has imported Dynamo."""


def missing(parts: Iterable[Part]) -> list[str]:
    """A sentence for each part that this torch does not have; imports the modules of the parts."""
    found = []
    for part in parts:
        with suppress(ImportError):
            import_module(part.module)
        if part.get() is None:
            found.append(f"{this_torch()} has no {part.module}.{part.path}: {part.lost}")
    return found


def this_torch() -> str:
    """The program's torch, for people."""
    return f"this torch ({sys.modules['torch'].__version__})"
