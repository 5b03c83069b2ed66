"""Answers of brokers to transactional producers: InitProducerId, AddPartitionsToTxn, Produce and EndTxn."""

from __future__ import annotations

from aioproducer.protocol.error_codes import ErrorCode
from tests.support.raw_transactions import Identity, Transactions, refused, settled, txn_batch
from tests.support.transaction_stage import (
    ABORTABLE,
    BUSY,
    FENCED,
    INVALID_STATE,
    OK,
    OLD_EPOCH,
    OTHER_PRODUCER,
    OUT_OF_ORDER,
    Case,
    Stage,
    collector,
)

CELLS: list[Case] = []
cell = collector(CELLS)


# Several tasks under one producer id and epoch


@cell()
async def a_batch_with_the_sequences_of_another_one_counts_as_its_duplicate_and_is_lost(on: Stage) -> None:
    me = await on.begin()
    version = on.produce_version
    one = await on.produce_once(me, 1, b"one", version=version)
    other = await on.produce_once(me, 1, b"other", version=version)
    assert (one.error_code, other.error_code) == (OK, OK)
    assert one.base_offset == other.base_offset == 1
    await on.commit(me)
    assert await on.visible() == [b"first", b"one"]


@cell()
async def other_boundaries_and_gaps_are_out_of_order_but_an_exact_continuation_is_not(on: Stage) -> None:
    me = await on.begin()
    assert await on.write(me, 1, b"a", b"b", b"c") == OK
    for sequence, values in ((1, (b"a",) * 5), (1, (b"a",) * 2), (2, (b"b",) * 2), (6, (b"gap",))):
        assert await on.write(me, sequence, *values) == OUT_OF_ORDER
    assert await on.write(me, 4, b"d") == OK
    await on.commit(me)
    assert await on.visible() == [b"first", b"a", b"b", b"c", b"d"]


@cell(2)
async def with_v2_the_first_sequence_of_a_partition_is_0(on: Stage) -> None:
    me = await on.init()
    assert await on.write(me, 7) == OUT_OF_ORDER
    assert await on.write(me, 0) == OK


@cell(1)
async def with_v1_any_first_sequence_is_accepted(on: Stage) -> None:
    me = await on.init()
    await on.added(me, 0)
    assert await on.write(me, 7) == OK
    assert await on.write(me, 0) == OUT_OF_ORDER


@cell()
async def five_batches_are_remembered(on: Stage) -> None:
    me = await on.begin()
    for sequence in range(1, 8):
        assert await on.write(me, sequence) == OK
    assert [await on.write(me, sequence) for sequence in range(8)] == [OUT_OF_ORDER] * 3 + [OK] * 5


@cell()
async def an_epoch_that_was_never_assigned_is_rejected(on: Stage) -> None:
    me = await on.begin(0)
    ahead = me._replace(epoch=me.epoch + 1)
    for partition in (0, 1):
        for version in (10, 11, 12):
            assert await on.produce(ahead, 0, version=version, partition=partition) == OLD_EPOCH


@cell()
async def init_producer_id_aborts_the_open_transaction(on: Stage) -> None:
    me = await on.begin(0, 1)
    successor = await on.init()
    assert successor == (me.producer_id, me.epoch + 2, OK)
    for partition in (0, 1, 2):
        assert await on.write(me, 1, b"zombie", partition=partition) == OLD_EPOCH
    await on.write_first(successor, 0)
    await on.commit(successor)
    assert await on.visible() == [b"first"]
    assert await on.visible(1) == []
    assert (await on.fetch(1)).markers == [(False, me.producer_id, me.epoch + 1)]


@cell(1)
async def with_v1_a_zombie_writes_into_the_transaction_that_follows_a_bare_abort(on: Stage) -> None:
    me = await on.begin()
    assert await on.abort(me) == me
    assert await on.write(me, 1, b"zombie") == ABORTABLE
    await on.added(me, 0)
    assert await on.write(me, 1, b"zombie") == OK
    again = await on.produce_once(me, 0, b"first", version=11)
    assert (again.error_code, again.base_offset) == (OK, 0)
    await on.commit(me)
    assert await on.visible() == [b"zombie"]


@cell(2)
async def with_v2_an_abort_fences_producers_with_the_previous_epoch(on: Stage) -> None:
    me = await on.begin()
    after = await on.abort(me)
    assert after == (me.producer_id, me.epoch + 1, OK)
    assert await on.write(me, 1, b"zombie") == OLD_EPOCH
    assert await on.write(after, 0, b"again") == OK
    await on.commit(after)
    assert await on.visible() == [b"again"]


@cell(1)
async def with_v1_the_next_transaction_continues_the_sequences(on: Stage) -> None:
    me = await on.begin()
    await on.commit(me)
    await on.added(me, 0)
    assert await on.write(me, 1, b"second") == OK
    await on.commit(me)
    assert await on.visible() == [b"first", b"second"]


@cell(1)
async def with_v1_a_batch_with_a_sequence_of_the_last_transaction_counts_as_a_duplicate_and_is_lost(
    on: Stage,
) -> None:
    me = await on.begin()
    await on.commit(me)
    await on.added(me, 0)
    lost = await on.produce_once(me, 0, b"lost", version=11)
    assert (lost.error_code, lost.base_offset) == (OK, 0)
    # The leader has verified the transaction for sequence 0, but the batch with this sequence never begins it.
    assert await on.write(me, 1, b"second") == OUT_OF_ORDER


@cell(1)
async def a_batch_after_a_rejected_first_one_is_out_of_order(on: Stage) -> None:
    me = await on.init()
    assert await on.write(me, 0, b"a") == ABORTABLE
    await on.added(me, 0)
    assert await on.write(me, 1, b"b") == OUT_OF_ORDER
    assert await on.write(me, 0, b"a") == OK
    assert await on.write(me, 1, b"b") == OK


@cell()
async def the_transactional_bit_without_a_producer_id_is_outside_of_every_transaction(on: Stage) -> None:
    me = await on.begin()
    nobody = Identity(-1, -1)
    assert await on.write(nobody, -1, b"outside") == OK
    await on.abort(me)
    assert await on.visible() == [b"outside"]


@cell()
async def a_producer_id_without_the_transactional_bit_is_outside_of_its_transaction(on: Stage) -> None:
    me = await on.begin(0)
    plain = txn_batch(me, 0, b"outside", transactional=False)
    (answer,) = await on.produce_all({(on.topic, 1): plain}, version=on.produce_version)
    assert answer.error_code == OK
    if on.tv == 1:
        await on.added(me, 1)
    duplicate = await on.produce_once(me, 0, b"lost", version=on.produce_version, partition=1)
    assert (duplicate.error_code, duplicate.base_offset) == (OK, 0)
    await on.abort(me)
    assert await on.visible(1) == [b"outside"]


@cell()
async def a_batch_without_the_transactional_bit_in_an_open_transaction_is_rejected(on: Stage) -> None:
    me = await on.begin()
    plain = txn_batch(me, 1, b"x", transactional=False)
    (answer,) = await on.produce_all({(on.topic, 0): plain}, version=on.produce_version)
    assert answer.error_code == INVALID_STATE


# The epoch of the last transaction


@cell(2)
async def an_old_epoch_is_rejected_with_the_error_code_of_the_request_version(on: Stage) -> None:
    before = await on.begin(0)
    await on.commit(before)
    for version in (10, 11, 12):
        for partition in (0, 1):
            assert await on.produce(before, 1, version=version, partition=partition) == OLD_EPOCH
    assert [await on.add(before, 0, version=version) for version in range(4)] == [
        [OLD_EPOCH],
        [OLD_EPOCH],
        [FENCED],
        [FENCED],
    ]
    assert [await on.add_offsets(before, version=version) for version in range(5)] == [
        *(OLD_EPOCH, OLD_EPOCH, FENCED, FENCED, FENCED)
    ]
    ends = [(await on.end(before, commit=True, version=version)).error for version in range(1, 5)]
    assert ends == [OLD_EPOCH, FENCED, FENCED, FENCED]
    assert [await on.commit_offset(before, 1, version=version) for version in (3, 4, 5)] == [OLD_EPOCH] * 3


@cell(2)
async def end_txn_with_the_previous_epoch_is_a_retry_until_another_producer_takes_over(on: Stage) -> None:
    before = await on.begin()
    after = await on.commit(before)
    assert await on.end(before, commit=True, version=5) == after
    assert await on.end(before, commit=False, version=5) == refused(INVALID_STATE)
    await on.init()
    for commit in (True, False):
        assert await on.end(before, commit=commit, version=5) == refused(FENCED)


@cell()
async def a_future_epoch_and_an_unknown_producer_id_are_rejected(on: Stage) -> None:
    me = await on.init()
    ahead, stranger = me._replace(epoch=me.epoch + 1), me._replace(producer_id=me.producer_id + 999)
    for other, on_produce, elsewhere in (
        (ahead, OLD_EPOCH, FENCED),
        (stranger, OTHER_PRODUCER, OTHER_PRODUCER),
    ):
        assert await on.produce(other, 0, version=12) == on_produce
        assert (await on.end(other, commit=True, version=on.end_version)).error == elsewhere
        assert await on.add(other, 0) == [elsewhere]
        assert await on.add_offsets(other) == elsewhere


@cell(1)
async def with_v1_the_epoch_stays_and_produce_12_opens_a_transaction_by_itself(on: Stage) -> None:
    me = await on.begin()
    await on.commit(me)
    for version in range(4):
        assert await on.add(me, 0, version=version) == [OK]
    assert await on.produce(me, 1, version=10) == OK
    assert await on.produce(me, 2, version=11) == OK
    await on.commit(me)
    assert await on.produce(me, 3, version=12) == OK
    await on.commit(me)


# EndTxn, repeated


@cell()
async def end_txn_may_be_repeated_but_not_reversed(on: Stage) -> None:
    for commit in (True, False):
        me = await on.begin()
        after = await (on.commit if commit else on.abort)(me)
        expected = after if on.tv == 2 else None
        for _ in range(2):
            again = await on.end(me, commit=commit, version=on.end_version)
            assert again.error == OK
            assert expected in (None, again)
        reverse = await on.end(me, commit=not commit, version=on.end_version)
        assert reverse == refused(INVALID_STATE)


@cell()
async def a_late_copy_of_end_txn_ends_the_next_transaction_with_v1_only(on: Stage) -> None:
    me = await on.begin()
    after = await on.commit(me)
    if on.tv == 1:
        await on.added(me, 0)
        assert await on.write(me, 1, b"unfinished") == OK
        assert (await on.end(me, commit=True, version=4)).error == OK
        assert (await on.end(me, commit=False, version=4)).error == INVALID_STATE
        assert await on.visible() == [b"first", b"unfinished"]
    else:
        assert await on.write(after, 0, b"unfinished") == OK
        assert await on.end(me, commit=True, version=5) == refused(FENCED)
        await on.abort(after)
        assert await on.visible() == [b"first"]


@cell()
async def end_txn_after_a_take_over_is_fenced(on: Stage) -> None:
    me = await on.begin()
    await on.init()
    for commit in (True, False):
        for version in (2, 3, 4, 5):
            assert await on.end(me, commit=commit, version=version) == refused(FENCED)


@cell()
async def an_empty_transaction_can_only_be_aborted_and_only_by_end_txn_version_5(on: Stage) -> None:
    me = await on.init()
    for commit in (True, False):
        assert (await on.end(me, commit=commit, version=4)).error == INVALID_STATE
    assert await on.end(me, commit=True, version=5) == refused(INVALID_STATE)
    after = await on.end(me, commit=False, version=5)
    assert after == (me.producer_id, me.epoch + 1, OK)
    # Again, with the transaction complete.
    assert await on.end(after, commit=False, version=5) == (me.producer_id, me.epoch + 2, OK)


@cell()
async def the_version_of_end_txn_and_not_the_feature_decides_whether_the_epoch_rises(on: Stage) -> None:
    me = await on.begin()
    assert (await on.end(me, commit=True, version=4)).error == OK
    assert (await on.end(me, commit=True, version=4)).error == OK
    assert await on.produce(me, 1, version=12) == OK
    after = await on.end(me, commit=True, version=5)
    assert after == (me.producer_id, me.epoch + 1, OK)
    assert await on.visible() == [b"first", b"x"]


# InitProducerId


@cell()
async def a_take_over_must_wait_for_the_abort_of_the_open_transaction(on: Stage) -> None:
    me = await on.begin()
    assert await on.init_once() == refused(BUSY)
    assert await on.init() == (me.producer_id, me.epoch + 2, OK)
    assert (await on.fetch()).markers == [(False, me.producer_id, me.epoch + 1)]
    assert await on.visible() == []


@cell()
async def init_producer_id_without_an_open_transaction_returns_the_next_epoch(on: Stage) -> None:
    first = await on.init()
    assert (first.epoch, first.error) == (0, OK)
    assert await on.init() == (first.producer_id, 1, OK)
    for version in range(5):
        assert (await on.init(version=version)).epoch == 2 + version


@cell()
async def the_old_driver_learns_that_it_is_fenced(on: Stage) -> None:
    old = await on.begin()
    await on.init()
    assert await on.end(old, commit=True, version=on.end_version) == refused(FENCED)
    assert await on.commit_offset(old, 1, version=on.commit_version) == OLD_EPOCH
    assert (await on.init(old, version=3)).error == OLD_EPOCH
    assert (await on.init(old, version=4)).error == FENCED
    assert (await on.init(old, version=5)).error == FENCED


@cell()
async def a_zombie_that_asks_for_an_epoch_aborts_its_successors_transaction(on: Stage) -> None:
    old = await on.init()
    new = await on.init()
    await on.write_first(new, 0)
    assert await on.init_once(old) == refused(BUSY)
    assert await on.init(old) == refused(FENCED)
    ended = await on.end(new, commit=True, version=on.end_version)
    assert ended == refused(INVALID_STATE if on.tv == 2 else FENCED)
    assert await on.visible() == []


@cell()
async def init_producer_id_with_the_expected_epoch_during_a_transaction(on: Stage) -> None:
    me = await on.begin()
    assert await on.init_once(me) == refused(BUSY)
    if on.tv == 1:
        assert await on.init(me) == refused(FENCED)
        bumped = me._replace(epoch=me.epoch + 1)
        assert await on.init(bumped) == (me.producer_id, me.epoch + 2, OK)
    else:
        # A repeated request with the same epoch gets the same answer and is not fenced.
        assert await on.init(me) == (me.producer_id, me.epoch + 1, OK)
        assert await on.init(me) == (me.producer_id, me.epoch + 1, OK)


@cell()
async def init_producer_id_with_the_expected_epoch_between_transactions(on: Stage) -> None:
    me = await on.init()
    bumped = await on.init(me)
    assert bumped == (me.producer_id, me.epoch + 1, OK)
    assert await on.init(me) == bumped  # a retry
    assert await on.init(me._replace(producer_id=me.producer_id + 999)) == refused(FENCED)
    assert await on.init() == (me.producer_id, me.epoch + 2, OK)
    assert await on.init(me) == refused(FENCED)
    assert await on.init(bumped) == refused(FENCED)


@cell(2)
async def with_v2_init_producer_id_with_the_epoch_before_end_txn_returns_the_current_one(on: Stage) -> None:
    me = await on.begin()
    after = await on.commit(me)
    for _ in range(2):
        assert await on.init(me) == after
    await on.init()
    assert await on.init(me) == refused(FENCED)


@cell()
async def a_producer_with_an_unknown_id_gets_a_new_identity(on: Stage) -> None:
    found = await on.init(Identity(123_456_789, 5))
    assert (found.epoch, found.error) == (0, OK)
    assert found.producer_id != 123_456_789


@cell()
async def init_producer_id_checks_its_fields(on: Stage) -> None:
    for timeout_ms in (0, -1, 900_001):
        found = await on.init(timeout_ms=timeout_ms)
        assert found == refused(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
    assert (await on.init(timeout_ms=900_000)).error == OK
    for half in (Identity(5, -1), Identity(-1, 5)):
        assert await on.init(half) == refused(ErrorCode.INVALID_REQUEST)
    on.name = ""
    assert await on.init() == refused(ErrorCode.INVALID_REQUEST)


# The leader asks the coordinator


@cell()
async def a_partition_that_was_not_added_is_rejected_before_version_12_which_adds_it(on: Stage) -> None:
    me = await on.init()
    for version in (3, 7, 9, 10):
        answer = await on.produce_once(me, 0, version=version)
        assert answer.error_code == INVALID_STATE
        if version >= 8:
            assert answer.error_message == "Partition was not added to the transaction"
    answer = await on.produce_once(me, 0, version=11)
    assert (answer.error_code, answer.error_message) == (ABORTABLE, None)
    assert await on.produce(me, 0, version=12) == OK


@cell()
async def the_leader_asks_about_each_partition(on: Stage) -> None:
    me = await on.init()
    await on.added(me, 0)
    assert await on.produce(me, 0, version=11) == OK
    assert await on.produce(me, 0, version=10, partition=1) == INVALID_STATE
    batches = {(on.topic, 0): txn_batch(me, 1, b"x"), (on.topic, 1): txn_batch(me, 0, b"x")}
    answers = await on.produce_all(batches, version=11)
    assert [answer.error_code for answer in answers] == [OK, ABORTABLE]


@cell()
async def after_a_transaction_the_partition_must_be_added_again(on: Stage) -> None:
    me = await on.begin()
    assert (await on.end(me, commit=True, version=4)).error == OK
    assert (await on.end(me, commit=True, version=4)).error == OK
    assert await on.produce(me, 1, version=10) == INVALID_STATE
    assert await on.produce(me, 1, version=11) == ABORTABLE
    assert await on.produce(me, 1, version=12) == OK


@cell()
async def the_transactional_id_of_a_produce_request_must_match(on: Stage) -> None:
    me = await on.begin()
    batch = {(on.topic, 1): txn_batch(me, 0, b"x")}
    for name, code in (
        (None, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        (f"{on.name}-other", OTHER_PRODUCER),
    ):
        (answer,) = await on.produce_all(batch, version=12, name=name)
        assert answer.error_code == code
    stage = Transactions(on.client, topic=on.topic, name="")
    (answer,) = await stage.produce_all(batch, version=12, name="")
    assert answer.error_code == ErrorCode.INVALID_REQUEST


@cell()
async def two_producer_ids_in_one_request_are_rejected_for_all_partitions(on: Stage) -> None:
    me = await on.begin(0)
    other = me._replace(producer_id=me.producer_id + 1)
    batches = {(on.topic, 0): txn_batch(me, 1, b"x"), (on.topic, 1): txn_batch(other, 0, b"x")}
    answers = await on.produce_all(batches, version=12)
    assert [answer.error_code for answer in answers] == [OTHER_PRODUCER] * 2


@cell()
async def acks_1_is_enough_for_a_transaction(on: Stage) -> None:
    me = await on.begin()
    batch = {(on.topic, 0): txn_batch(me, 1, b"x")}
    (answer,) = await on.produce_all(batch, version=on.produce_version, acks=1)
    assert answer.error_code == OK


@cell()
async def add_partitions_to_txn_adds_all_or_none(on: Stage) -> None:
    me = await on.init()
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    not_attempted = ErrorCode.OPERATION_NOT_ATTEMPTED
    assert await on.add(me, 0, 99, 1) == [not_attempted, unknown, not_attempted]
    assert await on.add(me, 0, topic=f"{on.topic}-missing") == [unknown]
    internal = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert await on.add(me, 0, topic="__transaction_state") == [internal]
    assert await on.produce(me, 0, version=11) == ABORTABLE
    assert await on.add(me, 0, 1, 2) == [OK] * 3
    assert await on.add(me, 1) == [OK]
    on.name = ""
    assert await on.add(me, 0) == [ErrorCode.INVALID_REQUEST]


# Time-outs


async def begun_and_timed_out(on: Stage) -> Identity:
    """Begin a transaction and wait until the coordinator aborts it after its time-out."""
    me = await on.init(timeout_ms=100)
    await on.write_first(me, 0)
    assert await on.commit_offset(me, 7, version=5) == OK

    async def is_aborted() -> bool:
        return bool((await on.fetch()).markers)

    await settled(is_aborted, False)
    assert (await on.fetch()).markers == [(False, me.producer_id, me.epoch + 1)]
    return me


@cell()
async def after_a_time_out_the_epoch_is_old(on: Stage) -> None:
    me = await begun_and_timed_out(on)
    for version in (11, 12):
        for partition in (0, 1, 2):
            assert await on.produce(me, 1, version=version, partition=partition) == OLD_EPOCH
    assert await settled(lambda: on.add_offsets(me)) == FENCED
    assert await on.add(me, 0) == [FENCED]
    assert await on.commit_offset(me, 8, version=on.commit_version) == OLD_EPOCH
    assert await on.visible() == []
    assert (await on.offset()).offset == -1


@cell()
async def only_v2_distinguishes_a_time_out_from_fencing(on: Stage) -> None:
    me = await begun_and_timed_out(on)
    commit = await on.end(me, commit=True, version=on.end_version)
    abort = await on.end(me, commit=False, version=on.end_version)
    again = await on.init(me)
    if on.tv == 1:
        assert (commit, abort, again) == (refused(FENCED),) * 3
    else:
        after = Identity(me.producer_id, me.epoch + 1)
        assert (commit, abort, again) == (refused(INVALID_STATE), after, after)
    assert await on.init() == (me.producer_id, me.epoch + 2, OK)


@cell()
async def writing_does_not_extend_the_time_out(on: Stage) -> None:
    me = await on.init(timeout_ms=100)
    await on.write_first(me, 0)
    for sequence in range(1, 10_000):
        if await on.write(me, sequence) != OK:
            break
    assert await on.write(me, sequence) == OLD_EPOCH
