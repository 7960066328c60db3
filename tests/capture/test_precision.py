"""The precision of products, set through either of torch's interfaces."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.capture.support import environment

torch = pytest.importorskip("torch", reason="captures need torch")

SHOW = """
import torch
{set}
from kinetoscope.capture.sidecar import settings
found = settings()
print(found["float32_matmul_precision"], found["cudnn_allow_tf32"])
"""

NEWER = hasattr(torch.backends, "fp32_precision") or hasattr(
    torch.backends.cuda.matmul, "fp32_precision"
)


@pytest.mark.parametrize(
    ("set_", "found"),
    [
        ("", "highest True"),
        ('torch.set_float32_matmul_precision("high")', "high True"),
        ("torch.backends.cudnn.allow_tf32 = False", "highest False"),
        ('torch.backends.cuda.matmul.fp32_precision = "tf32"', "high True"),
        ('torch.backends.fp32_precision = "tf32"', "high True"),
        ('torch.backends.cudnn.conv.fp32_precision = "ieee"', "highest False"),
    ],
)
def test_both_interfaces_are_read(set_: str, found: str) -> None:
    """Torch refuses to read through the older one what the newer one has set."""
    if "fp32_precision" in set_ and not NEWER:
        pytest.skip("torch has the newer interface since 2.9")
    done = subprocess.run(
        [sys.executable, "-c", SHOW.format(set=set_)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.strip() == found, done.stderr
