"""The lines that a producer has logged."""

from __future__ import annotations

import logging

import pytest


def log_lines(caplog: pytest.LogCaptureFixture, level: int = logging.NOTSET) -> list[str]:
    """The messages of at least this level, without the prefix that names the default client id."""
    return [
        record.getMessage().removeprefix("[producer aioproducer] ")
        for record in caplog.records
        if record.levelno >= level
    ]
