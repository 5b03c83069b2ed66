from __future__ import annotations

import random
from collections import Counter

import pytest
from aiokafka.partitioner import DefaultPartitioner as AiokafkaPartitioner
from aiokafka.partitioner import murmur2 as aiokafka_murmur2

from aioproducer.errors import ConfigError
from aioproducer.partitioner import (
    ConsistentRandom,
    Hashed,
    NodeAvailability,
    Partitioning,
    RandomPartitioner,
    RoundRobin,
    UniformSticky,
    crc32_partition,
    fnv1a,
    fnv1a_partition,
    make_partitioner,
    murmur2,
    murmur2_partition,
)


class Sequential(random.Random):
    """A counter in place of random numbers, so that every number in a range occurs equally often."""

    def __init__(self) -> None:
        super().__init__(0)
        self.number = -1

    def getrandbits(self, _bits):
        self.number += 1
        return self.number

    def choice(self, choices):
        return choices[self.getrandbits(32) % len(choices)]


# org.apache.kafka.common.utils.UtilsTest.testMurmur2
@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_javas(key, hashed):
    assert murmur2(key) == hashed


def test_murmur2_agrees_with_aiokafka_on_keys_of_every_length():
    noise = random.Random(5)
    for length in range(70):
        key = noise.randbytes(length)
        assert murmur2(key) & 0xFFFFFFFF == aiokafka_murmur2(key) & 0xFFFFFFFF


def test_partition_of_a_key_is_aiokafkas_and_javas():
    theirs = AiokafkaPartitioner()
    partitions = list(range(12))

    for number in range(200):
        key = f"key-{number}".encode()
        assert murmur2_partition(key, 12) == theirs(key, partitions, partitions)


def test_sign_bit_is_dropped_not_negated():
    # -973932308 & 0x7fffffff = 1173551340
    assert murmur2_partition(b"21", 1000) == 340


# librdkafka's tests/0048-partitioner.c
LIBRDKAFKA_KEYS = [b"", b"23456", b"this is another string with more length to it perhaps", b"hejsan"]


@pytest.mark.promise("Records", "librdkafka's `consistent_random` puts keys where librdkafka does")
@pytest.mark.parametrize(
    ("key", "hashed"), list(zip(LIBRDKAFKA_KEYS, [0, 0xB1B451D7, 0xB0150DF7, 0xD077037E], strict=True))
)
def test_crc32_partition_is_librdkafkas(key, hashed):
    assert crc32_partition(key, 17) == hashed % 17


@pytest.mark.parametrize(
    ("key", "hashed"),
    list(zip(LIBRDKAFKA_KEYS, [0x106E08D9, 0x058D780F, 0x4F7703DA, 0x5EC19395], strict=True)),
)
def test_murmur2_partition_is_librdkafkas(key, hashed):
    assert murmur2_partition(key, 17) == hashed % 17


def test_consistent_random_hashes_keys_and_is_random_for_none_and_empty():
    choose = ConsistentRandom(random.Random(2))
    every, available = list(range(17)), [1, 3]

    assert choose(b"hejsan", every, available) == 0xD077037E % 17
    assert {choose(None, every, available) for _ in range(50)} == {1, 3}
    assert {choose(b"", every, available) for _ in range(50)} == {1, 3}
    assert {choose(None, [0, 1], []) for _ in range(50)} == {0, 1}


# librdkafka's src/rdfnv1a.c and src/rdmurmur2.c
UNALIGNED = b"PreAmbleWillBeRemoved,ThePrePartThatIs"
LIBRDKAFKA_HASHES = {
    b"kafka": (0xD067CF64, 0x0D33C4E1),
    b"giberish123456789": (0x8F552B0C, 0x77A58295),
    b"1234": (0x9FC97B14, 0x023BDD03),
    b"234": (0xE7C009CA, 0x2DEA3CD2),
    b"34": (0x873930DA, 0x740FA83E),
    b"4": (0x5A4B5CA1, 0x310CA263),
    UNALIGNED: (0x78424F1C, 0x65CBD69C),
    UNALIGNED[1:]: (0x4A62B377, 0x6E49C79A),
    UNALIGNED[2:]: (0xE0E4E09E, 0x69EED356),
    UNALIGNED[3:]: (0x62B8B43F, 0x6ABCC023),
    b"": (0x106E08D9, 0x7EE3623B),
}


@pytest.mark.parametrize("key", LIBRDKAFKA_HASHES)
def test_murmur2_and_fnv1a_are_librdkafkas(key):
    expected_murmur2, expected_fnv1a = LIBRDKAFKA_HASHES[key]

    assert murmur2(key) & 0xFFFFFFFF == expected_murmur2
    assert fnv1a(key) == expected_fnv1a


@pytest.mark.parametrize(
    ("key", "hashed"),
    list(zip(LIBRDKAFKA_KEYS, [0x7EE3623B, 0x27E6F469, 0x155E3E5F, 0x17B1E27A], strict=True)),
)
def test_fnv1a_partition_is_librdkafkas(key, hashed):
    assert fnv1a_partition(key, 17) == hashed % 17


def test_a_hash_uses_all_partitions_and_treats_a_record_without_key_as_one_with_an_empty_key():
    choose = Hashed(crc32_partition)
    every = list(range(17))

    assert choose(b"hejsan", every, [1]) == 0xD077037E % 17
    assert choose(None, every, [1]) == choose(b"", every, [1]) == 0
    assert Hashed(murmur2_partition)(None, every, [1]) == 0x106E08D9 % 17


def test_a_hash_with_randomness_hashes_an_empty_key_and_is_random_for_none():
    choose = Hashed(fnv1a_partition, random.Random(2))
    every, available = list(range(17)), [1, 3]

    assert choose(b"", every, available) == 0x7EE3623B % 17
    assert {choose(None, every, available) for _ in range(50)} == {1, 3}
    assert {choose(None, [0, 1], []) for _ in range(50)} == {0, 1}


def test_crc32_has_the_published_check_value():
    assert crc32_partition(b"123456789", 2**32) == 0xCBF43926


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("murmur2", "murmur2"),
        ("murmur2_random", "murmur2"),
        ("default", "murmur2"),
        ("consistent_random", "crc32"),
        ("round_robin", "round_robin"),
    ],
)
def test_partitioner_is_found_by_name(name, kind):
    assert make_partitioner(name) == Partitioning(kind, None)


def test_random_is_a_callable():
    partitioning = make_partitioner("random", random.Random(1))

    assert partitioning.kind == "callable"
    assert isinstance(partitioning.function, RandomPartitioner)


@pytest.mark.parametrize(
    ("name", "keyed", "keyless"),
    [
        ("consistent", 0xD077037E % 17, {0}),
        ("fnv1a", 0x17B1E27A % 17, {0x7EE3623B % 17}),
        ("fnv1a_random", 0x17B1E27A % 17, {1, 3}),
    ],
)
def test_librdkafkas_other_partitioners_are_callables(name, keyed, keyless):
    kind, choose = make_partitioner(name, random.Random(1))
    every, available = list(range(17)), [1, 3]

    assert kind == "callable"
    assert choose(b"hejsan", every, available) == keyed
    assert {choose(None, every, available) for _ in range(50)} == keyless


def test_a_callable_is_used_unchanged():
    def last(key, all_partitions, available):
        return all_partitions[-1]

    assert make_partitioner(last) == Partitioning("callable", last)


@pytest.mark.parametrize(
    ("setting", "hint"),
    [
        ("murmur", "'murmur2'"),
        ("roundrobin", "'round_robin'"),
        ("Random", "'random'"),
        ("fnv1", "'fnv1a'"),
        ("xyz", None),
        (7, None),
    ],
)
def test_unknown_partitioner_is_refused_with_the_nearest_name(setting, hint):
    with pytest.raises(ConfigError, match="partitioner=") as caught:
        make_partitioner(setting)

    assert caught.value.setting == "partitioner"
    assert (f"did you mean {hint}?" in str(caught.value)) is (hint is not None)


def test_round_robin_takes_available_partitions_in_turn_whatever_the_key():
    turn = RoundRobin()

    assert [turn(b"same", [0, 1, 2, 3], [0, 2, 3]) for _ in range(7)] == [0, 2, 3, 0, 2, 3, 0]


def test_round_robin_takes_any_partition_if_none_is_available():
    turn = RoundRobin()

    assert [turn(None, [0, 1], []) for _ in range(3)] == [0, 1, 0]


def test_random_partitioner_takes_available_partitions():
    choose = RandomPartitioner(random.Random(2))

    assert {choose(b"same", [0, 1, 2, 3], [1, 3]) for _ in range(50)} == {1, 3}
    assert {choose(None, [0, 1], []) for _ in range(50)} == {0, 1}


def test_sticky_with_one_partition_always_chooses_it():
    sticky = UniformSticky(random.Random(1))

    for _ in range(10):
        assert sticky.current([0]) == 0
        assert sticky.choose([0]) == 0


@pytest.mark.promise(
    "KIPs", "KIP-794: uniform and adaptive sticky partitions, avoiding brokers that accept nothing"
)
def test_sticky_is_uniform_over_available_partitions():
    sticky = UniformSticky(Sequential())
    available = [0, 2, 5]
    chosen = Counter()

    for _ in range(300):
        chosen[sticky.current(available)] += 1
        sticky.choose(available)

    assert chosen == {0: 100, 2: 100, 5: 100}


@pytest.mark.promise(
    "KIPs", "KIP-794: uniform and adaptive sticky partitions, avoiding brokers that accept nothing"
)
def test_sticky_chooses_each_partition_once_before_it_repeats_one():
    sticky = UniformSticky(random.Random(3))
    available = list(range(12))

    rounds = []
    for _ in range(20):
        rounds.append([])
        for _ in available:
            rounds[-1].append(sticky.current(available))
            sticky.choose(available)

    assert all(sorted(one) == available for one in rounds)
    assert len({tuple(one) for one in rounds}) == 20, "the order is random"


def test_sticky_begins_a_new_round_when_the_partitions_change():
    sticky = UniformSticky(random.Random(3))
    choices(sticky, list(range(12)), 5)

    assert choices(sticky, [1, 2, 30], 3) == {1: 1, 2: 1, 30: 1}


def test_sticky_leaves_a_partition_that_is_no_longer_available():
    sticky = UniformSticky(random.Random(4))
    before = sticky.current([0, 1, 2])
    left = [partition for partition in range(3) if partition != before]

    assert sticky.current(left) in left


def test_sticky_stays_when_other_partitions_come_and_go():
    sticky = UniformSticky(random.Random(4))
    before = sticky.current([0, 1, 2])

    assert sticky.current([0, 1, 2, 3, 4]) == before
    assert sticky.current([before]) == before


def choices(sticky, available, times):
    """Return how often each partition is chosen in the next `times` choices."""
    chosen = Counter()
    for _ in range(times):
        chosen[sticky.choose(available)] += 1
    return chosen


# BuiltInPartitionerTest.adaptivePartitionsTest
@pytest.mark.promise(
    "KIPs", "KIP-794: uniform and adaptive sticky partitions, avoiding brokers that accept nothing"
)
def test_adaptive_choice_is_inverse_to_the_queue_sizes():
    sticky = UniformSticky(Sequential())
    available = [0, 1, 2, 3, 4]

    sticky.update_load([5, 0, 3, 0, 1], available)

    weights = [6 - size for size in (5, 0, 3, 0, 1)]
    chosen = choices(sticky, available, 2 * sum(weights))
    assert [chosen[partition] for partition in available] == [2 * weight for weight in weights]


def test_adaptive_choice_maps_numbers_to_partitions_as_kafka_does():
    # The queue sizes are 0, 3, 1: numbers 0-3 select the first partition, 4 the second, 5-7 the third.
    sticky = UniformSticky(Sequential())
    sticky.update_load([0, 3, 1], [7, 8, 9])

    found = []
    for _ in range(8):
        found.append(sticky.choose([7, 8, 9]))

    assert found == [7, 7, 7, 7, 8, 9, 9, 9]


def test_load_does_not_change_the_current_partition():
    sticky = UniformSticky(random.Random(6))
    available = [0, 1]
    before = sticky.current(available)

    sticky.update_load([0, 50] if before else [50, 0], available)

    assert sticky.current(available) == before


def test_equal_queues_are_uniform():
    sticky = UniformSticky(Sequential())
    sticky.update_load([9, 0, 0], [0, 1, 2])

    sticky.update_load([4, 4, 4], [0, 1, 2])

    assert choices(sticky, [0, 1, 2], 300) == {0: 100, 1: 100, 2: 100}


def test_omitted_partitions_are_not_chosen():
    sticky = UniformSticky(Sequential())

    sticky.update_load([2, 2], [0, 2], total=3)

    assert choices(sticky, [0, 1, 2], 100) == {0: 50, 2: 50}


def test_if_all_partitions_but_one_are_omitted_it_gets_everything():
    sticky = UniformSticky(Sequential())

    sticky.update_load([5], [1], total=3)

    assert choices(sticky, [0, 1, 2], 50) == {1: 50}


def test_if_all_partitions_are_omitted_the_choice_is_uniform():
    sticky = UniformSticky(Sequential())
    sticky.update_load([1], [1], total=3)

    sticky.update_load([], [], total=3)

    assert choices(sticky, [0, 1, 2], 30) == {0: 10, 1: 10, 2: 10}


def test_load_is_ignored_if_not_adaptive():
    sticky = UniformSticky(Sequential(), adaptive=False)

    sticky.update_load([9, 0, 0], [0, 1, 2])

    assert choices(sticky, [0, 1, 2], 300) == {0: 100, 1: 100, 2: 100}


def test_load_of_a_partition_that_is_gone_does_not_bring_it_back():
    sticky = UniformSticky(random.Random(8))
    sticky.update_load([9, 0, 9], [0, 1, 2])

    assert set(choices(sticky, [0, 2], 200)) == {0, 2}


def test_a_weighted_choice_does_not_search_all_partitions():
    """Searching 10,000 partitions would take as long as appending many records."""

    class Unsearchable(list):
        def __contains__(self, partition):
            raise AssertionError("searched")

    sticky = UniformSticky(Sequential())
    sticky.update_load([0, 3, 1], [0, 1, 2])

    assert choices(sticky, Unsearchable([0, 1, 2]), 8) == {0: 4, 1: 1, 2: 3}


def test_load_is_copied():
    sticky = UniformSticky(Sequential())
    sizes, ids = [0, 3], [0, 1]
    sticky.update_load(sizes, ids)

    sizes[:], ids[:] = [3, 0], [5, 6]

    assert choices(sticky, [0, 1], 10) == {0: 8, 1: 2}


def test_the_same_seed_makes_the_same_choices():
    first, second = (UniformSticky(random.Random(9)) for _ in range(2))

    assert choices(first, list(range(10)), 100) == choices(second, list(range(10)), 100)


def test_node_is_unavailable_once_its_data_waited_longer_than_the_timeout():
    nodes = NodeAvailability(timeout=2.0)
    assert nodes.is_available(1)

    nodes.update(1, 10.0, can_drain=False)
    nodes.update(1, 12.0, can_drain=False)
    assert nodes.is_available(1)
    nodes.update(1, 12.1, can_drain=False)
    assert not nodes.is_available(1)
    assert nodes.is_available(2)

    nodes.update(1, 13.0, can_drain=True)
    assert nodes.is_available(1)


def test_node_is_available_again_when_no_data_waits_for_it():
    nodes = NodeAvailability(timeout=2.0)
    for node in (1, 2):
        nodes.update(node, 10.0, can_drain=False)
        nodes.update(node, 20.0, can_drain=False)

    nodes.only_for([2, 3])

    assert [nodes.is_available(node) for node in (1, 2, 3)] == [True, False, True]
    nodes.update(1, 30.0, can_drain=False)
    nodes.update(1, 31.0, can_drain=False)
    assert nodes.is_available(1), "the time without data does not count"
    nodes.update(1, 32.1, can_drain=False)
    assert not nodes.is_available(1)


def test_time_before_there_was_data_does_not_count_against_a_node():
    nodes = NodeAvailability(timeout=2.0)
    nodes.update(1, 10.0, can_drain=True)

    nodes.update(1, 100.0, can_drain=False)

    assert nodes.is_available(1)


def test_node_without_data_stays_available():
    nodes = NodeAvailability(timeout=2.0)
    nodes.update(1, 10.0, can_drain=True)

    assert nodes.is_available(1)
    nodes.update(1, 100.0, can_drain=True)
    assert nodes.is_available(1)


def test_with_a_timeout_of_zero_every_node_is_available():
    nodes = NodeAvailability(timeout=0)

    nodes.update(1, 0.0, can_drain=False)
    nodes.update(1, 1000.0, can_drain=False)

    assert nodes.is_available(1)
