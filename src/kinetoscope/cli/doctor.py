"""`kinetoscope doctor`: can this machine and this torch profile, and what quietly costs speed."""

from __future__ import annotations

import click


@click.command("doctor")
@click.option("--no-color", is_flag=True, help="No colours; NO_COLOR does the same.")
def command(no_color: bool) -> None:
    """Check whether this machine and this torch can profile, and which flags cost speed.

    Each line that is not in order says the next step. The exit code is always 0.
    """
    from rich.text import Text

    from kinetoscope.capture.checks import examine
    from kinetoscope.cli import output
    from kinetoscope.report.layout import Page
    from kinetoscope.report.text import clean

    options = output.stdout_options(no_color=no_color, all_findings=False, verbose=False)
    page = Page(width=options.width, color=options.color)
    styles = {"ok": "green", "slow": "yellow", "missing": "yellow", "problem": "bold red"}
    for check in examine():
        line = Text(f"{check.state:8}", style=styles[check.state])
        line.append(clean(f"{check.name}: {check.text}"), style="default")
        page.prose(line)
        if check.step:
            page.prose(Text("          -> " + clean(check.step), style="dim"))
    output.write(page.text())
