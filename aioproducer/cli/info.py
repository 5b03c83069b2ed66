"""`aioproducer info`: the versions and the settings for a bug report."""

from __future__ import annotations

from importlib import metadata

from aioproducer.cli import options
from aioproducer.cli.config import changed
from aioproducer.cli.exits import ExitCode
from aioproducer.cli.running import finish
from aioproducer.cli.screen import Screen
from aioproducer.cli.settings import Given, new_producer

LIBRARIES = ("typer", "rich", "pyarrow", "cryptography", "httpx", "gssapi", "pyspark")
"""Optional packages whose versions describe() does not report."""


def info(
    servers: options.Servers = None,
    config: options.SettingsFile = None,
    settings: options.Settings = None,
    as_json: options.AsJson = False,
) -> None:
    """Show versions and settings for a bug report. Secrets are hidden, but host and user names are not."""
    given = Given(servers, config, tuple(settings or ()))
    del settings  # a traceback that shows locals must not show passwords
    screen = Screen(as_json=as_json)

    def command() -> ExitCode:
        producer = new_producer(given, screen)
        versions = dict(producer.describe().versions)
        del versions["event loop"]  # no loop has run
        versions |= {name: version for name in LIBRARIES if (version := _version(name)) is not None}
        shown = changed(producer.config)
        if as_json:
            screen.json({"versions": versions, "settings": shown, "exit_code": 0})
            return ExitCode.OK
        for name, version in versions.items():
            screen.result(f"{name}: {version}")
        for text in shown:
            screen.result(text)
        return ExitCode.OK

    finish(screen, command)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
