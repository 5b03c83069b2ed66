"""The loop that feeds frames: what it watches, what it counts, and what it calls a finding.

Frames come in blocks, and a block's Random is made of the seed and the block's number alone: a frame is made
again without those of other blocks. Feeding decides nothing about what is drawn next."""

from __future__ import annotations

import contextlib
import signal
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from aioproducer.errors import ProtocolError
from aioproducer.protocol import codec
from aioproducer.protocol.api import decode_response, encode_response
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.messages import ApiVersionsResponse
from aioproducer.protocol.schema import REQUESTS
from tests.campaigns.fuzz.corpus import CORRELATION_ID
from tests.campaigns.fuzz.heaviest import ALWAYS, TIMES_THE_FRAME
from tests.campaigns.fuzz.targets import SHARES, Target
from tests.campaigns.fuzz.weight import weight

BLOCK = 1000
"""Frames."""
SAMPLED = 64
"""One frame in so many is looked at closely: the memory that it takes, and whether it says the same written again."""

TICK = 0.5
"""Seconds of processor time. A frame that is there at one tick and still at the next one hangs: it has had between
one tick and two, where the slowest takes some milliseconds."""

MOST_TIMES = 40
"""What the objects may weigh that are made of a frame, in its sizes, where nobody can weigh them because the frame was
refused in the end: those of a request, or of the view that is made of an answer."""


class FrameHangs(BaseException):
    """Not an Exception: no decoder may take it for an error of its own."""


@dataclass
class Finding:
    """A frame that broke a promise."""

    number: int
    target: str
    about: str
    frame: bytes
    what: str
    hangs: bool = False

    def text(self, seed: int) -> str:
        shown = (
            self.frame.hex()
            if len(self.frame) <= 200
            else f"{self.frame[:100].hex()}... {len(self.frame)} bytes"
        )
        return (
            f"frame {self.number}, {self.target} {self.about}: {self.what}\n    {shown}\n"
            f"    again: python -m tests.campaigns.fuzz --seed {seed} --replay {self.number}"
        )


@dataclass
class Tally:
    """What many frames have come to."""

    frames: int = 0
    taken: Counter[str] = field(default_factory=Counter)
    """Frames that were found valid, by target."""
    refused: Counter[str] = field(default_factory=Counter)
    sampled: int = 0
    findings: list[Finding] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Take in what others have counted."""
        self.frames += other.frames
        self.taken += other.taken
        self.refused += other.refused
        self.sampled += other.sampled
        self.findings += other.findings


def drawn(seed: int, number: int) -> tuple[Target, Any, bytes]:
    """The frame of this number alone, with its target and what it is taken for."""
    random = Random(seed << 40 | number // BLOCK)
    for _ in range(number % BLOCK):
        _draw(random)
    return _draw(random)


def _draw(random: Random) -> tuple[Target, Any, bytes]:
    target = SHARES[int(random.random() * len(SHARES))]
    about, frame = target.draw(random)
    return target, about, frame


class Fuzzer:
    """Feeds frames in the main thread of a process, whose timer of processor time it uses."""

    def __init__(self, seed: int, *, most_findings: int = 20) -> None:
        self.seed = seed
        self.tally = Tally()
        self._most = most_findings
        self._now = -1
        """The frame that is being fed."""
        self._at_last_tick = -1

    def feed(self, first: int, count: int) -> Tally:
        """Feed `count` frames from number `first` on, or less if there are enough findings."""
        _compile_all()
        with self._watched():
            for block in range(first // BLOCK, (first + count - 1) // BLOCK + 1):
                random = Random(self.seed << 40 | block)
                for number in range(block * BLOCK, min(block * BLOCK + BLOCK, first + count)):
                    target, about, frame = _draw(random)
                    if number < first:
                        continue
                    self._one(number, target, about, frame)
                    if len(self.tally.findings) >= self._most:
                        return self.tally
        return self.tally

    def _one(self, number: int, target: Target, about: Any, frame: bytes) -> None:
        tally = self.tally
        tally.frames += 1
        self._now = number
        try:
            if number % SAMPLED == 0:
                tally.sampled += 1
                _look_closely(target, about, frame)
            else:
                target.take(about, frame)
            tally.taken[target.name] += 1
        except ProtocolError:
            tally.refused[target.name] += 1
        except FrameHangs:
            what = f"no end after more than {TICK} s of processor time"
            self._found(number, target, about, frame, what, hangs=True)
        except Exception as error:
            self._found(number, target, about, frame, f"{type(error).__name__}: {error}")

    def _found(
        self, number: int, target: Target, about: Any, frame: bytes, what: str, hangs: bool = False
    ) -> None:
        self.tally.findings.append(Finding(number, target.name, _shown(about), frame, what, hangs))

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        before = signal.signal(signal.SIGVTALRM, self._tick)
        signal.setitimer(signal.ITIMER_VIRTUAL, TICK, TICK)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            signal.signal(signal.SIGVTALRM, before)

    def _tick(self, *_: object) -> None:
        if self._now == self._at_last_tick:
            raise FrameHangs
        self._at_last_tick = self._now


class TooMuchMemory(Exception):
    """More was allocated than the frame justifies."""


class SaysSomethingElse(Exception):
    """What was decoded is not what comes back after encoding it."""


def _look_closely(target: Target, about: Any, frame: bytes) -> None:
    """Feed the frame once more slowly; raises what it should not do."""
    answer, refusal, peak = _measured(target, about, frame)
    most = ALWAYS + TIMES_THE_FRAME * len(frame) + target.beyond
    if target.name != "response":
        most += weight(answer) if refusal is None else MOST_TIMES * len(frame)
    if peak > most:
        # Other threads of the process, such as pytest-xdist's, are measured as well: what is the frame's comes again.
        peak = min(peak, _measured(target, about, frame)[2])
    if peak > most:
        raise TooMuchMemory(f"{peak} bytes for a frame of {len(frame)}, where {most} are allowed")
    if refusal is not None:
        raise refusal
    if target.name == "response":
        _check_it_says_the_same(about, answer)


def _measured(target: Target, about: Any, frame: bytes) -> tuple[Any, ProtocolError | None, int]:
    """Return the answer or the refusal, and the most bytes that were allocated at a time."""
    answer, refusal = None, None
    tracemalloc.start()
    try:
        answer = target.take(about, frame)
    except ProtocolError as error:
        refusal = error
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return answer, refusal, peak


def _check_it_says_the_same(about: Any, answer: Any) -> None:
    message, version = about
    again = b"".join(encode_response(answer, _version_of(about, answer), CORRELATION_ID))[4:]
    if decode_response(message, version, again, CORRELATION_ID) != answer:
        raise SaysSomethingElse(repr(answer))


def _version_of(about: Any, answer: Any) -> int:
    """The version that an answer was decoded at: the refusal of an ApiVersionsRequest has the shape of version 0."""
    message, version = about
    is_refusal = message is ApiVersionsResponse and answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    return 0 if is_refusal else version


def _shown(about: Any) -> str:
    if isinstance(about, tuple):
        return f"{getattr(about[0], '__name__', about[0])} version {about[1]}"
    return "" if about is None else str(about)


def _compile_all() -> None:
    """The first use of a version compiles its codec: that is neither slow nor large on account of a frame."""
    for request in REQUESTS.values():
        for message in (request, request.Response):
            for version in range(message.versions.min, message.versions.max + 1):
                codec._codec(message, version)
