"""Keeps torch's chatter about starting and stopping a profile off the program's stderr."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

_CHATTER = (b"USDT:", b"SyncActivityProfilerHandler", b"CPUAllocator.cpp", b"ActivityProfiler")


@contextmanager
def quiet_stderr() -> Iterator[None]:
    """Hold file descriptor 2 back, and pass on what is not torch's own chatter.

    Only for the moments in which the profiler starts and stops: the program stands still then.
    """
    sys.stderr.flush()
    try:
        kept = os.dup(2)
    except OSError:  # a daemon without stderr
        yield
        return
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            held.seek(0)
            for line in held.read().splitlines(keepends=True):
                if not any(word in line for word in _CHATTER):
                    os.write(kept, line)
            os.close(kept)
