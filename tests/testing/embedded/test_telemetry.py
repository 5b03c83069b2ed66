"""The cluster's subscription to clients' metrics, and the id of the subscription."""

from __future__ import annotations

from aioproducer.protocol.compression import Codec
from aioproducer.testing.embedded.telemetry import ACCEPTED, Telemetry


def test_at_first_there_is_no_subscription():
    telemetry = Telemetry()
    assert (telemetry.metrics, telemetry.accepted, telemetry.pushes) == ((), ACCEPTED, [])


def test_each_subscription_has_a_different_id():
    telemetry = Telemetry()
    ids = [telemetry.subscription_id]
    for metrics, options in (
        ([""], {}),
        (["a."], {}),
        (["a."], {"interval_ms": 1000}),
        (["a."], {"most_bytes": 10}),
        (["a."], {"is_delta": False}),
        (["a."], {"accepted": [Codec.GZIP]}),
    ):
        telemetry.subscribe(metrics, **options)
        ids.append(telemetry.subscription_id)
        assert 0 <= ids[-1] < 2**31
    assert len(set(ids)) == len(ids)
    again = telemetry.subscription_id
    telemetry.subscribe(["a."], accepted=[Codec.GZIP])
    assert telemetry.subscription_id == again
