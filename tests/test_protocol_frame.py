import pytest

from aioproducer.errors import ProtocolError
from aioproducer.protocol.frame import (
    MAX_FRAME,
    MAX_FRAME_BEFORE_AUTHENTICATION,
    decode_size,
    encode_prefix,
)


@pytest.mark.parametrize("size", [0, 1, 127, 65536, MAX_FRAME_BEFORE_AUTHENTICATION, MAX_FRAME])
def test_prefix_round_trips(size):
    assert decode_size(encode_prefix(size), MAX_FRAME) == size


def test_frame_at_the_limit_passes_and_one_byte_more_is_refused():
    assert decode_size(encode_prefix(1000), 1000) == 1000
    with pytest.raises(ProtocolError, match="1001 bytes is announced, the limit is 1000"):
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
