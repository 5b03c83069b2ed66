"""The SASL machines: the RFCs' test vectors, forged messages from brokers, and texts that must never be shown."""

from __future__ import annotations

import json
import traceback
from base64 import b64decode, b64encode, urlsafe_b64encode
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioproducer.errors import AuthenticationError
from aioproducer.security import kerberos, sasl
from aioproducer.security.kerberos import Gssapi
from aioproducer.security.sasl import OAuthBearer, OAuthToken, Plain, Scram
from aioproducer.settings.table import MECHANISMS
from aioproducer.types import Secret

PENCIL = Secret("pencil")

SHA_256 = {
    "nonce": "rOprNGfwEbeRWgbNEkqO",
    "client_first": b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO",
    "server_first": b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
    "client_final": b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
    b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
    "server_final": b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
}
"""RFC 7677, 3."""

SHA_1 = {
    "nonce": "fyko+d2lbbFgONRv9qkxdawL",
    "client_first": b"n,,n=user,r=fyko+d2lbbFgONRv9qkxdawL",
    "server_first": b"r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096",
    "client_final": b"c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=",
    "server_final": b"v=rmF9pqV8S7suAoZWja4dJRkFsKQ=",
}
"""RFC 5802, 5. Kafka has no SCRAM-SHA-1; the steps are the same."""


def scram(**changed: object) -> Scram:
    return Scram(
        **{
            "mechanism": "SCRAM-SHA-256",
            "username": "user",
            "password": PENCIL,
            "nonce": SHA_256["nonce"],
            **changed,
        }
    )


def asked(machine: Scram) -> Scram:
    """Return a machine whose first message has been sent."""
    machine.step(None)
    return machine


def proved(machine: Scram) -> Scram:
    """Return a machine that has sent its proof."""
    asked(machine).step(SHA_256["server_first"])
    return machine


def server_first(**changed: object) -> bytes:
    fields = {"r": SHA_256["nonce"] + "server", "s": "W22ZaJ0SNY7soEsUEjb6gQ==", "i": 4096, **changed}
    return ",".join(f"{name}={value}" for name, value in fields.items()).encode()


# ------------------------------------------------------------------------------------------------------ PLAIN


def test_plain_is_one_message_with_an_empty_answer():
    machine = Plain("alice", Secret("p, ä=\u20ac"))

    assert machine.step(None) == "\0alice\0p, ä=\u20ac".encode()
    assert machine.step(b"") is None


def test_plain_refuses_a_challenge():
    machine = Plain("alice", Secret("secret"))
    machine.step(None)

    with pytest.raises(AuthenticationError, match="a challenge that the mechanism does not define"):
        machine.step(b"more")


@pytest.mark.parametrize(
    ("username", "password"),
    [("", "x"), ("x", ""), ("a\0b", "x"), ("a", "x\0y"), ("\ud800", "x"), ("a", "x\udfff")],
)
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_names_and_passwords_that_cannot_be_sent_are_refused_and_not_shown(mechanism, username, password):
    make = {"PLAIN": Plain, "SCRAM-SHA-256": lambda *both: scram(username=both[0], password=both[1])}
    with pytest.raises(AuthenticationError, match=mechanism) as caught:
        make[mechanism](username, Secret(password))

    told = "".join(traceback.TracebackException.from_exception(caught.value, capture_locals=False).format())
    assert "x\0y" not in told
    assert caught.value.__context__ is None


# ------------------------------------------------------------------------------------------------------ SCRAM


@pytest.mark.parametrize(("mechanism", "vector"), [("SCRAM-SHA-256", SHA_256), ("SCRAM-SHA-1", SHA_1)])
def test_scram_has_the_bytes_of_the_rfcs(monkeypatch, mechanism, vector):
    monkeypatch.setitem(sasl._HASHES, "SCRAM-SHA-1", "sha1")
    machine = scram(mechanism=mechanism, nonce=vector["nonce"])

    assert machine.step(None) == vector["client_first"]
    assert machine.step(vector["server_first"]) == vector["client_final"]
    assert machine.step(vector["server_final"]) is None


def test_scram_uses_a_thread_only_to_derive_the_key():
    machine = scram()

    assert not machine.is_slow
    machine.step(None)
    assert machine.is_slow
    machine.step(SHA_256["server_first"])
    assert not machine.is_slow


@pytest.mark.parametrize(
    ("name", "sent"), [("a=b", "a=3Db"), ("a,b", "a=2Cb"), ("=2C,", "=3D2C=2C"), ("ÄÖ", "ÄÖ")]
)
def test_commas_and_equal_signs_in_a_name_are_escaped(name, sent):
    assert scram(username=name).step(None) == f"n,,n={sent},r={SHA_256['nonce']}".encode()


def test_names_and_passwords_are_used_without_saslprep_as_in_kafka():
    # SASLprep would convert U+2168 to "IX"; Kafka's ScramFormatter uses the UTF-8 unchanged.
    assert scram(username="\u2168").step(None) == f"n,,n=\u2168,r={SHA_256['nonce']}".encode()
    raw, prepared = scram(password=Secret("\u2168")), scram(password=Secret("IX"))
    assert asked(raw).step(SHA_256["server_first"]) != asked(prepared).step(SHA_256["server_first"])


def test_a_delegation_token_says_that_it_is_one():
    assert scram(token_auth=True).step(None).endswith(b",tokenauth=true")


@pytest.mark.parametrize(
    "message",
    [
        server_first(r=SHA_256["nonce"]),
        server_first(r="other" + SHA_256["nonce"]),
        server_first(r=SHA_256["nonce"][:-1] + "XX"),
        server_first(r=""),
    ],
)
def test_a_nonce_that_does_not_extend_ours_is_refused(message):
    with pytest.raises(AuthenticationError, match=r"nonce is forged|is malformed"):
        asked(scram()).step(message)


@pytest.mark.parametrize("iterations", [1, 2, 4095, 1_000_001, 10**9, 10**15])
def test_iterations_out_of_range_are_refused_before_anything_is_computed(monkeypatch, iterations):
    monkeypatch.setattr(sasl.hashlib, "pbkdf2_hmac", None)

    with pytest.raises(AuthenticationError, match=f"asks for {iterations} iterations; 4096 to 1000000 are"):
        asked(scram()).step(server_first(i=iterations))


@pytest.mark.parametrize("iterations", [4096, 1_000_000])
def test_iterations_in_range_are_accepted(monkeypatch, iterations):
    asked_for = []
    monkeypatch.setattr(
        sasl.hashlib, "pbkdf2_hmac", lambda *arguments: asked_for.append(arguments[3]) or bytes(32)
    )
    asked(scram()).step(server_first(i=iterations))

    assert asked_for == [iterations]


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\xff\xfe",
        b"r=",
        server_first(i="0x1000"),
        server_first(i="04096"),
        server_first(i="-4096"),
        server_first(i=""),
        server_first(i="4" * 5000),
        server_first(s=""),
        server_first(s="===="),
        server_first(s="W22Z aJ0S"),
        b"i=4096," + server_first(),
        server_first() + b",no-attribute",
        server_first() + b"\n",
    ],
)
def test_an_invalid_first_message_is_rejected(message):
    with pytest.raises(AuthenticationError, match=r"SCRAM-SHA-256: the broker's (first )?message"):
        asked(scram()).step(message)


def test_an_extension_that_must_be_understood_is_refused():
    with pytest.raises(AuthenticationError, match="an extension that is not defined in any standard"):
        asked(scram()).step(b"m=new," + server_first())


def test_an_optional_extension_is_ignored():
    assert asked(scram()).step(server_first() + b",x=whatever").startswith(b"c=biws,r=")


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"v=",
        b"v=====",
        b"x=1",
        b"v=" + b64encode(bytes(32)),
        SHA_256["server_final"][:-2],
        SHA_256["server_final"].lower(),
        b"p=1," + SHA_256["server_final"],
    ],
)
def test_a_signature_that_is_not_the_servers_is_refused_and_not_shown(message):
    with pytest.raises(AuthenticationError, match="signature is wrong") as caught:
        proved(scram()).step(message)

    assert "6rriTRBi" not in str(caught.value)


@pytest.mark.parametrize("is_equal", [True, False])
@pytest.mark.parametrize("message", [SHA_256["server_final"], b"v=" + b64encode(bytes(32))])
def test_the_signature_is_compared_in_constant_time_and_by_nothing_else(monkeypatch, message, is_equal):
    compared = []
    monkeypatch.setattr(sasl.hmac, "compare_digest", lambda *both: compared.append(both) or is_equal)
    machine = proved(scram())

    if is_equal:
        assert machine.step(message) is None
    else:
        with pytest.raises(AuthenticationError, match="signature is wrong"):
            machine.step(message)

    told, expected = (b64decode(one[2:]) for one in (message, SHA_256["server_final"]))
    assert compared == [(told, expected)]


@pytest.mark.parametrize("make", [asked, proved])
def test_the_brokers_reason_for_a_rejection_is_shown_without_control_characters(make):
    with pytest.raises(
        AuthenticationError, match=r"the broker rejected the exchange: other-error\\x1b\[31m\\x0a"
    ):
        make(scram()).step(b"e=other-error\x1b[31m\n")


def test_nothing_may_follow_the_end():
    machine = proved(scram())
    machine.step(SHA_256["server_final"])

    with pytest.raises(AuthenticationError, match="continued after the end"):
        machine.step(SHA_256["server_final"])


def test_a_machine_that_has_failed_once_always_fails():
    machine = asked(scram())
    for message in (b"nonsense", SHA_256["server_first"]):
        with pytest.raises(AuthenticationError):
            machine.step(message)


# ------------------------------------------------------------------------------------------------ OAUTHBEARER


def test_a_token_is_sent_in_the_format_of_the_rfc_and_an_empty_answer_is_success():
    machine = OAuthBearer(Secret("abc.def.~+/-_="), {"logicalCluster": "lkc-1", "traceId": "7 8"})

    assert machine.step(None) == (
        b"n,,\x01auth=Bearer abc.def.~+/-_=\x01logicalCluster=lkc-1\x01traceId=7 8\x01\x01"
    )
    assert machine.step(b"") is None


@pytest.mark.parametrize("token", ["", "a b", "a\x01auth=Bearer b", "a\nb", "ä", "a\0"])
def test_a_token_that_could_inject_other_fields_is_rejected_and_not_shown(token):
    with pytest.raises(AuthenticationError, match="the token must be printable") as caught:
        OAuthBearer(Secret(token))

    assert not token or token not in str(caught.value)


@pytest.mark.parametrize(
    "extensions",
    [{"auth": "x"}, {"": "x"}, {"a1": "x"}, {"a=b": "x"}, {"a": "x\x01auth=Bearer y"}, {"a": "ä"}],
)
def test_an_extension_that_could_inject_other_fields_is_rejected(extensions):
    with pytest.raises(AuthenticationError, match="extension"):
        OAuthBearer(Secret("token"), extensions)


@pytest.mark.parametrize(
    ("challenge", "told"),
    [
        (b'{"status":"invalid_token","scope":"x"}', "invalid_token"),
        (b'{"status":"\\u001b[31m"}', r"\\x1b\[31m"),
        (b"{}", "it gave no reason"),
        (b"[1]", "it gave no reason"),
        (b"\xff", "it gave no reason"),
        (b"[" * 100_000, "it gave no reason"),
    ],
)
def test_a_rejected_token_is_followed_by_the_final_message_and_then_fails(challenge, told):
    machine = OAuthBearer(Secret("opaque"))
    machine.step(None)

    assert machine.step(challenge) == b"\x01"
    with pytest.raises(AuthenticationError, match=f"rejected the token: {told}"):
        machine.step(b"")


def jwt(**claims: object) -> str:
    parts = ({"alg": "none"}, claims)
    return ".".join(urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts) + "."


@pytest.mark.parametrize(
    ("returned", "lifetime"),
    [
        ("opaque", None),
        (Secret("opaque"), None),
        (jwt(exp=1060), 60.0),
        (jwt(exp=1060.5), 60.5),
        (jwt(exp=900), 0.0),
        (jwt(exp="soon"), None),
        (jwt(), None),
        ("a.!!!.c", None),
        ("a.bm90IGpzb24.c", None),
        (("opaque", 1060), 60.0),
        (("opaque", 1060.0, "principal"), 60.0),
        (OAuthToken("opaque", 5.0), 5.0),
    ],
)
def test_the_result_of_a_provider_becomes_a_token(returned, lifetime):
    token = OAuthToken.of(returned, 1000.0)

    assert token.lifetime == lifetime


def test_a_provider_in_the_style_of_confluent_may_return_extensions():
    token = OAuthToken.of(("opaque", 1060, "principal", {"a": "b"}), 1000.0)

    assert (token.value.reveal(), token.extensions) == ("opaque", {"a": "b"})


@pytest.mark.parametrize(
    "returned", [None, b"bytes", 7, (), ("a",), ("a", "b"), (1, 2), ("a", 1, "p", {}, 5)]
)
def test_an_invalid_result_of_a_provider_is_not_a_token(returned):
    assert OAuthToken.of(returned, 1000.0) is None


def test_no_machine_and_no_token_shows_its_secret():
    shown = [
        repr(thing) for thing in (Plain("u", PENCIL), scram(), OAuthBearer(PENCIL), OAuthToken("pencil", 3))
    ]

    assert "pencil" not in "".join(shown)
    assert shown[-1] == "OAuthToken(<hidden>, lifetime=3)"


@pytest.mark.parametrize("machine", [Plain("u", PENCIL), OAuthBearer(PENCIL)])
def test_a_broker_that_repeats_a_secret_is_quoted_without_it(machine):
    assert machine.conceal("u with pencil: no") == "u with <hidden>: no"
    assert scram().conceal("no\x1b such user") == "no\x1b such user"


# ------------------------------------------------------------------------------------------------------- fuzz


RIGHT = {
    "PLAIN": [b""],
    "SCRAM-SHA-256": [SHA_256["server_first"], SHA_256["server_final"]],
    "SCRAM-SHA-512": [SHA_256["server_first"]],
    "OAUTHBEARER": [b'{"status":"invalid_token"}'],
    "GSSAPI": [b"token", b"wrapped\x07\x00\xff\xff", b""],
}
"""The messages of an honest broker; those of GSSAPI are for the substitute library below."""
CHALLENGES = [
    *(message for messages in RIGHT.values() for message in messages),
    server_first(),
    b"e=unknown-user",
    b"m=x",
    b"wrapped",
]


class GssError(Exception):
    def gen_message(self) -> str:
        return "a token that makes no sense: \x1b[31m"


class Context:
    """A substitute for the library's class, without a key distribution centre: it accepts whatever
    begins like one of its tokens."""

    complete = False

    def __init__(self, **_: object) -> None:
        pass

    def step(self, token: bytes | None) -> bytes | None:
        if token is None:
            return b"token"
        if not token.startswith(b"tok"):
            raise GssError
        self.complete = token.endswith(b"n")
        return None

    def unwrap(self, message: bytes) -> SimpleNamespace:
        if not message.startswith(b"wrapped"):
            raise GssError
        return SimpleNamespace(message=message.removeprefix(b"wrapped"))

    def wrap(self, message: bytes, encrypt: bool) -> SimpleNamespace:
        return SimpleNamespace(message=b"wrapped" + message)


GSSAPI = SimpleNamespace(
    SecurityContext=Context,
    Name=lambda *_: None,
    NameType=SimpleNamespace(hostbased_service=0),
    RequirementFlag=SimpleNamespace(mutual_authentication=0, integrity=0),
    exceptions=SimpleNamespace(GSSError=GssError),
)

MACHINES = {
    "PLAIN": lambda: Plain("u", PENCIL),
    "SCRAM-SHA-256": scram,
    "SCRAM-SHA-512": lambda: scram(mechanism="SCRAM-SHA-512"),
    "OAUTHBEARER": lambda: OAuthBearer(Secret("token")),
    "GSSAPI": lambda: Gssapi("kafka", "localhost"),
}


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """Draw a broker's message with some bytes changed, left out, repeated or added."""
    message = bytearray(draw(st.sampled_from(CHALLENGES)))
    for _ in range(draw(st.integers(0, 6))):
        start = draw(st.integers(0, len(message)))
        end = draw(st.integers(start, min(len(message), start + 8)))
        message[start:end] = draw(st.binary(max_size=8)) if draw(st.booleans()) else message[start:end] * 2
    return bytes(message)


@settings(max_examples=700, deadline=None)
@given(st.integers(0, 3), st.lists(st.one_of(mutated(), st.binary(max_size=200)), max_size=4))
@pytest.mark.parametrize("mechanism", MACHINES)
def test_a_machine_answers_or_rejects_any_message_of_a_broker(mechanism, begin, challenges):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sasl, "MAX_ITERATIONS", 5000)  # only to save time
        patched.setattr(kerberos, "_library", lambda: GSSAPI)
        machine = MACHINES[mechanism]()
        reply, refusal = machine.step(None), ""
        for challenge in (*RIGHT[mechanism][:begin], *challenges):
            try:
                reply = machine.step(challenge)
            except AuthenticationError as error:
                refusal = str(error)
                break
            assert reply is None or isinstance(reply, bytes)
    assert "\x1b" not in refusal


def test_the_tested_machines_are_those_of_the_settings():
    assert set(MACHINES) == set(MECHANISMS)
