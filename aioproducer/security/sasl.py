"""SASL mechanisms as state machines: `step(challenge)` returns the reply.

The machines use no socket, task or clock; the connection sends and receives the bytes. Each machine is used for one
authentication only. Whatever the peer sends, a machine raises only AuthenticationError, and no error shows a password,
a token or a proof."""

from __future__ import annotations

import binascii
import hashlib
import hmac
import json
import math
import re
from base64 import urlsafe_b64decode
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any, Protocol, TypeAlias

from aioproducer.errors import AuthenticationError, ConfigError, escaped
from aioproducer.types import Secret

__all__ = ["OAuthToken"]

MIN_ITERATIONS = 4096
"""The minimum number of SCRAM iterations, as in Kafka. With fewer iterations, an eavesdropper could easily guess the
password from the proof (RFC 7677, 4)."""

MAX_ITERATIONS = 1_000_000
"""The maximum number of SCRAM iterations; they take about a second in a thread. More would only waste CPU time."""

_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}

_Step: TypeAlias = Callable[[bytes], bytes | None]


class Mechanism(Protocol):
    """One authentication with one mechanism."""

    name: str
    """Kafka's name for the mechanism."""
    is_slow: bool
    """Whether the next step must run in a thread, because it takes a long time to compute or uses the network."""

    def step(self, challenge: bytes | None) -> bytes | None:
        """Return the reply to the broker's challenge (None in the first step), or None if no reply is needed.

        Raises:
            AuthenticationError: the broker does not authenticate itself, or its challenge is invalid.
        """

    def conceal(self, text: str) -> str:
        """Redact the secret that was sent to the broker, in case the broker's text repeats it."""


class _Machine:
    """A base class for mechanisms; each step sets the next one."""

    name: str
    is_slow = False

    def __init__(self) -> None:
        self._next: _Step | None = self._begin

    def step(self, challenge: bytes | None) -> bytes | None:
        """See `Mechanism.step`."""
        take, self._next = self._next, None  # after an error there is no next step
        if take is None:
            raise AuthenticationError(f"{self.name}: the broker continued after the end of the exchange")
        return take(challenge or b"")

    def conceal(self, text: str) -> str:
        """See `Mechanism.conceal`. Most mechanisms do not send a secret to the broker."""
        return text

    def _begin(self, challenge: bytes) -> bytes | None:
        raise NotImplementedError

    def _end(self, challenge: bytes) -> None:
        """Check that the broker sends nothing more after it has accepted the only message."""
        if challenge:
            raise AuthenticationError(
                f"{self.name}: the broker sent a challenge that the mechanism does not define"
            )


class Plain(_Machine):
    """PLAIN (RFC 4616): sends the user name and password in clear text, so use it only over encrypted connections."""

    name = "PLAIN"

    def __init__(self, username: str, password: Secret) -> None:
        """Store the credentials. Raises AuthenticationError if the user name or the password can't be sent."""
        super().__init__()
        _check(self.name, username, password)
        self._username = username
        self._password = password

    def _begin(self, challenge: bytes) -> bytes:
        self._next = self._end
        return f"\0{self._username}\0{self._password.reveal()}".encode()

    def conceal(self, text: str) -> str:
        return text.replace(self._password.reveal(), "<hidden>")


class Scram(_Machine):
    """SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, 7677), without channel binding, which Kafka does not support.

    Names and passwords are used unchanged, because Kafka derives its keys without SASLprep (`ScramFormatter`).
    """

    def __init__(
        self, mechanism: str, username: str, password: Secret, *, nonce: str, token_auth: bool = False
    ) -> None:
        """Prepare one exchange.

        Args:
            mechanism: "SCRAM-SHA-256" or "SCRAM-SHA-512".
            username: the name of a SCRAM user of the Kafka cluster, or the id of a delegation token.
            password: the password, or the token's HMAC.
            nonce: printable characters without a comma; unpredictable and never used before.
            token_auth: whether the user name and the password belong to a delegation token (KIP-48).

        Raises:
            AuthenticationError: the user name or the password can't be sent.
        """
        super().__init__()
        _check(mechanism, username, password)
        self.name = mechanism
        self._hash = _HASHES[mechanism]
        self._password = password
        self._nonce = nonce
        name = username.replace("=", "=3D").replace(",", "=2C")
        self._first_bare = f"n={name},r={nonce}{',tokenauth=true' if token_auth else ''}"
        self._server_signature = b""

    def _begin(self, challenge: bytes) -> bytes:
        self._next = self._prove
        self.is_slow = True
        return f"n,,{self._first_bare}".encode()

    def _prove(self, challenge: bytes) -> bytes:
        """Check the server's salt and iteration count, and answer with the proof."""
        self.is_slow = False
        server_first = self._text(challenge)
        nonce, salt, iterations = self._server_first(server_first)
        without_proof = f"c=biws,r={nonce}"
        signed = f"{self._first_bare},{server_first},{without_proof}".encode()
        proof, self._server_signature = _scram_proof(self._hash, self._password, salt, iterations, signed)
        self._next = self._verify
        return f"{without_proof},p={proof}".encode()

    def _server_first(self, text: str) -> tuple[str, bytes, int]:
        if text.startswith("m="):
            raise AuthenticationError(
                f"{self.name}: the broker requires an extension that is not defined in any standard"
            )
        self._refuse_error(text)
        parts = re.fullmatch(
            r"r=([!-+\--~]+),s=([A-Za-z0-9+/]+=*),i=([1-9][0-9]{0,15})(?:,[A-Za-z]=.*)?", text
        )
        salt = _base64(parts[2]) if parts else None
        if parts is None or not salt:
            raise AuthenticationError(f"{self.name}: the broker's first message is malformed")
        nonce, iterations = parts[1], int(parts[3])
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise AuthenticationError(f"{self.name}: the broker's nonce is forged: it does not extend ours")
        if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
            raise AuthenticationError(
                f"{self.name}: the broker asks for {iterations} iterations; {MIN_ITERATIONS} to "
                f"{MAX_ITERATIONS} are allowed"
            )
        return nonce, salt, iterations

    def _verify(self, challenge: bytes) -> None:
        """Check the server's signature, which only a server that knows the keys of this user can create."""
        text = self._text(challenge)
        self._refuse_error(text)
        parts = re.fullmatch(r"v=([A-Za-z0-9+/]+=*)(?:,[A-Za-z]=.*)?", text)
        signature = _base64(parts[1]) if parts else None
        if signature is None or not hmac.compare_digest(signature, self._server_signature):
            raise AuthenticationError(
                f"{self.name}: the broker's signature is wrong: the broker does not know this user's keys"
            )

    def _refuse_error(self, text: str) -> None:
        if text.startswith("e="):
            raise AuthenticationError(f"{self.name}: the broker rejected the exchange: {escaped(text[2:])}")

    def _text(self, challenge: bytes) -> str:
        try:
            return challenge.decode()
        except UnicodeDecodeError:
            raise AuthenticationError(f"{self.name}: the broker's message is not UTF-8") from None


class OAuthBearer(_Machine):
    """OAUTHBEARER (RFC 7628, KIP-255) with the extensions of KIP-342."""

    name = "OAUTHBEARER"

    def __init__(self, token: Secret, extensions: Mapping[str, str] | Sequence[tuple[str, str]] = ()) -> None:
        """Store the token. Raises AuthenticationError if the token or an extension can't be sent."""
        super().__init__()
        _reject_lost(self.name, token)
        if not re.fullmatch(r"[!-~]+", token.reveal()):
            raise AuthenticationError(
                "OAUTHBEARER: the token must be printable ASCII without spaces, and not empty"
            )
        self._extensions = dict(extensions)
        for name, value in self._extensions.items():
            if (
                not re.fullmatch(r"[A-Za-z]+", name)
                or name == "auth"
                or not re.fullmatch(r"[ -~\t\r\n]*", value)
            ):
                raise AuthenticationError(
                    f"OAUTHBEARER: extension {escaped(name, 40)!r} can't be sent: its name must consist of letters and "
                    "not be 'auth', and its value must be printable ASCII"
                )
        self._token = token
        self._refusal = ""

    def _begin(self, challenge: bytes) -> bytes:
        self._next = self._answered
        extensions = "".join(f"{name}={value}\x01" for name, value in self._extensions.items())
        return f"n,,\x01auth=Bearer {self._token.reveal()}\x01{extensions}\x01".encode()

    def conceal(self, text: str) -> str:
        return text.replace(self._token.reveal(), "<hidden>")

    def _answered(self, challenge: bytes) -> bytes | None:
        """Read the broker's reply, which is empty on success. Otherwise, it contains the reason for the failure, and
        the broker expects one more message before it rejects the client."""
        if not challenge:
            return None
        self._next = self._raise_rejection
        try:
            answer = json.loads(challenge)
            self._refusal = escaped(self.conceal(str(answer["status"])), 200)
        except (ValueError, KeyError, TypeError, RecursionError):
            self._refusal = "it gave no reason"
        return b"\x01"

    def _raise_rejection(self, challenge: bytes) -> bytes | None:
        raise AuthenticationError(f"OAUTHBEARER: the broker rejected the token: {self._refusal}")


class OAuthToken:
    """A token, its remaining lifetime, and the SASL extensions to send with it (KIP-342)."""

    __slots__ = ("extensions", "lifetime", "value")

    def __init__(
        self,
        value: str | Secret,
        lifetime: float | None = None,
        extensions: Mapping[str, str] | None = None,
    ) -> None:
        """Check and store the values.

        Args:
            value: the token, as sent after "Bearer".
            lifetime: seconds from now, or None if unknown. By default, the token is reused for about the first 80% of
                its lifetime (see sasl_login_refresh_window_factor).
            extensions: names and values for the broker, e.g. {"logicalCluster": "lkc-1"}.

        Raises:
            ConfigError: a value has the wrong type, or the token is empty.
        """
        self.lifetime: float | None = None
        if isinstance(value, str):
            value = Secret(value)
        if problem := _token_problem(value, lifetime, extensions):
            del value, lifetime, extensions  # a traceback that shows locals must not show the token
            raise ConfigError(f"OAuthToken: {problem}", setting="sasl_oauth_token_provider", value=None)
        self.value = value
        self.lifetime = lifetime
        self.extensions = dict(extensions or {})

    def __repr__(self) -> str:
        return f"OAuthToken(<hidden>, lifetime={self.lifetime})"

    def with_extensions(self, extensions: Mapping[str, str]) -> OAuthToken:
        """Return the same token with these extensions."""
        return OAuthToken(self.value, self.lifetime, extensions)

    @classmethod
    def of(cls, returned: object, now: float) -> OAuthToken | None:
        """Convert the result of a token provider to an OAuthToken; return None if the result is not a token.

        Args:
            returned: an OAuthToken, a str (if it is a JWT, its lifetime is read), or a tuple (str, expiry in seconds
                since 1970, principal, extensions) whose last two items may be omitted.
            now: seconds since 1970.

        Raises:
            ConfigError: see the constructor.
        """
        if isinstance(returned, cls):
            return returned
        parts = _parts_of(returned)
        del returned  # a traceback that shows locals must not show it
        if parts is None:
            return None
        value, expires, extensions = parts
        return cls(value, None if expires is None else max(expires - now, 0.0), extensions)


def _token_problem(value: object, lifetime: object, extensions: object) -> str:
    """Return the reason why these values do not form a valid token; "" if they do."""
    if not isinstance(value, Secret):
        return f"the token must be a str or a Secret, not {type(value).__name__}"
    if value == Secret(""):
        return "the token is empty"
    if lifetime is not None and (isinstance(lifetime, bool) or not isinstance(lifetime, Real)):
        return f"lifetime must be a number of seconds or None, not {type(lifetime).__name__}"
    if lifetime is not None and (problem := _lifetime_problem(lifetime)):
        return f"lifetime must be a number of seconds or None, not {problem}"
    if extensions and (
        not isinstance(extensions, Mapping)
        or not all(isinstance(text, str) for pair in extensions.items() for text in pair)
    ):
        return "extensions must be a mapping of str to str"
    return ""


def _lifetime_problem(lifetime: Real) -> str:
    try:
        return "NaN" if math.isnan(lifetime) else ""
    except OverflowError:
        return "a number that is too large for a float"


def _parts_of(returned: object) -> tuple[Secret, float | None, Any] | None:
    """Return the token, its expiry in seconds since 1970, and the extensions; None if the value is not one that a
    provider may return."""
    if isinstance(returned, str | Secret):
        value = Secret(returned) if isinstance(returned, str) else returned
        return value, _jwt_expiry(value), None
    if not isinstance(returned, tuple | list) or not 2 <= len(returned) <= 4:
        return None
    text, expires, *rest = returned
    is_number = isinstance(expires, int | float) and not isinstance(expires, bool) and expires == expires
    if not isinstance(text, str | Secret) or not is_number:
        return None
    return Secret(text) if isinstance(text, str) else text, expires, rest[1] if len(rest) == 2 else None


def _jwt_expiry(token: Secret) -> float | None:
    """Return the expiry of a JSON web token in seconds since 1970; None if it is unknown. The token is not verified;
    that is the broker's task."""
    if token.is_lost:
        return None
    parts = token.reveal().split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        expiry = float(claims["exp"])
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return None
    return expiry if math.isfinite(expiry) else None


def _scram_proof(
    name: str, password: Secret, salt: bytes, iterations: int, signed: bytes
) -> tuple[str, bytes]:
    """Return the client's proof in Base64, and the signature that the server has to send (RFC 5802, 3).

    The variable names follow the RFC. No statement here raises an exception, so no traceback shows their values.
    """
    salted = hashlib.pbkdf2_hmac(name, password.reveal().encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", name)
    client_signature = hmac.digest(hashlib.new(name, client_key).digest(), signed, name)
    proof = bytes(a ^ b for a, b in zip(client_key, client_signature, strict=True))
    server_key = hmac.digest(salted, b"Server Key", name)
    return binascii.b2a_base64(proof, newline=False).decode(), hmac.digest(server_key, signed, name)


def _base64(text: str) -> bytes | None:
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except ValueError:
        return None


def _check(mechanism: str, username: str, password: Secret) -> None:
    """Raise AuthenticationError if the user name or the password can't be sent."""
    _reject_lost(mechanism, password)
    if not username or not password.reveal():
        raise AuthenticationError(f"{mechanism}: user name and password must not be empty")
    if not _is_plain_text(username) or not _is_plain_text(password.reveal()):
        raise AuthenticationError(
            f"{mechanism}: user name and password must be valid Unicode without NUL characters"
        )


def _reject_lost(mechanism: str, secret: Secret) -> None:
    if secret.is_lost:
        raise AuthenticationError(
            f"{mechanism}: the secret was unpickled, but a pickle does not contain its text; set it again in "
            f"this process"
        )


def _is_plain_text(text: str) -> bool:
    # The codec's error is not passed on, because it contains the text.
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False
