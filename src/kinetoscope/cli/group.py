"""The group of commands, in the order of a user's work; each is loaded from its own file."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module

import click

from kinetoscope import __version__

COMMANDS = (
    "demo",
    "run",
    "analyze",
    "report",
    "compare",
    "check",
    "verify",
    "tune",
    "rules",
    "doctor",
)


_WHOLE = 200
"""Characters; no first sentence of a command is longer."""


class _LazyGroup(click.Group):
    """Commands live in `kinetoscope.cli.NAME`, attribute `command`, and load on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names in the order of the work, not of the alphabet."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Load one command."""
        if cmd_name not in COMMANDS:
            return None
        command = import_module(f"kinetoscope.cli.{cmd_name}").command
        assert isinstance(command, click.Command)  # noqa: S101 - a command file without command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Point a forgotten command out: a trace in the place of a command."""
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            from kinetoscope.errors import UsageError

            raise UsageError(f"{name} is not a command", hint=_meant(name))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands with their whole first sentence, wrapped and not cut."""
        rows = []
        for name in COMMANDS:
            command = self.get_command(ctx, name)
            assert command is not None  # noqa: S101 - a name from the list
            rows.append((name, command.get_short_help_str(limit=_WHOLE)))
        with formatter.section("Commands"):
            formatter.write_dl(rows)


EPILOG = """\b
Start with:
  kinetoscope demo
  kinetoscope run train.py
  kinetoscope analyze trace.json.gz
"""


@click.group(
    cls=_LazyGroup,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="kinetoscope")
def GROUP() -> None:  # noqa: N802 - a value, made by a decorator
    """Says why a PyTorch program is slow: the line to blame, the change, and what it gains."""


def _meant(name: str) -> str:
    """What was probably meant by something in the place of a command."""
    close = get_close_matches(name, COMMANDS, n=1)
    if name.endswith(".py"):
        guess = f"run {name}"
    elif name.endswith((".json", ".gz")) or "/" in name:
        guess = f"analyze {name}"
    elif close:
        guess = close[0]
    else:
        return "`kinetoscope --help` lists the commands."
    return f"Did you mean `kinetoscope {guess}`?"
