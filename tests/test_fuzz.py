"""A million mutated frames, and the proof that the fuzzer would find a decoder that breaks its promise."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tracemalloc
from collections import Counter
from pathlib import Path

import pytest

from aioproducer.protocol.api import decode_response
from tests.fuzz.corpus import CORRELATION_ID, RESPONSES, responses
from tests.fuzz.fuzzer import Fuzzer, drawn
from tests.fuzz.heaviest import HEAVIER, TIMES_THE_FRAME, heaviest, times
from tests.fuzz.planted import BUGS
from tests.fuzz.targets import TARGETS
from tests.fuzz.weight import weight

ROOT = Path(__file__).parent.parent
FRAMES = 1_000_000
SEED = 1
PARTS = 4
"""Tests that share the frames: none of them comes near the time limit of a test."""


@pytest.mark.parametrize("part", range(PARTS))
def test_of_a_million_mutated_frames_each_is_taken_or_refused_as_a_protocol_error(part):
    share = FRAMES // PARTS

    tally = Fuzzer(SEED).feed(part * share, share)

    assert not tally.findings, "\n".join(finding.text(SEED) for finding in tally.findings)
    assert tally.frames == share
    assert tally.sampled >= share // 64
    for target in TARGETS:
        # Neither are all frames so broken that nothing is looked at, nor are they valid.
        assert tally.taken[target.name] > share * target.share / 100 * 0.05, target.name
        assert tally.refused[target.name] > share * target.share / 100 * 0.3, target.name


def test_each_response_is_fed_in_each_of_its_versions():
    fed = Counter()
    for block in range(20):
        about = drawn(SEED, block * 1000 + 999)
        assert about == drawn(SEED, block * 1000 + 999), "a frame is made again from its number"
    fuzzed = {(valid.message, valid.version) for valid in responses()}
    assert fuzzed == set(RESPONSES)
    source = random.Random(SEED)
    for _ in range(20_000):
        (message, version), _frame = TARGETS[0].draw(source)
        fed[message, version] += 1
    assert set(fed) == set(RESPONSES)
    assert min(fed.values()) > 20


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_the_fuzzer_finds_a_planted_bug(bug):
    finding = bug.convicted_by(SEED)

    assert finding is not None, f"not within {bug.frames} frames"
    assert finding.what.startswith(bug.what)
    assert finding.number < bug.frames


def test_an_answer_takes_four_times_its_frame_beside_its_own_objects_and_a_bounded_number_of_times_with_them():
    size = 8 * 1024
    beside = 0.0
    whole = dict.fromkeys((message for message, _ in RESPONSES), 0.0)
    for message, version, _, frame in heaviest(size):
        decode_response(
            message, version, frame, CORRELATION_ID
        )  # what is allocated once is not to be measured
        tracemalloc.start()
        try:
            answer = decode_response(message, version, frame, CORRELATION_ID)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        beside = max(beside, (peak - weight(answer)) / len(frame))
        whole[message] = max(whole[message], peak / len(frame))

    assert beside < TIMES_THE_FRAME
    for message, measured in whole.items():
        assert measured < times(message), message.__name__
        assert message not in HEAVIER or measured > times(message) - 3, (
            f"{message.__name__} has become lighter"
        )
    assert len(HEAVIER) == sum(measured > TIMES_THE_FRAME for measured in whole.values())


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.fuzz", *arguments],
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
    counted = [line.split() for line in ran.stdout.splitlines() if " refused " in line]
    assert [(int(line[-4]), int(line[-2])) for line in counted] == [
        (expected.refused[target.name], expected.taken[target.name]) for target in TARGETS
    ]


def test_the_command_that_is_printed_feeds_the_frame_again():
    bug = next(bug for bug in BUGS if "UTF-8" in bug.name)
    finding = bug.convicted_by(SEED)

    command = finding.text(SEED).splitlines()[-1].split("python -m tests.fuzz ")[1]
    ran = run(*command.split())

    assert ran.returncode == 0, ran.stderr
    assert finding.frame.hex() in ran.stdout
    assert "is not UTF-8" in ran.stdout
