"""A producer without `await`: the same settings, calls and errors for scripts, notebooks and threads."""

from aioproducer.blocking.loop_thread import set_loop_factory
from aioproducer.blocking.producer import Producer, TransactionScope
from aioproducer.blocking.receipt import Receipt
from aioproducer.blocking.send_queue import Delivery
from aioproducer.blocking.shared import close_shared_producers, shared_producer

__all__ = [
    "Delivery",
    "Producer",
    "Receipt",
    "TransactionScope",
    "close_shared_producers",
    "set_loop_factory",
    "shared_producer",
]
