"""Tests of the queue between the threads and the loop: order, rejected records, and deliveries as futures."""

from __future__ import annotations

import pytest

from aioproducer import Producer as AsyncProducer
from aioproducer import ProducerClosed
from aioproducer.blocking import Producer
from aioproducer.blocking.send_queue import Delivery, SendQueue
from tests.support.docs_runner import Docs

LONG = 10.0


@pytest.fixture(scope="module")
def docs():
    with Docs() as running:
        running.topic("lane", 1)
        yield running


def test_a_new_queue_is_empty():
    queue = SendQueue(AsyncProducer("a:9092"))

    assert len(queue) == 0
    assert queue.refused == 0
    assert queue.lanes == {}


def test_records_of_one_thread_keep_their_order(docs):
    with Producer(docs.cluster.bootstrap_servers) as producer:
        deliveries = [producer.send("lane", b"%d" % number) for number in range(200)]
        producer.flush(LONG)

        assert all(isinstance(delivery, Delivery) for delivery in deliveries)
        assert [delivery.result(LONG).offset for delivery in deliveries] == list(range(200))
    assert docs.values("lane") == [b"%d" % number for number in range(200)]


def test_a_callback_receives_the_completed_delivery(docs):
    seen = []
    with Producer(docs.cluster.bootstrap_servers) as producer:
        delivery = producer.send("lane", b"called")
        delivery.result(LONG)
        delivery.add_done_callback(seen.append)

        assert delivery.done()
        assert delivery.exception(LONG) is None
    assert seen == [delivery]


def test_a_record_after_close_is_rejected(docs):
    producer = Producer(docs.cluster.bootstrap_servers)
    producer.start()
    producer.close(LONG)

    with pytest.raises(ProducerClosed):
        producer.send("lane", b"late")
