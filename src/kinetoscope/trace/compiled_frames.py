"""Names that Dynamo and Inductor give to host events and kernels."""

from __future__ import annotations

import re

_DYNAMO_REGION = "Torch-Compiled Region: "

_DYNAMO_LOOKUP = "TorchDynamo Cache Lookup"

_DYNAMO_GLUE = (_DYNAMO_LOOKUP, "Pregraph bytecode", "AOTDispatcher Runtime Wrapper Prologue")

_COMPILED = ("Torch-Compiled Region", "CompiledF", "## Call CompiledFxGraph", "triton_")

_INDUCTOR = ("## Call CompiledFxGraph", "triton_")

_RESUME = re.compile(r"torch_dynamo_resume_in_(?P<function>.+)_at_(?P<line>\d+)$")

_COMPILE_ID = re.compile(r"compile_id=(\d+)/(\d+)")


def compiled_region(name: str) -> tuple[int, int] | None:
    """`Torch-Compiled Region: 3/1` -> (frame 3, compilation 1), as Dynamo numbers them."""
    if not name.startswith(_DYNAMO_REGION):
        return None
    frame, _, version = name[len(_DYNAMO_REGION) :].partition("/")
    return (int(frame), int(version)) if frame.isdigit() and version.isdigit() else None


def compile_id(name: str) -> tuple[int, int] | None:
    """Frame and compilation in the `..._data: ... compile_id=3/1` marks of a compiler's phase."""
    match = _COMPILE_ID.search(name)
    return (int(match[1]), int(match[2])) if match else None


def is_dynamo_glue(name: str) -> bool:
    """What calling a compiled region costs on top of it: cache lookup, guards, wrappers."""
    return name in _DYNAMO_GLUE


def is_dynamo_lookup(name: str) -> bool:
    """The guard check before a compiled region; recorded by torch 2.0 and later."""
    return name == _DYNAMO_LOOKUP


def resume_point(name: str) -> tuple[str, int] | None:
    """Function and line of a graph break, from Dynamo's name for the code that follows it."""
    match = _RESUME.search(name)
    return (match["function"], int(match["line"])) if match else None


def is_dynamo_wrapper(name: str) -> bool:
    """The frame through which a compiled callable is entered (torch/_dynamo/eval_frame.py).

    Not `_fn`: since torch 2.8 that is the wrapper of `torch.compiler.disable`, around checkpoints
    and optimizers.
    """
    return name.startswith("nn.Module: OptimizedModule_") or (
        "torch/_dynamo/eval_frame.py(" in name
        and name.endswith((": compile_wrapper", ": __call__"))
    )


def is_inductor_kernel(name: str) -> bool:
    """Inductor's range around the launch of one kernel (`triton_poi_fused_add_0`)."""
    return name.startswith("triton_")


def is_compiled_code(name: str) -> bool:
    """Code that a compiler made runs: as any version of torch since 2.0 marks it.

    A region (since 2.2), the autograd function around it, Inductor's range and its Triton kernels;
    with stacks the module that Inductor or torch.fx wrote.
    """
    return name.startswith(_COMPILED) or "/torchinductor_" in name or "<eval_with_key>" in name


def is_inductor_code(name: str) -> bool:
    """Code that Inductor made runs: its graph, one of its kernels, or a module that it wrote."""
    return name.startswith(_INDUCTOR) or "/torchinductor_" in name


def is_graph_interpreter(name: str) -> bool:
    """The function that torch.fx writes for a graph: it calls the graph's operators one by one."""
    return "<eval_with_key>" in name
