"""Which files belong to the user's program, by their full path."""

from __future__ import annotations

import sysconfig
from functools import lru_cache
from pathlib import Path

from kinetoscope.trace.frames import is_user_file

_OWN = str(Path(__file__).resolve().parents[1]) + "/"
_STANDARD = tuple(
    str(Path(path)) + "/"
    for name in ("stdlib", "platstdlib", "purelib", "platlib")
    if (path := sysconfig.get_path(name))
)


@lru_cache(maxsize=4096)
def is_program_file(path: str) -> bool:
    """Does the file belong to the program: not to Python, a library or this package?"""
    if path.startswith((_OWN, *_STANDARD)) or path.endswith("/bin/kinetoscope"):
        return False
    return is_user_file(path)
