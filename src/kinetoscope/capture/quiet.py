"""Keeps torch's chatter about starting and stopping a profile off the program's stderr."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

_CHATTER = (
    *(b"USDT:", b"SyncActivityProfilerHandler", b"CPUAllocator.cpp", b"ActivityProfiler"),
    *(b"output_json.cpp", b"CUPTI", b"DeviceProperties.cpp", b"External init callback"),
)
"""What is said in these lines is either of no use, or said by us in other words."""
_CUPTI = re.compile(rb"CUPTI_ERROR_\w+")


@contextmanager
def quiet_stderr() -> Iterator[set[str]]:
    """Hold file descriptor 2 back, and pass on what is not torch's own chatter.

    Only for the moments in which the profiler starts and stops: the program stands still then.

    Yields:
        The names of CUPTI's errors in what was held back; filled at the end.
    """
    errors: set[str] = set()
    try:
        sys.stderr.flush()
        kept = os.dup(2)
    except (OSError, AttributeError, ValueError):  # a daemon without stderr
        yield errors
        return
    with _memory() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield errors
        finally:
            os.dup2(kept, 2)
            held.seek(0)
            text = held.read()
            errors.update(code.decode() for code in _CUPTI.findall(text))
            for line in text.splitlines(keepends=True):
                if not any(word in line for word in _CHATTER):
                    os.write(kept, line)
            os.close(kept)


def _memory() -> IO[bytes]:
    """A file that needs no disk, where the system has such."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("kinetoscope"), "w+b")
    return tempfile.TemporaryFile()
