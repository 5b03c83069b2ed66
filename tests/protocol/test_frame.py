import time

import pytest

from aioproducer.errors import ProtocolError
from aioproducer.protocol.frame import (
    MAX_FRAME,
    MAX_FRAME_BEFORE_AUTHENTICATION,
    Frames,
    decode_size,
)


def encode_prefix(size: int) -> bytes:
    """Return the prefix of a frame of `size` bytes."""
    return size.to_bytes(4, "big", signed=True)


@pytest.mark.parametrize("size", [0, 1, 127, 65536, MAX_FRAME_BEFORE_AUTHENTICATION, MAX_FRAME])
def test_prefix_round_trips(size):
    assert decode_size(encode_prefix(size), MAX_FRAME) == size


@pytest.mark.promise("Protocol", "frame sizes are capped before and after authentication")
def test_frame_at_the_limit_passes_and_one_byte_more_is_refused():
    assert decode_size(encode_prefix(1000), 1000) == 1000
    with pytest.raises(ProtocolError, match="1001 bytes; the limit is 1000"):
        decode_size(encode_prefix(1001), 1000)


@pytest.mark.parametrize("size", [-1, -(2**31)])
def test_negative_size_is_refused(size):
    with pytest.raises(ProtocolError, match=f"frame of {size} bytes"):
        decode_size(encode_prefix(size), MAX_FRAME)


def test_web_server_is_named():
    with pytest.raises(ProtocolError, match="HTTP"):
        decode_size(b"HTTP/1.1 400 Bad Request"[:4], 2**31 - 1)


@pytest.mark.parametrize(
    ("first_bytes", "what"),
    [
        (b"\x15\x03\x01\x00", "TLS alert"),
        (b"\x15\x03\x03\x00", "TLS alert"),
        (b"\x16\x03\x03\x00", "TLS handshake"),
    ],
)
def test_tls_listener_is_named_with_the_setting_to_change(first_bytes, what):
    with pytest.raises(ProtocolError, match=f"{what}.*security_protocol"):
        decode_size(first_bytes, 2**31 - 1)


@pytest.mark.parametrize("prefix", [b"", b"\0\0\0", b"\0\0\0\0\0"])
def test_prefix_of_another_length_is_refused(prefix):
    with pytest.raises(ProtocolError, match="4 bytes"):
        decode_size(prefix, MAX_FRAME)


# Cutting a stream


@pytest.mark.parametrize("step", [1, 2, 3, 4, 5, 7, 64, 10_000])
def test_a_stream_is_cut_into_its_frames_whatever_the_size_of_the_pieces(step):
    sent = [b"", b"a", b"bc" * 100, b"", b"d" * 5000]
    stream = b"".join(encode_prefix(len(frame)) + frame for frame in sent)
    frames = Frames()

    got = [
        frame
        for start in range(0, len(stream), step)
        for frame in frames.feed(stream[start : start + step], MAX_FRAME)
    ]

    assert got == sent
    assert not frames.is_cut_off


def test_frames_before_a_malformed_one_are_yielded():
    frames = Frames()
    fed = frames.feed(encode_prefix(1) + b"a" + encode_prefix(101), 100)

    assert next(fed) == b"a"
    with pytest.raises(ProtocolError, match="a frame of 101 bytes; the limit is 100 bytes"):
        next(fed)


def test_a_stream_that_ends_within_a_frame_is_cut_off():
    frames = Frames()

    assert list(frames.feed(encode_prefix(2) + b"a", 100)) == []

    assert frames.is_cut_off


def test_a_large_frame_in_small_pieces_is_joined_once():
    frames = Frames()
    body = bytes(8_000_000)
    stream = encode_prefix(len(body)) + body
    began = time.process_time()

    got = [
        frame
        for start in range(0, len(stream), 1000)
        for frame in frames.feed(stream[start : start + 1000], MAX_FRAME)
    ]

    assert got == [body]
    # Joining it again with each piece would copy 32 GB.
    assert time.process_time() - began < 2
