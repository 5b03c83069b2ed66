"""Public names of the hooks: the events, and the registry for instrumentation libraries."""

from aioproducer.observe.hooks import *  # noqa: F403
from aioproducer.observe.hooks import __all__ as __all__
