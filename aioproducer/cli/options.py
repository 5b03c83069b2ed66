"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

CLUSTER = "Cluster"

Servers = Annotated[
    str | None,
    typer.Option(
        "-b",
        "--bootstrap-servers",
        metavar="HOST:PORT,...",
        help="Addresses of the cluster. Default: those in -F or AIOPRODUCER_BOOTSTRAP_SERVERS, or localhost:9092.",
        show_default=False,
        rich_help_panel=CLUSTER,
    ),
]
SettingsFile = Annotated[
    Path | None,
    typer.Option(
        "-F",
        "--config",
        metavar="FILE",
        help="A properties file with the setting names of the Java clients or librdkafka. Put secrets here.",
        show_default=False,
        rich_help_panel=CLUSTER,
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "-X",
        "--set",
        metavar="KEY=VALUE",
        help="A setting that overrides the file. Repeatable. Not for secrets, because other users can see them.",
        show_default=False,
        rich_help_panel=CLUSTER,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Write the result as one line of JSON.")]
Verbose = Annotated[
    int,
    typer.Option(
        "-v", "--verbose", count=True, help="Show what the library logs; -vv for more.", show_default=False
    ),
]
