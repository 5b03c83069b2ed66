"""The exit code of each error."""

from __future__ import annotations

import pytest

from aioproducer import BootstrapError, CommitOutcomeUnknownError, ConfigError, DeliveryError, Outcome
from aioproducer.cli.exits import CommandError, ExitCode, Interrupted, UsageError, code_of


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CommandError("no"), 1),
        (UsageError("no"), 2),
        (Interrupted(), 130),
        (ConfigError("no", setting="acks", value=7), 2),
        (BootstrapError("no"), 1),
        (CommitOutcomeUnknownError("no"), 3),
        (DeliveryError("no"), 3),
        (DeliveryError("no", outcome=Outcome.NOT_PERSISTED), 1),
        (OSError("no"), 1),
    ],
)
def test_an_error_has_its_exit_code(error, code):
    assert code_of(error) == ExitCode(code)
