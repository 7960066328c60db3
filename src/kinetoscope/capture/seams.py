"""Where torch tells that a step may have begun: documented seams, wrapped at run time.

| mark | seam |
|---|---|
| optimizer | `Optimizer.step` of every class, and the global post hook for those wrapped before |
| loader | `__next__` of DataLoader iterators |
| backward | `torch.autograd.backward` |
| graph | `torch.cuda.CUDAGraph.replay` |
| module | calls of the outermost module; looked for only when nothing else marks steps |

All wrappers stand outside of the range that torch itself records, so that step marks and those
ranges nest. They are removed when the capture is done.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from kinetoscope.capture.import_hook import after_import
from kinetoscope.capture.modules import ModuleSeam, wrap_compiled_modules
from kinetoscope.capture.torch_parts import LOADER_NEXT, LOADER_START

Mark = Callable[[str, int, str], None]
"""Called with kind, identity and label of a mark."""


class Seams:
    """The wrapped seams of one process."""

    def __init__(self, mark: Mark) -> None:
        self._told = [mark]
        told = self._told

        def relay(kind: str, identity: int, label: str) -> None:
            for tell in told:
                tell(kind, identity, label)

        # Dynamo remembers functions of torch for good, as they were when it was imported: what it
        # has of ours must not keep a capture that is over.
        self._mark = relay
        self.modules = ModuleSeam(relay)
        self._undo: list[Callable[[], object]] = []
        self._inside_step = False

    @property
    def installs(self) -> tuple[Callable[[], None], ...]:
        """What wraps the seams of the imported torch, one by one."""
        return (
            self._optimizers,
            self._loaders,
            self._backward,
            self._graphs,
            lambda: self.also_undo(after_import("torch._dynamo.eval_frame", self._compiled)),
        )

    def remove(self) -> None:
        """Put everything back as it was."""
        self._told.clear()
        self.modules.remove()
        while self._undo:
            self._undo.pop()()

    def also_undo(self, undo: Callable[[], object]) -> None:
        """Do this as well when the seams are removed."""
        self._undo.append(undo)

    def _compiled(self) -> None:
        wrap_compiled_modules(self._mark, self.replace, self.modules.compiled_is_called)

    def replace(self, owner: Any, name: str, new: Any) -> None:
        """Set an attribute and remember how to put the old one back.

        An attribute that the owner only inherits is taken away again.
        """
        old = owner.__dict__.get(name)
        setattr(owner, name, new)

        def undo() -> None:
            if owner.__dict__.get(name) is not new:  # somebody else may have wrapped it since
                return
            if old is None:
                delattr(owner, name)
            else:
                setattr(owner, name, old)

        self._undo.append(undo)

    # ---- optimizers ----------------------------------------------------------------------

    def _optimizers(self) -> None:
        from torch.optim import Optimizer, optimizer

        original = Optimizer.__init__

        @functools.wraps(original)
        def begin(new: Any, *args: Any, **kwargs: Any) -> None:
            original(new, *args, **kwargs)  # torch puts its range around the class's step here
            self._step_of(type(new))

        self.replace(Optimizer, "__init__", begin)
        for cls in _subclasses(Optimizer):
            if getattr(cls.__dict__.get("step"), "hooked", False):
                self._step_of(cls)
        hook = optimizer.register_optimizer_step_post_hook(self._after_step)
        self._undo.append(hook.remove)

    def _step_of(self, cls: Any) -> None:
        if not getattr(cls.step, "marks_steps", False):  # by its own wrapper, or an inherited one
            wrapped = self._stepping(cls.step)
            wrapped.marks_steps = True
            self.replace(cls, "step", wrapped)

    def _stepping(self, step: Any) -> Any:
        """`step` with a mark after it, outside of torch's own range for it."""
        from torch.compiler import is_compiling

        @functools.wraps(step)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if is_compiling() or self._inside_step:
                return step(*args, **kwargs)
            self._inside_step = True
            try:
                result = step(*args, **kwargs)
            finally:
                self._inside_step = False
            self._mark_optimizer(args[0])
            return result

        return wrapper

    def _after_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """The step of a class whose method was bound before it could be wrapped."""
        if not self._inside_step:
            self._mark_optimizer(optimizer)

    def _mark_optimizer(self, optimizer: Any) -> None:
        self._mark("optimizer", id(optimizer), f"{type(optimizer).__name__}.step")

    # ---- the others ----------------------------------------------------------------------

    def _loaders(self) -> None:
        start, following, mark = LOADER_START.get(), LOADER_NEXT.get(), self._mark
        if start is None or following is None:
            return
        from torch.utils.data import dataloader

        base = dataloader._BaseDataLoaderIter

        @functools.wraps(start)
        def begin(iterator: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
            iterator._kinetoscope_loader = id(loader)
            start(iterator, loader, *args, **kwargs)

        @functools.wraps(following)
        def advance(iterator: Any) -> Any:
            mark("loader", getattr(iterator, "_kinetoscope_loader", 0), "DataLoader")
            return following(iterator)

        self.replace(base, "__init__", begin)
        self.replace(base, "__next__", advance)

    def _backward(self) -> None:
        import torch
        from torch.compiler import is_compiling

        original, mark = torch.autograd.backward, self._mark

        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> None:
            if not is_compiling():
                mark("backward", 0, "backward()")
            original(*args, **kwargs)

        self.replace(torch.autograd, "backward", backward)

    def _graphs(self) -> None:
        from torch.cuda import graphs

        original, mark = graphs.CUDAGraph.replay, self._mark

        @functools.wraps(original)
        def replay(graph: Any) -> None:
            mark("graph", id(graph), "CUDA graph replay")
            original(graph)

        if "replay" in graphs.CUDAGraph.__dict__:
            self.replace(graphs.CUDAGraph, "replay", replay)


def _subclasses(cls: type) -> list[type]:
    found: list[type] = []
    child: type
    for child in cls.__subclasses__():
        found.append(child)
        found.extend(_subclasses(child))
    return found
