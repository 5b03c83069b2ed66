"""Brokers' answers about a group's offsets in transactions: AddOffsetsToTxn, TxnOffsetCommit, OffsetFetch."""

from __future__ import annotations

from aioproducer.protocol.error_codes import ErrorCode
from tests.support.raw_transactions import GroupOffset, Offset, settled
from tests.support.transaction_stage import ABORTABLE, INVALID_STATE, OK, Case, Stage, collector

UNSTABLE = GroupOffset(ErrorCode.UNSTABLE_OFFSET_COMMIT)
NOTHING = GroupOffset(OK)

CELLS: list[Case] = []
cell = collector(CELLS)


@cell()
async def the_groups_partition_must_be_added_before_version_5_which_adds_it(on: Stage) -> None:
    me = await on.init()
    assert [await on.commit_offset(me, 1, version=version) for version in range(4)] == [INVALID_STATE] * 4
    assert await on.commit_offset(me, 1, version=4) == ABORTABLE
    assert await on.commit_offset(me, 1, version=5) == OK
    await on.commit(me)
    assert await on.offset() == GroupOffset(OK, 1)


@cell()
async def with_the_partition_added_every_version_commits(on: Stage) -> None:
    for version in range(6):
        me = await on.init()
        assert await settled(lambda me=me: on.add_offsets(me)) == OK
        assert await on.commit_offset(me, version, version=version) == OK
        await on.commit(me)
        assert await on.offset() == GroupOffset(OK, version)


@cell()
async def every_version_of_add_offsets_to_txn_adds(on: Stage) -> None:
    for version in range(5):
        me = await on.init()
        assert await settled(lambda me=me, version=version: on.add_offsets(me, version=version)) == OK
        assert await on.commit_offset(me, version, version=3) == OK
        await on.abort(me)
    assert await on.offset() == NOTHING


@cell()
async def without_a_generation_any_member_may_commit(on: Stage) -> None:
    me = await on.init()
    where = {(on.topic, 0): Offset(1)}
    assert await on.commit_offset(me, 1, version=5) == OK
    for member in ("", "x"):
        assert await on.commit_offsets(me, where, version=5, member=member) == [OK]
    for generation, member in ((0, ""), (5, "x")):
        codes = await on.commit_offsets(me, where, version=5, generation=generation, member=member)
        assert codes == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert await on.commit_offsets(me, where, version=5, member="x", instance="i") == [OK]


@cell()
async def an_unknown_group_has_no_generation(on: Stage) -> None:
    me = await on.init()
    where = {(on.topic, 0): Offset(1)}
    for generation, member in ((0, ""), (5, "x")):

        async def ask(generation: int = generation, member: str = member) -> int:
            (code,) = await on.commit_offsets(me, where, version=5, generation=generation, member=member)
            return code

        assert await settled(ask) == ErrorCode.ILLEGAL_GENERATION


@cell()
async def the_limit_of_metadata_counts_characters(on: Stage) -> None:
    me = await on.init()
    assert await on.commit_offset(me, 1, version=5) == OK
    too_large = ErrorCode.OFFSET_METADATA_TOO_LARGE
    where = {(on.topic, 0): Offset(5, "€" * 4096), (on.topic, 1): Offset(6, "x" * 4097)}
    assert await on.commit_offsets(me, where, version=5) == [OK, too_large]
    where = {(on.topic, 1): Offset(7, "😀" * 2048), (on.topic, 2): Offset(8, "😀" * 2048 + "x")}
    assert await on.commit_offsets(me, where, version=5) == [OK, too_large]
    await on.commit(me)
    assert await on.offset() == GroupOffset(OK, 5, "€" * 4096)
    found = await on.fetch_offsets((1, 2))
    assert found == {1: GroupOffset(OK, 7, "😀" * 2048), 2: NOTHING}


@cell()
async def missing_metadata_are_read_back_as_an_empty_string(on: Stage) -> None:
    me = await on.init()
    assert await on.commit_offset(me, 1, version=5) == OK
    assert await on.commit_offsets(me, {(on.topic, 0): Offset(2, None)}, version=5) == [OK]
    await on.commit(me)
    assert await on.offset() == GroupOffset(OK, 2, "")


@cell()
async def a_missing_topic_is_an_error_and_the_transaction_commits_without_it(on: Stage) -> None:
    me = await on.init()
    assert await settled(lambda: on.add_offsets(me)) == OK
    missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    where = {(f"{on.topic}-missing", 0): Offset(1), (on.topic, 99): Offset(1)}
    assert await on.commit_offsets(me, where, version=on.commit_version) == [missing] * 2
    await on.commit(me)
    assert await on.fetch_offsets((0, 99)) == {0: NOTHING, 99: NOTHING}


@cell()
async def the_last_offset_of_a_transaction_wins_whatever_it_is(on: Stage) -> None:
    for offset in (-1, -2, 2**62, 3):
        me = await on.init()
        assert await on.commit_offset(me, 77, version=5) == OK
        assert await on.commit_offset(me, offset, version=5) == OK
        await on.commit(me)
        assert await on.offset() == GroupOffset(OK, offset)


@cell()
async def offsets_of_an_internal_topic_can_be_committed(on: Stage) -> None:
    me = await on.init()
    where = {("__consumer_offsets", 0): Offset(5)}
    assert await on.commit_offset(me, 1, version=5) == OK
    assert await on.commit_offsets(me, where, version=5) == [OK]
    await on.commit(me)


@cell()
async def an_open_transaction_makes_the_offset_unstable(on: Stage) -> None:
    me = await on.init()
    assert await on.commit_offset(me, 1, version=5) == OK
    for version in (7, 8):
        assert await on.fetch_offsets((0, 1), version=version) == {0: UNSTABLE, 1: NOTHING}
        # A request for all partitions does not show that the first offset of a group is pending.
        assert await on.fetch_offsets(None, version=version) == {}
        assert await on.fetch_offsets((0,), version=version, stable=False) == {0: NOTHING}
    for version in range(1, 7):
        assert await on.fetch_offsets((0,), version=version) == {0: NOTHING}
    me = await on.commit(me)
    assert await on.offset() == GroupOffset(OK, 1)

    assert await on.commit_offset(me, 2, version=5) == OK
    for version in (7, 8):
        assert await on.fetch_offsets((0,), version=version) == {0: UNSTABLE}
        assert await on.fetch_offsets(None, version=version) == {0: UNSTABLE}
        assert await on.fetch_offsets((0,), version=version, stable=False) == {0: GroupOffset(OK, 1)}
    for version in range(2, 7):
        assert await on.fetch_offsets(None, version=version) == {0: GroupOffset(OK, 1)}
    await on.abort(me)
    assert await on.offset() == GroupOffset(OK, 1)


@cell()
async def after_a_take_over_the_old_offset_is_stable(on: Stage) -> None:
    me = await on.init()
    assert await on.commit_offset(me, 1, version=5) == OK
    await on.init()
    assert await on.fetch_offsets() == {0: NOTHING}


@cell()
async def a_group_that_was_never_seen_has_no_offsets(on: Stage) -> None:
    assert await settled(lambda: on.offset()) == NOTHING
    assert await on.fetch_offsets(None) == {}


@cell()
async def a_group_without_a_name_is_invalid(on: Stage) -> None:
    me = await on.init()
    on.group = ""
    assert await on.commit_offset(me, 1, version=5) == ErrorCode.INVALID_GROUP_ID
