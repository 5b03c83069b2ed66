"""The changes that a broken or hostile peer makes to a frame.

All choices come from the Random in the arguments, so a frame can be reproduced from its seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

EXTREMES = tuple(
    bytes.fromhex(text)
    for text in (
        # Lengths and counts of one to eight bytes: least, greatest, and their neighbours.
        "00 01 7f 80 ff 0000 0001 7fff 8000 ffff fffe 00000000 00000001 7fffffff 80000000 ffffffff fffffffe "
        "0fffffff 01000000 00010000 7fffffffffffffff 8000000000000000 ffffffffffffffff "
        # Varints: 254, 255, 128, 2^14, 2^31, 2^32 - 1, one bit longer, one byte longer, unterminated, 2^31 - 1,
        # 2^63, 2^64 - 1.
        "fe01 ff01 8001 808001 8080808008 ffffffff0f ffffffff1f 808080808001 ffffffffffffffffff ffffffff07 "
        "80808080808080808001 ffffffffffffffffff01"
    ).split()
)
LONGEST_RANDOM = 96
"""The maximum size in bytes of an entirely random frame."""

Mutation = Callable[[Random, bytearray, Sequence[bytes]], None]


def flip_bits(random: Random, frame: bytearray, others: Sequence[bytes]) -> None:
    for _ in range(1 + int(random.random() * 4)):
        if frame:
            frame[int(random.random() * len(frame))] ^= 1 << int(random.random() * 8)


def cut_off(random: Random, frame: bytearray, others: Sequence[bytes]) -> None:
    del frame[int(random.random() * (len(frame) + 1)) :]


def overwrite_with_an_extreme(random: Random, frame: bytearray, others: Sequence[bytes]) -> None:
    extreme = EXTREMES[int(random.random() * len(EXTREMES))]
    at = int(random.random() * (len(frame) + 1))
    frame[at : at + len(extreme)] = extreme


def put_in_an_extreme(random: Random, frame: bytearray, others: Sequence[bytes]) -> None:
    at = int(random.random() * (len(frame) + 1))
    frame[at:at] = EXTREMES[int(random.random() * len(EXTREMES))]


def state_what_is_left(random: Random, frame: bytearray, others: Sequence[bytes]) -> None:
    """Write the length of the rest, in one or four bytes, either correct or slightly wrong."""
    size = 4 if random.random() < 0.5 else 1
    at = int(random.random() * (len(frame) + 1))
    left = max(0, len(frame) - at - size + int(random.random() * 5) - 2)
    frame[at : at + size] = left.to_bytes(4, "big")[4 - size :]


def splice(random: Random, frame: bytearray, others: Sequence[bytes]) -> None:
    """Join the beginning of this frame and the end of another."""
    other = others[int(random.random() * len(others))]
    frame[int(random.random() * (len(frame) + 1)) :] = other[int(random.random() * (len(other) + 1)) :]


def repeat_a_part(random: Random, frame: bytearray, others: Sequence[bytes]) -> None:
    start = int(random.random() * (len(frame) + 1))
    part = frame[start : start + 1 + int(random.random() * 40)]
    frame[start:start] = part * (1 + int(random.random() * 4))


def leave_out_a_part(random: Random, frame: bytearray, others: Sequence[bytes]) -> None:
    start = int(random.random() * (len(frame) + 1))
    del frame[start : start + 1 + int(random.random() * 16)]


def put_in_random_bytes(random: Random, frame: bytearray, others: Sequence[bytes]) -> None:
    at = int(random.random() * (len(frame) + 1))
    frame[at:at] = random.randbytes(1 + int(random.random() * 8))


def replace_all(random: Random, frame: bytearray, others: Sequence[bytes]) -> None:
    frame[:] = random.randbytes(int(random.random() * LONGEST_RANDOM))


MUTATIONS: tuple[Mutation, ...] = (
    flip_bits,
    cut_off,
    overwrite_with_an_extreme,
    overwrite_with_an_extreme,
    put_in_an_extreme,
    state_what_is_left,
    splice,
    repeat_a_part,
    leave_out_a_part,
    put_in_random_bytes,
    replace_all,
)


def mutated(random: Random, frame: bytes, others: Sequence[bytes], kept: int = 0) -> bytes:
    """Return `frame` after up to three mutations, which in most cases leave its first `kept` bytes unchanged. `others`
    are used for splices."""
    whole = random.random() < 0.06
    changed = bytearray(frame if whole else frame[kept:])
    for _ in range(
        int(random.random() * 3.5)
    ):  # sometimes none: then another version decodes the unchanged frame
        MUTATIONS[int(random.random() * len(MUTATIONS))](random, changed, others)
    return bytes(changed) if whole else frame[:kept] + changed
