"""Defines Core, a tuple of the objects that all parts of a producer share."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, NamedTuple

from aioproducer.concurrency.wakeup import WakeUp
from aioproducer.config import ProducerConfig
from aioproducer.metrics import Metrics
from aioproducer.observe.hooks import NO_HOOKS, Hooks

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop


class Core(NamedTuple):
    """The settings of a started producer, and the objects that all its parts share."""

    config: ProducerConfig
    loop: AbstractEventLoop
    wake: WakeUp
    """The event that the sender waits for."""
    metrics: Metrics
    random: Random
    hooks: Hooks = NO_HOOKS
