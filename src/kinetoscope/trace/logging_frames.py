"""Frames of libraries around training that log, report or call back."""

from __future__ import annotations

_LOGGING = (
    "wandb/",
    "mlflow/",
    "comet_ml/",
    "neptune/",
    "tqdm/",
    "tensorboard/",
    "tensorboardX/",
    "torch/utils/tensorboard/",
    "logging/__init__.py(",
    "loguru/",
    "aim/",
)
_CALLBACKS = (
    "/callbacks/",
    "/loggers/",
    "transformers/trainer_callback.py(",
    "transformers/integrations/",
    "accelerate/tracking.py(",
)


def is_logging_frame(name: str) -> bool:
    """A frame of a logger, a progress bar, or a trainer's callback.

    Names are relative to `sys.path` or hold `site-packages`; callbacks are the folders of
    Lightning's and the files of transformers' and accelerate's.
    """
    file = name.rpartition("site-packages/")[2]
    if file.startswith(_LOGGING):
        return True
    library = file.startswith(("lightning/", "pytorch_lightning/", "transformers/", "accelerate/"))
    return library and any(part in file for part in _CALLBACKS)
