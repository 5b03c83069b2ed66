"""Exporters show all producers of the process, so each test here begins without producers."""

from __future__ import annotations

import gc

import pytest

from aioproducer.observe import live
from aioproducer.observe.live import Producers


@pytest.fixture(autouse=True)
def producers(monkeypatch: pytest.MonkeyPatch) -> Producers:
    """The registry of the process's producers, empty at first."""
    gc.collect()  # removes the producers of earlier tests
    producers = Producers()
    monkeypatch.setattr(live, "_producers", producers)
    return producers
