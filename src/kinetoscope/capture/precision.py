"""Which precision float32 products run in, whichever of torch's two interfaces set it.

Since 2.9 there are `torch.backends.….fp32_precision` as well as `set_float32_matmul_precision` and
`allow_tf32`. Once a program has set the newer ones, torch refuses to read some of the older ones.
"""

from __future__ import annotations

_OLDER_NAMES = {"tf32": "high", "bf16": "medium"}


def matmul_precision() -> str:
    """Of matrix products on CUDA: highest, high or medium, as the older interface names them."""
    import torch

    try:
        return str(torch.get_float32_matmul_precision())
    except RuntimeError:
        return _OLDER_NAMES.get(torch.backends.cuda.matmul.fp32_precision, "highest")


def convolution_tf32() -> bool:
    """May convolutions on CUDA run in TF32?"""
    import torch

    try:
        return bool(torch.backends.cudnn.allow_tf32)
    except RuntimeError:
        return bool(torch.backends.cudnn.conv.fp32_precision == "tf32")
