"""Places in torch at which a remedy may act: documented, few, and put back by nobody.

They live in a process that runs one program once and ends. Every patch point is a public name of
torch, or the hook that torch offers:

| patch point | reached by |
|---|---|
| outermost call of a module with parameters | `nn.Module.__call__` |
| construction of a DataLoader | `DataLoader.__init__` |
| construction of an optimizer | `__init__` of each class in `torch.optim` |
| construction of a DDP wrapper | `DistributedDataParallel.__init__` |
| an optimizer made a step | `register_optimizer_step_post_hook` |
| a loss was differentiated | `Tensor.backward` |
| a batch was fetched | `__next__` of the DataLoader's iterators |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import wraps
from typing import Any

Wrap = Callable[[], AbstractContextManager[Any]]


class TopCalls:
    """What happens at the outermost call of each module that has parameters.

    Attributes:
        first: called once for each module, before its first call.
        arguments: change the arguments of a call.
        around: contexts that a call runs in.
        outputs: change what a call returns.
        after: told about every call: module, arguments, output.
        replace: run the call in place of the module; None leaves it to the module.
    """

    def __init__(self) -> None:
        self.first: list[Callable[[Any], None]] = []
        self.arguments: list[Callable[[tuple[Any, ...]], tuple[Any, ...]]] = []
        self.around: list[Wrap] = []
        self.outputs: list[Callable[[Any], Any]] = []
        self.after: list[Callable[[Any, tuple[Any, ...], Any], None]] = []
        self.replace: list[Callable[[Any, tuple[Any, ...], dict[str, Any], Any], Any]] = []
        self._depth = 0
        self._known: dict[int, bool] = {}

    def install(self) -> None:
        """Put the hook into `nn.Module.__call__`."""
        from torch import nn

        original = nn.Module.__call__
        top = self

        # Named `self`, as torch's stack recorder looks this name up in the frame of the call.
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            if top._depth or not top._is_top(self):
                return original(self, *args, **kwargs)
            top._depth += 1
            try:
                return top._run(original, self, args, kwargs)
            finally:
                top._depth -= 1

        nn.Module.__call__ = call

    def _is_top(self, module: Any) -> bool:
        key = id(module)
        if key not in self._known:
            self._known[key] = next(iter(module.parameters()), None) is not None
            if self._known[key]:
                for hook in self.first:
                    hook(module)
        return self._known[key]

    def _run(
        self, original: Any, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        for change in self.arguments:
            args = change(args)
        with ExitStack() as stack:
            for make in self.around:
                stack.enter_context(make())
            output = NotImplemented
            for run in self.replace:
                output = run(module, args, kwargs, original)
            if output is NotImplemented:
                output = original(module, *args, **kwargs)
            for alter in self.outputs:
                output = alter(output)
        for tell in self.after:
            tell(module, args, output)
        return output


TOP = TopCalls()
"""The one of this process."""


def at_construction(cls: Any, change: Callable[[dict[str, Any], tuple[Any, ...]], None]) -> None:
    """Let `change(kwargs, args)` alter the keyword arguments with which `cls` is made."""
    original: Any = cls.__init__

    @wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        change(kwargs, args)
        original(self, *args, **kwargs)

    cls.__init__ = init


def optimizer_classes(option: str) -> Iterator[Any]:
    """The classes of `torch.optim` whose constructor has this option."""
    import inspect

    import torch

    for name in dir(torch.optim):
        cls = getattr(torch.optim, name)
        if not (isinstance(cls, type) and issubclass(cls, torch.optim.Optimizer)):
            continue
        if option in inspect.signature(cls).parameters:
            yield cls


def tensors_of(value: Any) -> Iterator[Any]:
    """The tensors in nested tuples, lists, dicts and dataclass-like outputs."""
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_of(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_of(item)


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same nesting with `change` applied to each tensor."""
    import torch
    from torch.utils._pytree import tree_map_only

    return tree_map_only(torch.Tensor, change, value)


@contextmanager
def nothing() -> Iterator[None]:
    """A context that does nothing."""
    yield
