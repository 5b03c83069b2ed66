"""The page with all options of the `aioproducer` command."""

from __future__ import annotations

import inspect
from typing import Any

import typer.main

from aioproducer.cli.app import app
from tools.reference.markdown import table

OTHER = "Other options"


def escaped(text: str) -> str:
    """Return plain text, escaped for a table cell."""
    for character in "\\|[]*_`":
        text = text.replace(character, f"\\{character}")
    return text.replace("<", "&lt;")


def section_for(name: str, command: Any) -> str:
    """Return the part of the page about one command."""
    context = command.make_context(name, [], resilient_parsing=True)
    usage = " ".join(
        ["aioproducer", name, *(piece.strip("{}") for piece in command.collect_usage_pieces(context))]
    )
    parts = [f"## aioproducer {name}", inspect.cleandoc(command.help), f"```text\n{usage}\n```"]
    panels: dict[str, list[list[str]]] = {}
    for parameter in command.params:
        record = parameter.get_help_record(context)
        if record is not None:
            is_argument = parameter.param_type_name == "argument"
            panel = "Arguments" if is_argument else getattr(parameter, "rich_help_panel", None) or OTHER
            shown = record[0].split(" <")[0] if is_argument else record[0]
            panels.setdefault(panel, []).append([f"`{shown}`".replace("|", "\\|"), escaped(record[1])])
    for panel in sorted(panels, key=OTHER.__eq__):
        parts.append(table([panel, "meaning"], panels[panel]))
    return "\n\n".join(parts)


def page() -> str:
    """Return the reference page."""
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]  # it is a group
    sections = "\n\n".join(section_for(name, command) for name, command in commands.items())
    return f"""# Command line options

[The command line](cli.md) describes what the commands do, and their exit codes.

{sections}
"""
