"""The metrics of the exporters: values of several producers, merged by their labels."""

from __future__ import annotations

from aioproducer.observe.families import FAMILIES, Family
from aioproducer.observe.snapshots import PAST, Distribution, MetricsSnapshot, TopicSnapshot

BY_NAME = {family.name: family for family in FAMILIES}


def topic(name: str, acked: int) -> TopicSnapshot:
    return TopicSnapshot(name=name, records_acked=acked)


ONE = MetricsSnapshot(
    client_id="a",
    oldest_unacked_seconds=3.0,
    buffer_available=5,
    topics=(topic("x", 1), topic("y", 2)),
    time_to_ack=Distribution(2, 3.0, 2.0, ((1.0, 1), (2.0, 1))),
)
OTHER = MetricsSnapshot(
    client_id="a",
    oldest_unacked_seconds=1.0,
    buffer_available=4,
    topics=(topic("x", 10),),
    time_to_ack=Distribution(1, 4.0, 4.0, ((4.0, 1),)),
)
THIRD = MetricsSnapshot(client_id="b", topics=(topic("x", 100),))


def values(name: str, **options: bool) -> dict[tuple[str, ...], object]:
    return BY_NAME[name].values([ONE, OTHER, THIRD], **options)


def test_counters_of_one_client_id_are_added_up():
    assert values("records_acked") == {("a", "x"): 11, ("a", "y"): 2, ("b", "x"): 100}
    assert values("records_acked", topics=False) == {("a", ""): 13, ("b", ""): 100}


def test_gauges_show_the_worst_value_where_a_sum_is_meaningless():
    assert values("oldest_unacked_seconds") == {("a",): 3.0, ("b",): 0.0}


def test_the_buffer_is_that_of_the_fullest_producer():
    def buffer(available: int, total: int, state: str = "running") -> MetricsSnapshot:
        return MetricsSnapshot(client_id="a", state=state, buffer_available=available, buffer_total=total)

    idle = [buffer(64, 64)] * 11
    for snapshots, shown in (
        (idle, (64, 64)),
        ([*idle, buffer(6, 64), buffer(7, 64)], (6, 64)),
        ([buffer(4, 4), buffer(6, 64), buffer(4, 4)], (6, 64)),
        ([buffer(6, 64), buffer(0, 64, PAST)], (6, 64)),
        ([buffer(0, 0)], (0, 0)),
    ):
        found = [BY_NAME[name].values(snapshots)["a",] for name in ("buffer_available_bytes", "buffer_bytes")]
        assert tuple(found) == shown


def test_distributions_are_merged_bucket_by_bucket():
    assert values("time_to_ack_seconds")["a",] == Distribution(3, 7.0, 4.0, ((1.0, 1), (2.0, 1), (4.0, 1)))


def test_a_value_that_is_not_known_yet_is_left_out():
    assert values("metadata_age_seconds") == {}


def test_each_family_has_its_own_name_and_reads_an_empty_snapshot():
    assert len(BY_NAME) == len(FAMILIES)
    for family in FAMILIES:
        assert isinstance(family, Family)
        assert family.labels[0] == "client_id"
        found = family.values([MetricsSnapshot(client_id="a")])
        assert all(len(labels) == len(family.labels) for labels in found)
