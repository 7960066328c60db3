"""The docs name what there is: rules, commands, options, exit codes, fields; commands run."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import click
import pytest

from kinetoscope.cli import run
from kinetoscope.cli.exit_codes import MEANINGS
from kinetoscope.cli.group import COMMANDS, GROUP
from kinetoscope.errors import KinetoscopeError
from kinetoscope.report import FORMATS
from kinetoscope.result import schema

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_pages_are_current() -> None:
    wanted: dict[Path, str] = _generator().pages()
    stale = [str(p.relative_to(ROOT)) for p, text in wanted.items() if _read(p) != text]
    gone = [str(p) for p in (ROOT / "docs" / "rules").glob("*.md") if p not in wanted]
    assert not stale + gone, "run: python docs/generate.py --write"


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_is_described(name: str) -> None:
    page = _read(ROOT / "docs" / "cli.md")
    command = GROUP.get_command(click.Context(GROUP), name)
    assert command is not None
    assert f"## kinetoscope {name}\n" in page
    for param in command.params:
        if isinstance(param, click.Option):
            assert param.help, f"{name} {param.opts}"
            assert all(f"`{option}`" in page for option in param.opts)


def test_every_exit_code_is_described() -> None:
    page = _read(ROOT / "docs" / "cli.md")
    kinds = [KinetoscopeError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    for code in {*MEANINGS, *(kind.exit_code for kind in kinds)}:
        assert f"| {code} | " in page


def test_every_format_is_offered_and_described() -> None:
    from kinetoscope.cli import options
    from kinetoscope.result.finding import SEVERITIES

    assert set(options.FORMATS) == set(FORMATS)
    assert options.SEVERITIES == SEVERITIES
    page = _read(ROOT / "docs" / "cli.md")
    assert all(form.suffixes[0] in page for form in FORMATS.values())


def test_the_words_of_the_result_are_defined() -> None:
    page = _read(ROOT / "docs" / "reading-a-result.md")
    definitions = schema.generate()["$defs"]
    for name in ("Verdict", "StepTime", "DeviceTimeline"):
        for field in definitions[name]["properties"]:
            assert f"`{field}`" in page or f".{field}`" in page or field in ("rank", "device"), (
                field
            )
    words = re.findall(r'"enum": \[([^\]]*)\]', schema.text())
    for word in {w for group in words for w in re.findall(r'"(\w+)"', group)}:
        assert f"`{word}`" in page or word in ("quality", "step_speedup"), word


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", _read(page)):
        if not target.startswith(("https://", "http://")):
            assert (page.parent / target).exists(), target


def _readme_commands() -> list[str]:
    blocks = re.findall(r"```(?:sh|console)?\n(.*?)```", README, re.S)
    return [block.strip() for block in blocks[:2]]


def test_the_readme_starts_with_two_commands_that_need_nothing_before() -> None:
    demo, tests = _readme_commands()
    for command in (demo, tests):
        assert "\n" not in command
        assert command.startswith("python3 -m venv .venv && .venv/bin/pip install -q ")
    assert demo.endswith(".venv/bin/kinetoscope demo")
    assert "-m pytest" in tests


def test_the_readme_shows_what_the_demo_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run the demo with COLUMNS=100 and paste its diagnosis when this fails."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    assert run(["demo", "--no-torch"]) == 0
    (block,) = re.findall(r"```text\n(kinetoscope-demo.*?)\n```", README, re.S)
    assert block in capsys.readouterr().out


def test_continuous_integration_runs_the_readme_test_command() -> None:
    lines = _read(ROOT / ".ci" / "run").splitlines()
    assert _readme_commands()[1] in lines


def test_commands_in_the_docs_exist() -> None:
    for page in PAGES:
        for block in re.findall(r"```(?:sh|console)?\n(.*?)```", _read(page), re.S):
            for name in re.findall(r"^kinetoscope (\w+)", block, re.M):
                assert name in COMMANDS, f"{page.name}: kinetoscope {name}"


def test_python_in_the_docs_is_python() -> None:
    for page in PAGES:
        if page.parent.name == "rules":
            continue
        for block in re.findall(r"```python\n(.*?)```", _read(page), re.S):
            compile(block, str(page), "exec")
