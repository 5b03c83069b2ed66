"""Client authentication: TLS, SASL and the expiry of sessions, as in Kafka's brokers.

    security = Security(mechanisms=["SCRAM-SHA-256"], users={"alice": "secret"}, session_lifetime=5.0)
    async with EmbeddedCluster(security=security) as cluster: ...

This module implements the broker's side of the SASL mechanisms. It shares no code with the producer's side."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import re
import ssl
import time
from base64 import b64decode, b64encode, urlsafe_b64decode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

from aioproducer.protocol.api_keys import ApiKey
from aioproducer.testing.embedded.authorizer import ANONYMOUS
from aioproducer.testing.embedded.broker import CloseConnection

_BEFORE_AUTHENTICATION = {ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}
_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}

PAUSE_BETWEEN_AUTHENTICATIONS = 1.0
"""The minimum time in seconds between authentications on a connection. Kafka's KafkaChannel rejects a
re-authentication that comes sooner."""

LATEST_EXPIRY = 2.0**53
"""The largest valid "exp" in a token, in seconds since 1970. Larger values, such as Infinity, make a token invalid."""


@dataclass(slots=True, eq=False)
class Session:
    """The broker's state for one connection."""

    principal: str = ANONYMOUS
    """The client's principal, as ACLs name it: "User:alice"."""


class AuthenticationRefused(Exception):
    """A client failed to authenticate; the message is sent to the client."""


class Security:
    """Authentication settings. They can be changed while the cluster is running; new connections use the new values."""

    def __init__(
        self,
        *,
        tls: ssl.SSLContext | None = None,
        mechanisms: Sequence[str] = (),
        users: Mapping[str, str] | None = None,
        delegation_tokens: Mapping[str, tuple[str, str]] | None = None,
        keytab: str | None = None,
        session_lifetime: float = 0.0,
        session_slack: float = 0.0,
        iterations: int = 4096,
        tamper: Callable[[int, bytes], bytes] | None = None,
        clock: Callable[[], float] = time.time,
        random: Random | None = None,
    ) -> None:
        """Configure authentication.

        Args:
            tls: The server's SSL context; None for a listener without TLS. A context that requires client certificates
                enables mTLS.
            mechanisms: The enabled SASL mechanisms: any of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER and GSSAPI;
                empty to disable SASL.
            users: Passwords by user name, for PLAIN and SCRAM.
            delegation_tokens: The owner and the HMAC of each delegation token, by token id (KIP-48).
            keytab: The brokers' keytab, for GSSAPI (which requires the gssapi package).
            session_lifetime: Seconds within which a connection must re-authenticate (KIP-368); 0: no limit. If there is
                a limit, a session also ends when its OAUTHBEARER token expires.
            session_slack: Extra seconds before a connection is closed, for tests on slow machines.
            iterations: The iteration count for SCRAM.
            tamper: A function that is called with the index and the bytes of each SASL response, and returns the bytes
                to send instead.
            clock: A function that returns the seconds since 1970. It is used to check whether a token has expired.
            random: The source of random salts and nonces.
        """
        self.tls = tls
        self.mechanisms = list(mechanisms)
        self.users = dict(users or {})
        self.delegation_tokens = dict(delegation_tokens or {})
        self.keytab = keytab
        self.session_lifetime = session_lifetime
        self.session_slack = session_slack
        self.iterations = iterations
        self.tamper = tamper
        self.clock = clock
        self.random = random or Random()
        self.authentications: list[tuple[str, str]] = []
        """The principal and the mechanism of each successful authentication, including re-authentications."""
        self.failures = 0
        """The number of failed authentications."""

    def begin(self, certificate: Mapping[str, object] | None) -> SecuredSession:
        """Start the session of a new connection; with mTLS, the client's certificate determines the principal."""
        session = SecuredSession()
        if certificate:
            subject = [pair for part in certificate["subject"] for pair in part]  # type: ignore[attr-defined]
            short = {"commonName": "CN", "organizationName": "O", "organizationalUnitName": "OU"}
            session.principal = "User:" + ",".join(
                f"{short.get(name, name)}={value}" for name, value in reversed(subject)
            )
        return session

    def check(self, session: Session, api_key: int) -> None:
        """Reject a request that is not allowed at this point.

        Raises:
            CloseConnection: the client has not authenticated, its session has ended, or it is re-authenticating.
        """
        if not self.mechanisms or not isinstance(session, SecuredSession):
            return
        now = asyncio.get_running_loop().time()
        if session.exchange is not None and api_key != ApiKey.SASL_AUTHENTICATE:
            raise CloseConnection("a request other than SaslAuthenticate arrived during authentication")
        if not session.is_authenticated and api_key not in _BEFORE_AUTHENTICATION:
            raise CloseConnection("a request arrived before the client had authenticated")
        if now > session.ends_at and api_key not in (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE):
            raise CloseConnection("a request arrived after the session had ended")

    def exchange(self, mechanism: str) -> Exchange:
        """Return the broker's side of a new authentication with this mechanism."""
        if mechanism == "PLAIN":
            return _Plain(self)
        if mechanism == "OAUTHBEARER":
            return _OAuthBearer(self)
        if mechanism == "GSSAPI":
            return _Gssapi(self)
        return _Scram(self, _HASHES[mechanism])


@dataclass(slots=True, eq=False)
class SecuredSession(Session):
    """The broker's authentication state for one connection."""

    is_authenticated: bool = False
    mechanism: str = ""
    exchange: Exchange | None = None
    """The authentication in progress."""
    answers: int = 0
    began_at: float = float("-inf")
    ends_at: float = float("inf")
    """The loop time at which the session ends; infinite if it never ends."""

    def may_authenticate(self, now: float) -> bool:
        """Return True unless this is a re-authentication that comes too soon or in a session that never ends."""
        if not self.is_authenticated:
            return True
        return self.ends_at != float("inf") and now - self.began_at >= PAUSE_BETWEEN_AUTHENTICATIONS


# The broker's side of the mechanisms


class Exchange(Protocol):
    """The broker's side of one authentication."""

    principal: str
    """Empty until the authentication has succeeded."""
    lifetime: float
    """How many seconds the credentials are valid for; 0: no limit."""

    def step(self, message: bytes) -> bytes:
        """Return the response to a client's message. Raises AuthenticationRefused."""


class _Plain:
    def __init__(self, security: Security) -> None:
        self.principal = ""
        self.lifetime = 0.0
        self._security = security

    def step(self, message: bytes) -> bytes:
        parts = message.decode("utf-8", "replace").split("\0")
        if len(parts) != 3 or parts[0] not in ("", parts[1]):
            raise AuthenticationRefused("Invalid SASL/PLAIN response: expected 3 tokens")
        if self._security.users.get(parts[1]) != parts[2]:
            raise AuthenticationRefused("Authentication failed: Invalid username or password")
        self.principal = f"User:{parts[1]}"
        return b""


class _OAuthBearer:
    """OAUTHBEARER with unsecured tokens, as accepted by Kafka's OAuthBearerUnsecuredValidator."""

    def __init__(self, security: Security) -> None:
        self.principal = ""
        self.lifetime = 0.0
        self._security = security
        self._refused = False
        self.extensions: dict[str, str] = {}

    def step(self, message: bytes) -> bytes:
        if self._refused:
            raise AuthenticationRefused(
                "Authentication failed: the token is invalid" if message == b"\x01" else "expected %x01"
            )
        head, *pairs = message.decode("utf-8", "replace").split("\x01")
        fields = dict(pair.partition("=")[::2] for pair in pairs if pair)
        if not head.startswith("n,") or not fields.get("auth", "").lower().startswith("bearer "):
            raise AuthenticationRefused("Invalid OAUTHBEARER client first message")
        claims = self._claims(fields.pop("auth")[7:])
        expires, subject = claims.get("exp"), claims.get("sub")
        left = 0.0
        if isinstance(expires, int | float) and expires < LATEST_EXPIRY:
            left = expires - self._security.clock()
        if not isinstance(subject, str) or not subject or not left > 0:
            self._refused = True
            return b'{"status":"invalid_token"}'
        self.extensions = fields
        self.lifetime = left
        self.principal = f"User:{subject}"
        return b""

    def _claims(self, token: str) -> dict[str, object]:
        try:
            part = token.split(".")[1]
            claims = json.loads(urlsafe_b64decode(part + "=" * (-len(part) % 4)))
        except (IndexError, ValueError, RecursionError):
            return {}
        return claims if isinstance(claims, dict) else {}


class _Gssapi:
    def __init__(self, security: Security) -> None:
        import gssapi

        self.principal = ""
        self.lifetime = 0.0
        self._gssapi: Any = gssapi
        credentials = gssapi.Credentials(usage="accept", store={"keytab": security.keytab or ""})
        self._context = gssapi.SecurityContext(usage="accept", creds=credentials)
        self._has_offered = False

    def step(self, message: bytes) -> bytes:
        try:
            return self._step(message)
        except self._gssapi.exceptions.GSSError as error:
            raise AuthenticationRefused(f"GSS initiate failed: {error.gen_message()}") from error

    def _step(self, message: bytes) -> bytes:
        if not self._context.complete:
            answer: bytes | None = self._context.step(message)
            return answer or b""
        if not self._has_offered:
            self._has_offered = True
            offer: bytes = self._context.wrap(b"\x01\x00\x00\x00", False).message
            return offer
        if self._context.unwrap(message).message[:1] != b"\x01":
            raise AuthenticationRefused("the client chose a security layer that was not offered")
        self.principal = f"User:{str(self._context.initiator_name).partition('@')[0].partition('/')[0]}"
        return b""


class _Scram:
    def __init__(self, security: Security, hash_name: str) -> None:
        self.principal = ""
        self.lifetime = 0.0
        self._security = security
        self._hash = hash_name
        self._first_bare = self._server_first = self._nonce = self._user = ""
        self._salted = b""

    def step(self, message: bytes) -> bytes:
        text = message.decode("utf-8", "replace")
        return self._verify(text) if self._server_first else self._begin(text)

    def _begin(self, text: str) -> bytes:
        found = re.fullmatch(r"n,(?:a=[^,]*)?,(n=([^,]+),r=([^,]+)(,tokenauth=true)?)", text)
        if found is None:
            raise AuthenticationRefused("Invalid SCRAM client first message format")
        name = found[2].replace("=2C", ",").replace("=3D", "=")
        if found[4]:
            self._user, password = self._security.delegation_tokens.get(name, ("", ""))
        else:
            self._user, password = name, self._security.users.get(name, "")
        if not password:
            raise AuthenticationRefused(
                "Authentication failed during authentication due to invalid credentials"
            )
        security = self._security
        salt, extra = security.random.randbytes(16), security.random.randbytes(12).hex()
        self._salted = hashlib.pbkdf2_hmac(self._hash, password.encode(), salt, security.iterations)
        self._first_bare, self._nonce = found[1], found[3] + extra
        self._server_first = f"r={self._nonce},s={b64encode(salt).decode()},i={security.iterations}"
        return self._server_first.encode()

    def _verify(self, text: str) -> bytes:
        without_proof, _, proof = text.rpartition(",p=")
        if without_proof != f"c=biws,r={self._nonce}":
            raise AuthenticationRefused("Invalid client nonce or channel binding in the final client message")
        signed = f"{self._first_bare},{self._server_first},{without_proof}".encode()
        stored = hashlib.new(self._hash, self._hmac(self._salted, b"Client Key")).digest()
        signature = self._hmac(stored, signed)
        key = bytes(a ^ b for a, b in zip(b64decode(proof), signature, strict=False))
        if hashlib.new(self._hash, key).digest() != stored:
            raise AuthenticationRefused(
                "Authentication failed during authentication due to invalid credentials"
            )
        self.principal = f"User:{self._user}"
        server_signature = self._hmac(self._hmac(self._salted, b"Server Key"), signed)
        return f"v={b64encode(server_signature).decode()}".encode()

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, self._hash)
