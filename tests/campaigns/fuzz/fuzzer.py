"""Feeds frames to the targets, and checks and counts the results.

Frames come in blocks. A block's Random depends only on the seed and the block's number, so a frame can be reproduced
without the frames of other blocks. Feeding a frame does not influence the next draw."""

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
"""The number of frames in a block."""
SAMPLED = 64
"""One frame in this many is checked closely: its memory, and whether encoding the decoded value gives the same
message."""

TICK = 0.5
"""Seconds of processor time. A frame that is being fed at two successive ticks counts as hanging: it has taken between
one tick and two, while the slowest frame takes a few milliseconds."""

MOST_TIMES = 40
"""The limit for the memory of decoded objects, in multiples of the frame's size, if they can't be weighed because the
frame was rejected: objects of a request, or of the view that is built from an answer."""


class FrameHangs(BaseException):
    """Raised if a frame hangs. It is a BaseException, so that no decoder handles it as a decoding error."""


@dataclass
class Finding:
    """A frame with which a promise was broken."""

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
    """The results of many frames."""

    frames: int = 0
    taken: Counter[str] = field(default_factory=Counter)
    """The number of frames that were found valid, by target."""
    refused: Counter[str] = field(default_factory=Counter)
    sampled: int = 0
    findings: list[Finding] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Add the results of another tally."""
        self.frames += other.frames
        self.taken += other.taken
        self.refused += other.refused
        self.sampled += other.sampled
        self.findings += other.findings


def drawn(seed: int, number: int) -> tuple[Target, Any, bytes]:
    """Return the target of the frame with this number, the type that it is decoded as, and the frame."""
    random = Random(seed << 40 | number // BLOCK)
    for _ in range(number % BLOCK):
        _draw(random)
    return _draw(random)


def _draw(random: Random) -> tuple[Target, Any, bytes]:
    target = SHARES[int(random.random() * len(SHARES))]
    about, frame = target.draw(random)
    return target, about, frame


class Fuzzer:
    """Feeds frames in the main thread of a process, whose processor-time timer it uses."""

    def __init__(self, seed: int, *, most_findings: int = 20) -> None:
        self.seed = seed
        self.tally = Tally()
        self._most = most_findings
        self._now = -1
        """The number of the frame that is being fed."""
        self._at_last_tick = -1

    def feed(self, first: int, count: int) -> Tally:
        """Feed `count` frames from number `first`, or fewer if there are enough findings."""
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
    """More memory was allocated than the frame justifies."""


class SaysSomethingElse(Exception):
    """The decoded value is not the same after being encoded and decoded again."""


def _look_closely(target: Target, about: Any, frame: bytes) -> None:
    """Feed a frame and measure its memory, which is slow. Raise an exception if a promise is broken."""
    answer, refusal, peak = _measured(target, about, frame)
    most = ALWAYS + TIMES_THE_FRAME * len(frame) + target.beyond
    if target.name != "response":
        most += weight(answer) if refusal is None else MOST_TIMES * len(frame)
    if peak > most:
        # The figure includes memory of other threads, such as pytest-xdist's. Measure again: only the memory for the
        # frame itself is certain to be allocated a second time.
        peak = min(peak, _measured(target, about, frame)[2])
    if peak > most:
        raise TooMuchMemory(f"{peak} bytes for a frame of {len(frame)} bytes; the limit is {most}")
    if refusal is not None:
        raise refusal
    if target.name == "response":
        _check_it_says_the_same(about, answer)


def _measured(target: Target, about: Any, frame: bytes) -> tuple[Any, ProtocolError | None, int]:
    """Return the answer or the rejection, and the peak of allocated bytes."""
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
    """Return the version that an answer was decoded at: the rejection of an ApiVersionsRequest has the form of
    version 0."""
    message, version = about
    is_refusal = message is ApiVersionsResponse and answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    return 0 if is_refusal else version


def _shown(about: Any) -> str:
    if isinstance(about, tuple):
        return f"{getattr(about[0], '__name__', about[0])} version {about[1]}"
    return "" if about is None else str(about)


def _compile_all() -> None:
    """Compile all codecs in advance, so that the first use of a version is neither slow nor large."""
    for request in REQUESTS.values():
        for message in (request, request.Response):
            for version in range(message.versions.min, message.versions.max + 1):
                codec._codec(message, version)
