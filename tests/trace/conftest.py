from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kinetoscope.trace.readers import read
from kinetoscope.trace.trace import Trace

ReadText = Callable[..., Trace]


@pytest.fixture
def read_bytes(tmp_path: Path) -> ReadText:
    """Writes the bytes (or text, or a value as JSON) to a file and reads it."""

    def go(content: Any, *, name: str = "trace.json", **options: Any) -> Trace:
        if not isinstance(content, (str, bytes)):
            content = json.dumps(content)
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return read(path, **options)

    return go
