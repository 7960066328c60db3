"""The public surface: these names, loaded on use, and nothing heavy before that."""

from __future__ import annotations

import subprocess
import sys

import pytest

import kinetoscope
from kinetoscope._optional import need
from kinetoscope.errors import MissingExtraError

HEAVY = ("torch", "polars", "numpy", "jinja2", "rich", "msgspec", "isal", "pydantic")


def _modules_after(code: str) -> set[str]:
    """Top-level modules that a fresh interpreter has after `code`."""
    script = f"{code}\nimport sys; print('MODULES', *sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    line = next(line for line in done.stdout.splitlines() if line.startswith("MODULES"))
    return {name.partition(".")[0] for name in line.split()[1:]}


def test_the_public_names() -> None:
    assert kinetoscope.__all__ == [
        "DiagnoseOptions",
        "__version__",
        "compare_runs",
        "diagnose",
        "load",
        "profile",
        "step",
        "steps",
    ]
    assert set(kinetoscope.__all__) <= set(dir(kinetoscope))


@pytest.mark.parametrize("name", kinetoscope.__all__)
def test_every_public_name_loads(name: str) -> None:
    assert getattr(kinetoscope, name)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = kinetoscope.nonsense


def test_the_import_is_free() -> None:
    assert not _modules_after("import kinetoscope") & {*HEAVY, "click"}


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["analyze", "--help"],
        ["--version"],
        ["demo", "-h"],
        ["run", "--help"],
        ["check", "-h"],
    ],
)
def test_help_loads_nothing_heavy(words: list[str]) -> None:
    loaded = _modules_after(f"from kinetoscope.cli import run; assert run({words!r}) == 0")
    assert not loaded & set(HEAVY)


def test_the_version_is_that_of_the_package() -> None:
    from importlib.metadata import version

    assert version("kinetoscope") == kinetoscope.__version__


def test_a_missing_extra_says_how_to_install_it() -> None:
    with pytest.raises(MissingExtraError) as error:
        need("no_such_module_here", extra="cluster")
    assert "no_such_module_here is not installed" in error.value.message
    assert "pip install 'kinetoscope[cluster]'" in error.value.hint


def test_a_module_that_is_there_comes_back() -> None:
    assert need("json.decoder", extra="x").__name__ == "json.decoder"
