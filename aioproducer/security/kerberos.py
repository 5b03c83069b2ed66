"""GSSAPI (RFC 4752) with Kerberos: a state machine like those in `sasl`, based on the system's Kerberos library.

This module needs the aioproducer[gssapi] extra. Each step runs in a thread, because it may contact the key distribution
centre."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aioproducer.errors import AuthenticationError, ConfigError, escaped

NO_LAYER = 1
"""The bit for "no security layer": Kafka uses GSSAPI only for authentication."""


class Gssapi:
    """One authentication with GSSAPI. The ticket comes from the system's cache (kinit) or is obtained with a keytab."""

    name = "GSSAPI"
    is_slow = True

    def __init__(
        self, service: str, host: str, *, principal: str | None = None, keytab: str | None = None
    ) -> None:
        """Store the arguments; a ticket is requested later.

        Args:
            service: the first part of the brokers' principals, e.g. "kafka".
            host: the broker's name in its principal (service/host@REALM).
            principal: this client's principal; by default, the one in the cache or in the keytab.
            keytab: a file that contains this client's key.

        Raises:
            ConfigError: the library is missing.
        """
        self._gssapi = _library()
        self._service = service
        self._host = host
        self._principal = principal
        self._keytab = keytab
        self._context: Any = None
        self._next: Callable[[bytes], bytes | None] | None = self._begin

    def step(self, challenge: bytes | None) -> bytes | None:
        """See `aioproducer.security.sasl.Mechanism.step`. Blocks.

        Raises:
            AuthenticationError: there is no ticket, or the broker fails to authenticate itself.
        """
        take, self._next = self._next, None
        if take is None:
            raise AuthenticationError("GSSAPI: the broker continued after the end of the exchange")
        try:
            return take(challenge or b"")
        except self._gssapi.exceptions.GSSError as error:
            why = escaped(error.gen_message())
        raise AuthenticationError(f"GSSAPI: {why}")

    def conceal(self, text: str) -> str:
        """See `aioproducer.security.sasl.Mechanism.conceal`. GSSAPI sends no secret to the broker."""
        return text

    def _begin(self, challenge: bytes) -> bytes | None:
        gssapi = self._gssapi
        self._context = gssapi.SecurityContext(
            name=gssapi.Name(f"{self._service}@{self._host}", gssapi.NameType.hostbased_service),
            creds=self._credentials(),
            flags=(gssapi.RequirementFlag.mutual_authentication, gssapi.RequirementFlag.integrity),
            usage="initiate",
        )
        return self._negotiate(b"")

    def _credentials(self) -> Any:
        """Return the credentials, or None to let the library use the cache that kinit filled."""
        gssapi = self._gssapi
        if self._principal is None and self._keytab is None:
            return None
        name = None
        if self._principal is not None:
            name = gssapi.Name(self._principal, gssapi.NameType.kerberos_principal)
        if self._keytab is None:
            return gssapi.Credentials(name=name, usage="initiate")
        # Each combination of principal and keytab has its own cache, so that no two combinations share tickets.
        cache = f"MEMORY:aioproducer {self._principal} {self._keytab}"
        store = {"client_keytab": self._keytab, "ccache": cache}
        return gssapi.Credentials(name=name, usage="initiate", store=store)

    def _negotiate(self, challenge: bytes) -> bytes | None:
        """Answer the broker's token with another token, until both sides are authenticated."""
        token: bytes | None = self._context.step(challenge or None)
        self._next = self._agree if self._context.complete else self._negotiate
        return token or b""

    def _agree(self, challenge: bytes) -> bytes | None:
        """Answer the broker's offer of security layers and a buffer size: choose no layer and a buffer size of 0."""
        offer = self._context.unwrap(challenge).message
        if len(offer) != 4 or not offer[0] & NO_LAYER:
            raise AuthenticationError("GSSAPI: the broker requires a security layer; Kafka uses TLS instead")
        self._next = self._end
        message: bytes = self._context.wrap(bytes([NO_LAYER, 0, 0, 0]), False).message
        return message

    def _end(self, challenge: bytes) -> bytes | None:
        if challenge:
            raise AuthenticationError("GSSAPI: the broker sent a challenge after the end of the exchange")
        return None


def _library() -> Any:
    try:
        import gssapi
    except ImportError:
        raise ConfigError(
            "GSSAPI requires the gssapi package (pip install 'aioproducer[gssapi]') and the system's Kerberos library",
            setting="sasl_mechanism",
            value="GSSAPI",
        ) from None
    return gssapi
