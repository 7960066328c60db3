"""Capture from inside a program: `profile`, `steps`, `step`.

with kinetoscope.profile() as p:
    for batch in loader:
        train(batch)
        p.step()
print(p)
"""

from __future__ import annotations

import functools
import html
import shutil
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from kinetoscope.capture.import_hook import after_import
from kinetoscope.capture.options import CaptureOptions
from kinetoscope.capture.ranks import Place
from kinetoscope.capture.session import Session
from kinetoscope.capture.sharing import current, set_current
from kinetoscope.errors import InputError, UsageError
from kinetoscope.profiling import (
    Captured,
    complete,
    copy_trace,
    examine_capture,
    is_trace_output,
    view_of,
)
from kinetoscope.result import Diagnosis

if TYPE_CHECKING:
    from kinetoscope.engine import Examined

T = TypeVar("T")


def _say(text: str) -> None:
    sys.stderr.write(f"kinetoscope: {text}\n")


def _writable(path: Path) -> Path:
    """An output that cannot be written is an error before the loop, not after it.

    Raises:
        UsageError: no format for the suffix, or no such folder.
    """
    from kinetoscope.report import format_of

    if not is_trace_output(path.name):
        format_of(str(path))
    if not path.parent.is_dir():
        raise UsageError(
            f"cannot write {path}: there is no folder {path.parent}",
            hint=f"mkdir -p {path.parent}",
        )
    return path


class profile:  # noqa: N801 - used like torch.profiler.profile
    """Captures the steps of a `with` block, or of the calls of a function that it decorates.

    Args:
        output: files to write at the end: results (.html, .json, .md, .txt) or the recording
            (.json.gz).
        budget_s: seconds that the capture may take, waiting for steady steps included.
        find_steps: look for steps; when False only `step()` counts.
        source_root: folder of the sources, for lines of code in the result.

    Raises:
        UsageError: an output that cannot be written.

    Under `kinetoscope run` the block only marks steps; the command does the rest.
    """

    def __init__(
        self,
        output: str | Path | Sequence[str | Path] = (),
        *,
        budget_s: float = 60.0,
        find_steps: bool = True,
        source_root: str | Path | None = None,
    ) -> None:
        given = [output] if isinstance(output, str | Path) else list(output)
        self._outputs = [_writable(Path(name)) for name in given]
        self._options = CaptureOptions(budget_s=budget_s, find_steps=find_steps)
        self._root = Path(source_root) if source_root is not None else Path.cwd()
        self._session: Session | None = None
        self._captured: Captured | None = None
        self._diagnosis: Diagnosis | None = None
        self._mine = False

    # ---- capturing -----------------------------------------------------------------------

    def __enter__(self) -> profile:
        self._session = current()
        self._mine = self._session is None
        if self._mine:
            self._session = Session(self._options, _say, Place.here())
            set_current(self._session)
            after_import("torch", self._session.attach)
            weakref.finalize(self, shutil.rmtree, self._session.folder, ignore_errors=True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._mine or self._session is None:
            return
        set_current(None)
        self._captured = complete(self._session.finish(), _say)
        self._write()

    def step(self) -> None:
        """A step ended."""
        if self._session is not None:
            self._session.note("user", 0, "step()")

    @property
    def done(self) -> bool:
        """Is everything recorded, so that the loop may end?"""
        return self._session is not None and self._session.phase == "done"

    def __call__(self, function: Callable[..., T]) -> Callable[..., T]:
        """Decorate a function: each call is a step, from the first call on until all is recorded.

        The decorated function has this object as its attribute `profile`.
        """

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> T:
            if self._session is None:
                self.__enter__()
            self.step()
            result = function(*args, **kwargs)
            if self.done and self._captured is None:
                self.__exit__(None, None, None)
            return result

        wrapper.profile = self  # type: ignore[attr-defined]
        return wrapper

    # ---- the result ----------------------------------------------------------------------

    @property
    def trace(self) -> Path | None:
        """The recording; gone with this object, unless `output` names a file for it."""
        return self._captured.trace if self._captured else None

    @property
    def problems(self) -> tuple[str, ...]:
        """What went wrong or is missing."""
        return tuple(self._captured.problems) if self._captured else ()

    @property
    def diagnosis(self) -> Diagnosis:
        """Why the steps are slow.

        Raises:
            InputError: nothing was recorded; the message says why.
        """
        if self._diagnosis is None:
            if self._captured is None and self._mine and self._session is not None:
                self.__exit__(None, None, None)  # a decorated function, asked before it was done
            if self.trace is None:
                why = self.problems[-1] if self.problems else "the block has not ended"
                raise InputError(f"nothing was recorded: {why}.", "Let the loop run longer.")
            self._diagnosis = self._examine(self.trace).diagnosis
        return self._diagnosis

    def _examine(self, trace: Path) -> Examined:
        kept = [str(path) for path in self._outputs if is_trace_output(path.name)]
        names = {str(trace): kept[0] if kept else trace.name}
        return examine_capture([trace], names, self._root)

    def _write(self) -> None:
        from kinetoscope.report import FORMATS, RenderOptions, format_of, render

        if self.trace is None:
            return
        for path in self._outputs:
            if is_trace_output(path.name):
                copy_trace(self.trace, path)
        results = [path for path in self._outputs if not is_trace_output(path.name)]
        if not results:
            return
        found = self._examine(self.trace)
        self._diagnosis = found.diagnosis
        for path in results:
            form = format_of(str(path))
            view = view_of(found) if FORMATS[form].shows_view else None
            text = render(found.diagnosis, form, RenderOptions(view=view))
            path.write_text(text, encoding="utf-8")

    def __str__(self) -> str:
        from kinetoscope.report import render

        try:
            return render(self.diagnosis, "terminal")
        except InputError as error:
            return f"{error.message} {error.hint}"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        style = "white-space:pre;font-family:monospace;line-height:1.25;overflow-x:auto"
        return f'<div style="{style}">{html.escape(str(self))}</div>'


class steps(Generic[T]):  # noqa: N801 - used like a function: `for batch in steps(loader)`
    """Iterates over something, each item a step, and captures while it does.

    Args:
        items: a DataLoader or any other iterable.
        options: as for `profile`.

    After the loop, `profile` holds the result.
    """

    def __init__(self, items: Iterable[T], **options: Any) -> None:
        self._items = items
        self.profile = profile(**options)

    def __iter__(self) -> Iterator[T]:
        with self.profile as capture:
            items = iter(self._items)
            while True:
                capture.step()
                try:
                    item = next(items)
                except StopIteration:
                    return
                yield item

    def __len__(self) -> int:
        return len(self._items)  # type: ignore[arg-type]

    @property
    def diagnosis(self) -> Diagnosis:
        """Why the steps are slow; see `profile.diagnosis`."""
        return self.profile.diagnosis

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return self.profile._repr_html_()
