"""The listeners of a real broker. Clients connect to them in plain text, or with TLS or SASL.

INTERNAL and CONTROLLER are the brokers' own listeners; they use plain text and bypass all proxies. The other
listeners, such as CLIENT, are declared by the user.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

Setting = str | int | float | bool

CLIENT = "CLIENT"
INTERNAL = "INTERNAL"
CONTROLLER = "CONTROLLER"

_PROTOCOL = "security.protocol"
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


@dataclass(frozen=True)
class Listener:
    """A listener for clients: its name, its security protocol and its own settings."""

    name: str
    protocol: str = "PLAINTEXT"
    settings: Mapping[str, Setting] = field(default_factory=dict)

    def broker_settings(self) -> dict[str, Setting]:
        """Return the settings under the broker's names, with the prefix `listener.name.<name>.` (KIP-103)."""
        return {f"listener.name.{self.name.lower()}.{key}": value for key, value in self.settings.items()}


def declared(listeners: Mapping[str, Mapping[str, Setting]]) -> tuple[Listener, ...]:
    """Return CLIENT and the other listeners that the user declared.

    Raises:
        ValueError: a declaration is invalid.
    """
    found = {CLIENT: Listener(CLIENT)}
    for name, settings in listeners.items():
        if not re.fullmatch(r"[A-Z][A-Z0-9_]*", name):
            raise ValueError(f"a listener's name must be upper case, such as CLIENT or SECURE, not {name!r}")
        if name in (INTERNAL, CONTROLLER):
            raise ValueError(f"listener {name} is reserved for the brokers: give yours another name")
        protocol = settings.get(_PROTOCOL)
        if protocol not in _PROTOCOLS:
            raise ValueError(
                f"listener {name} requires {_PROTOCOL!r}, one of {', '.join(_PROTOCOLS)}, not {protocol!r}"
            )
        own = {key: value for key, value in settings.items() if key != _PROTOCOL}
        found[name] = Listener(name, str(protocol), own)
    return tuple(found.values())


def protocol_map(listeners: tuple[Listener, ...]) -> str:
    """Return the value of `listener.security.protocol.map`."""
    protocols = {listener.name: listener.protocol for listener in listeners}
    protocols |= {INTERNAL: "PLAINTEXT", CONTROLLER: "PLAINTEXT"}
    return ",".join(f"{name}:{protocol}" for name, protocol in protocols.items())
