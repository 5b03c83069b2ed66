"""What exporters show is that of the whole process, so each test here begins without producers."""

from __future__ import annotations

import gc

import pytest

from aioproducer.observe import live
from aioproducer.observe.live import Producers


@pytest.fixture(autouse=True)
def producers(monkeypatch: pytest.MonkeyPatch) -> Producers:
    """The producers of the process: none yet."""
    gc.collect()  # those of earlier tests
    producers = Producers()
    monkeypatch.setattr(live, "_producers", producers)
    return producers
