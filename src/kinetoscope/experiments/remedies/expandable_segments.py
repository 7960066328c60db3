"""Let the allocator grow its segments instead of asking for new ones.

Patch point: the environment variable `PYTORCH_CUDA_ALLOC_CONF`, set before the process starts.
"""

from __future__ import annotations

from kinetoscope.experiments.remedy import GPU_ONLY, Facts, Remedy


def _applies(facts: Facts) -> str:
    if not facts.on_gpu:
        return GPU_ONLY
    on = "expandable_segments:True" in str(facts.settings.get("allocator", ""))
    return "it is on already" if on else ""


REMEDY = Remedy(
    id="expandable-segments",
    title="let memory segments grow",
    improves="step time or peak memory",
    applies=_applies,
    patch=lambda _: None,
    environment=lambda _: {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    snippet=lambda _: "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True  # environment",
)
