"""A million mutated frames, and checks that the fuzzer finds decoders that break their promises."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tracemalloc
from collections import Counter
from itertools import chain
from pathlib import Path

import pytest

from aioproducer.protocol.api import decode_response, encode_response
from aioproducer.protocol.messages import SaslAuthenticateResponse
from aioproducer.protocol.primitives import MAX_STRING
from aioproducer.protocol.schema import Message
from tests.campaigns.fuzz.corpus import CORRELATION_ID, RESPONSES, responses
from tests.campaigns.fuzz.fuzzer import Fuzzer, drawn
from tests.campaigns.fuzz.heaviest import ALWAYS, TIMES_THE_FRAME, bushy, heaviest
from tests.campaigns.fuzz.planted import BUGS
from tests.campaigns.fuzz.targets import TARGETS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent
FRAMES = 1_000_000
SEED = 1
PARTS = 4
"""The number of tests that share the frames, so that none comes near a test's time limit."""


@pytest.mark.promise(
    "Simulation and fuzzing",
    "a million mutated frames raise only ProtocolError, never hang, and never allocate memory for a claimed "
    "length",
)
@pytest.mark.parametrize("part", range(PARTS))
def test_each_of_a_million_mutated_frames_is_decoded_or_raises_protocol_error(part):
    share = FRAMES // PARTS

    tally = Fuzzer(SEED).feed(part * share, share)

    assert not tally.findings, "\n".join(finding.text(SEED) for finding in tally.findings)
    assert tally.frames == share
    assert tally.sampled >= share // 64
    for target in TARGETS:
        # Some frames are valid, and many are not.
        assert tally.taken[target.name] > share * target.share / 100 * 0.05, target.name
        assert tally.refused[target.name] > share * target.share / 100 * 0.3, target.name


@pytest.mark.promise(
    "Simulation and fuzzing",
    "a million mutated frames raise only ProtocolError, never hang, and never allocate memory for a claimed "
    "length",
)
def test_each_response_is_fed_in_each_of_its_versions():
    fed = Counter()
    for block in range(20):
        about = drawn(SEED, block * 1000 + 999)
        assert about == drawn(SEED, block * 1000 + 999), "a frame is reproducible from its number"
    fuzzed = {(valid.message, valid.version) for valid in responses()}
    assert fuzzed == set(RESPONSES)
    source = random.Random(SEED)
    for _ in range(20_000):
        (message, version), _frame = TARGETS[0].draw(source)
        fed[message, version] += 1
    assert set(fed) == set(RESPONSES)
    assert min(fed.values()) > 20


@pytest.mark.promise(
    "Simulation and fuzzing", "the fuzzer finds a planted bug, and one command feeds a frame again"
)
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_the_fuzzer_finds_a_planted_bug(bug):
    finding = bug.convicted_by(SEED)

    assert finding is not None, f"not within {bug.frames} frames"
    assert finding.what.startswith(bug.what)
    assert finding.number < bug.frames


@pytest.mark.promise(
    "Simulation and fuzzing",
    "decoding a response takes at most 4 times its frame and 8 KiB (for a text of at most 32 KiB, briefly "
    "three times more): a long array is validated at once and its elements are decoded on access",
)
def test_an_answer_takes_at_most_four_times_its_frame():
    """The limit also allows 8 KiB for short arrays at the start of the frame and for the message itself."""
    for message, version, what, frame in chain(heaviest(100), heaviest(8 * 1024), bushy()):
        peak, _ = taken(message, version, frame)

        assert peak < ALWAYS + TIMES_THE_FRAME * len(frame), f"{message.__name__} {version}, {what}: {peak}"


@pytest.mark.promise(
    "Simulation and fuzzing",
    "decoding a response takes at most 4 times its frame and 8 KiB (for a text of at most 32 KiB, briefly "
    "three times more): a long array is validated at once and its elements are decoded on access",
)
@pytest.mark.parametrize(
    "text",
    [
        "a" * 32767,
        "é" * 16000,
        "a" * 32000 + "\N{GRINNING FACE}",
        "a" * 32000 + "\N{CJK RADICAL REPEAT}\N{GRINNING FACE}",
    ],
    ids=["narrow", "two bytes", "wide at its end", "wider and wider"],
)
def test_a_text_takes_four_times_its_bytes_and_three_times_more_while_it_is_decoded(text):
    """Python stores all characters at the width of the widest one. When it meets a wider one, it briefly keeps both the
    old and the new text. The longest text has 32,767 bytes, so the extra memory is bounded by a constant."""
    answer = SaslAuthenticateResponse(error_message=text)
    frame = b"".join(encode_response(answer, 2, CORRELATION_ID))[4:]

    peak, kept = taken(SaslAuthenticateResponse, 2, frame)

    assert kept < ALWAYS + TIMES_THE_FRAME * len(frame)
    assert peak < ALWAYS + TIMES_THE_FRAME * len(frame) + 3 * MAX_STRING


def taken(message: type[Message], version: int, frame: bytes) -> tuple[int, int]:
    """Return the peak of allocated bytes while the frame is decoded, and the bytes that remain allocated."""
    decode_response(message, version, frame, CORRELATION_ID)  # warm up: one-time allocations are not measured
    tracemalloc.start()
    try:
        answer = decode_response(message, version, frame, CORRELATION_ID)
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(answer, message)
    return peak, kept


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.campaigns.fuzz", *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_command_counts_what_it_fed():
    ran = run("--frames", "3000", "--seed", "5", "--processes", "2")

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("3000 frames of seed 5 in ")
    assert "findings: 0" in ran.stdout
    expected = Fuzzer(5).feed(0, 3000)
    counted = [line.split() for line in ran.stdout.splitlines() if " rejected " in line]
    assert [(int(line[-4]), int(line[-2])) for line in counted] == [
        (expected.refused[target.name], expected.taken[target.name]) for target in TARGETS
    ]


@pytest.mark.promise(
    "Simulation and fuzzing", "the fuzzer finds a planted bug, and one command feeds a frame again"
)
def test_the_printed_command_feeds_the_frame_again():
    bug = next(bug for bug in BUGS if "UTF-8" in bug.name)
    finding = bug.convicted_by(SEED)

    command = finding.text(SEED).splitlines()[-1].split("python -m tests.campaigns.fuzz ")[1]
    ran = run(*command.split())

    assert ran.returncode == 0, ran.stderr
    assert finding.frame.hex() in ran.stdout
    assert "is not UTF-8" in ran.stdout
