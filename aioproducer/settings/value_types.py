"""The types of setting values: how text is converted, which values are rejected, and how a value is shown.

`parse` converts text (from a file, the environment or another client's configuration) to a value for a keyword
argument. `check` converts that value to what ProducerConfig stores, in seconds and bytes. Both raise a ValueError whose
text completes a sentence; the caller prepends the setting's name and value. `parse` raises NoEffect for a value that
has no effect."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from aioproducer.protocol.compression import Codec, codec_named
from aioproducer.types import Secret

DEFAULT_PORT = 9092
LONGEST = 2**53 - 1
"""The longest duration, in milliseconds; longer ones are reduced to this value."""
_INTEGER = re.compile(r"[+-]?\d{1,19}")
_NUMBER = re.compile(r"[+-]?(\d{1,19}(\.\d*)?|\.\d+)")
_NO_PEM = (
    "must be PEM text (-----BEGIN ...); give the path of a file as the setting whose name ends in _location"
)
_TRUE = ("true", "t", "1")
_FALSE = ("false", "f", "0")


class NoEffect(Exception):
    """Raised for a value that has no effect. The text completes a sentence and gives the reason."""


@dataclass(frozen=True, slots=True)
class ValueType:
    """Any text. The base class of all value types."""

    none_is_default: ClassVar[bool] = False
    """Whether passing None is the same as leaving the keyword out, even though the default is not None."""

    def parse(self, text: str) -> Any:
        """Return the keyword argument that `text` stands for."""
        return text

    def check(self, value: Any) -> Any:
        """Return the value as it is stored in ProducerConfig."""
        if not isinstance(value, str) or not value:
            raise ValueError("must be a non-empty str")
        if not value.isascii() and any("\ud800" <= one <= "\udfff" for one in value):
            raise ValueError("contains half of a surrogate pair, which can't be sent as UTF-8")
        return value

    def shown(self, value: Any) -> str:
        """Return a value from ProducerConfig as a user would write it."""
        return str(value)

    @property
    def described(self) -> str:
        """The type and the unit, for the documentation."""
        return "str"


@dataclass(frozen=True, slots=True)
class Milliseconds(ValueType):
    """A duration in milliseconds, or in seconds if `per_second` is 1. Fractions are allowed."""

    above: float | None = None
    minimum: float = 0
    per_second: int = 1000
    maximum: float = 2**63 - 1
    """The largest value; for a setting that is sent in requests, the largest that fits into the request's field."""

    def parse(self, text: str) -> float:
        if not _NUMBER.fullmatch(text.strip()):
            raise ValueError(f"must be a number of {self._unit}, 0 or more")
        return float(text) if "." in text else int(text)

    def check(self, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**63:
            raise ValueError(f"must be a number of {self._unit}, 0 or more")
        if self.above is not None and value <= self.above:
            raise ValueError(f"must be more than {self.above:g}")
        if value < self.minimum:
            raise ValueError(f"must be at least {self.minimum:g}")
        if value > self.maximum:
            raise ValueError(f"must be at most {self.maximum}")
        # In Java, 2**63 - 1 stands for "no limit". LONGEST is 285,000 years, and a float represents it exactly.
        return min(value, LONGEST) / self.per_second

    def shown(self, value: Any) -> str:
        return f"{value * self.per_second:.10g}"

    @property
    def _unit(self) -> str:
        return "milliseconds" if self.per_second == 1000 else "seconds"

    @property
    def described(self) -> str:
        bound = f" > {self.above:g}" if self.above is not None else f" ≥ {self.minimum:g}"
        return f"float, {'ms' if self.per_second == 1000 else 's'}{bound}"


@dataclass(frozen=True, slots=True)
class IdleTime(Milliseconds):
    """The time after which an unused connection is closed. As in aiokafka, 0 or None means never."""

    def check(self, value: Any) -> float:
        return 0.0 if value is None else Milliseconds.check(self, value)


@dataclass(frozen=True, slots=True)
class Fraction(ValueType):
    """A number within limits."""

    minimum: float
    maximum: float

    def parse(self, text: str) -> float:
        if not _NUMBER.fullmatch(text.strip()):
            raise ValueError(f"must be a number from {self.minimum} to {self.maximum}")
        return float(text)

    def check(self, value: Any) -> float:
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not self.minimum <= value <= self.maximum
        ):
            raise ValueError(f"must be a number from {self.minimum} to {self.maximum}")
        return float(value)

    @property
    def described(self) -> str:
        return f"float, {self.minimum:g} to {self.maximum:g}"


@dataclass(frozen=True, slots=True)
class Count(ValueType):
    """A whole number."""

    minimum: int = 0
    maximum: int = 2**31 - 1
    unit: str = ""

    def parse(self, text: str) -> int:
        if not _INTEGER.fullmatch(text.strip()):
            raise ValueError(f"must be a whole number from {self.minimum} to {self.maximum}")
        return int(text)

    def check(self, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not self.minimum <= value <= self.maximum:
            raise ValueError(f"must be a whole number from {self.minimum} to {self.maximum}")
        return value

    @property
    def described(self) -> str:
        unit = f", {self.unit}" if self.unit else ""
        return f"int{unit} ≥ {self.minimum}"


@dataclass(frozen=True, slots=True)
class Level(ValueType):
    """A compression level. Its range is checked later, because it depends on the codec."""

    def parse(self, text: str) -> int:
        return Count(-(2**31)).parse(text)

    def check(self, value: Any) -> Any:
        return value

    @property
    def described(self) -> str:
        return "int"


@dataclass(frozen=True, slots=True)
class Switch(ValueType):
    """A switch: True or False."""

    def parse(self, text: str) -> bool:
        word = text.strip().lower()
        if word in _TRUE or word in _FALSE:
            return word in _TRUE
        raise ValueError("must be true or false")

    def check(self, value: Any) -> bool:
        if not isinstance(value, bool):
            raise ValueError("must be True or False")
        return value

    @property
    def described(self) -> str:
        return "bool"


@dataclass(frozen=True, slots=True)
class Choice(ValueType):
    """One of several words, in upper or lower case."""

    words: tuple[str, ...]
    others: tuple[tuple[str, str], ...] = ()
    """Words that only other clients accept, with advice for each."""

    def check(self, value: Any) -> str:
        said = value.strip().lower() if isinstance(value, str) else None
        for word in self.words:
            if said == word.lower():
                return word
        instead = next((f"; {advice}" for word, advice in self.others if said == word.lower()), "")
        raise ValueError(f"is not one of {', '.join(self.words)}{instead}")

    @property
    def described(self) -> str:
        return ", ".join(f'"{word}"' for word in self.words)


@dataclass(frozen=True, slots=True)
class Words(ValueType):
    """A list of words, or a single string with separators between them."""

    words: tuple[str, ...] = ()
    """The allowed words; empty if all are allowed."""
    separators: str = ","

    def check(self, value: Any) -> tuple[str, ...]:
        parts = re.split(f"[{self.separators}\\s]+", value) if isinstance(value, str) else value
        if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
            raise ValueError("must be a list of str or a comma-separated str")
        known = {word.lower(): word for word in self.words}
        found = tuple(part.strip() for part in parts if part.strip())
        if self.words and not all(part.lower() in known for part in found):
            raise ValueError(f"must contain only {', '.join(self.words)}")
        if self.words and not found:
            raise ValueError(f"is empty; name at least one of {', '.join(self.words)}")
        return tuple(known.get(part.lower(), part) for part in found)

    def shown(self, value: Any) -> str:
        return ",".join(value)

    @property
    def described(self) -> str:
        return "list of " + (", ".join(f'"{word}"' for word in self.words) if self.words else "str")


@dataclass(frozen=True, slots=True)
class ClientId(ValueType):
    """A client id that brokers accept in quotas. None selects the client's default name, as in aiokafka."""

    none_is_default: ClassVar[bool] = True

    def check(self, value: Any) -> str:
        if not isinstance(value, str) or not re.fullmatch(r"[a-zA-Z0-9._\-:@ ]*", value):
            raise ValueError("must contain only letters (A to Z, a to z), digits, spaces and . _ - : @")
        return value


@dataclass(frozen=True, slots=True)
class FilePath(ValueType):
    """The path of a file. The file need not exist until it is read."""

    def check(self, value: Any) -> str:
        path = os.fspath(value) if isinstance(value, os.PathLike) else value
        if not isinstance(path, str) or not path or "\0" in path:
            raise ValueError("must be the path of a file")
        return path

    @property
    def described(self) -> str:
        return "path"


@dataclass(frozen=True, slots=True)
class Pem(ValueType):
    """Certificates as PEM text."""

    def check(self, value: Any) -> str:
        if not isinstance(value, str) or "-----BEGIN " not in value:
            raise ValueError(_NO_PEM)
        return value

    def shown(self, value: Any) -> str:
        return f"{value.count('-----BEGIN ')} PEM blocks"

    @property
    def described(self) -> str:
        return "PEM text"


@dataclass(frozen=True, slots=True)
class Hidden(ValueType):
    """A secret."""

    is_pem: bool = False

    def parse(self, text: str) -> Secret:
        return Secret(text)

    def check(self, value: Any) -> Secret:
        if not isinstance(value, str | Secret):
            raise ValueError(f"must be a str or a Secret, not {type(value).__name__}")
        secret = Secret(value) if isinstance(value, str) else value
        if _is_empty(secret):
            raise ValueError("must not be empty")
        if self.is_pem and "-----BEGIN " not in secret.reveal():
            raise ValueError(_NO_PEM)
        return secret

    @property
    def described(self) -> str:
        return "PEM text, secret" if self.is_pem else "str, secret"


def _is_empty(secret: Secret) -> bool:
    try:
        return not secret.reveal()
    except ValueError:
        pass
    raise ValueError("was unpickled, but a pickle does not contain its text; set it again in this process")


@dataclass(frozen=True, slots=True)
class Pairs(ValueType):
    """Name-value pairs: a mapping, or "name=value,name=value"."""

    def parse(self, text: str) -> dict[str, str]:
        pairs = {}
        for part in text.split(","):
            name, sign, value = part.partition("=")
            if not name.strip() or not sign:
                raise ValueError("must have the form name=value,name=value")
            pairs[name.strip()] = value.strip()
        return pairs

    def check(self, value: Any) -> tuple[tuple[str, str], ...]:
        if not isinstance(value, Mapping) or not all(
            isinstance(part, str) for pair in value.items() for part in pair
        ):
            raise ValueError("must be a mapping of str to str")
        return tuple(value.items())

    def shown(self, value: Any) -> str:
        return ",".join(f"{name}={text}" for name, text in value)

    @property
    def described(self) -> str:
        return "dict of str"


@dataclass(frozen=True, slots=True)
class Acks(ValueType):
    """The number of acknowledgements: 0, 1 or all."""

    def parse(self, text: str) -> str:
        return text.strip()

    def check(self, value: Any) -> int:
        if type(value) in (int, str) and value in ("all", -1, "-1"):
            return -1
        if type(value) in (int, str) and value in (0, 1, "0", "1"):
            return int(value)
        raise ValueError("is not one of 0, 1, 'all'")

    def shown(self, value: Any) -> str:
        return "all" if value == -1 else str(value)

    @property
    def described(self) -> str:
        return '"all", 1, 0'


@dataclass(frozen=True, slots=True)
class Compression(ValueType):
    """A codec, given by its name."""

    def parse(self, text: str) -> str:
        return text.strip().lower()

    def check(self, value: Any) -> Codec:
        return codec_named(value)

    def shown(self, value: Any) -> str:
        return str(value.name.lower())

    @property
    def described(self) -> str:
        return ", ".join(f'"{codec.name.lower()}"' for codec in Codec)


@dataclass(frozen=True, slots=True)
class Servers(ValueType):
    """Bootstrap addresses: "host:port,host:port", or a list of such strings."""

    def check(self, value: Any) -> tuple[tuple[str, int], ...]:
        parts = value.split(",") if isinstance(value, str) else value
        if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
            raise ValueError("must be 'host:port,host:port' or a list of 'host:port'")
        servers = tuple(_server(part.strip()) for part in parts if part.strip())
        if not servers:
            raise ValueError("is empty; name at least one host:port")
        return servers

    def shown(self, value: Any) -> str:
        return ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in value)

    @property
    def described(self) -> str:
        return 'str "host:port,host:port" or list'


def _server(text: str) -> tuple[str, int]:
    """Return the host and the port of an address: `host`, `host:port`, `[v6]:port` or `PROTOCOL://host:port`."""
    match = re.fullmatch(
        r"(?:[A-Za-z_0-9]+://)?(?:\[([0-9A-Fa-f:.]+(?:%[\w.\-]+)?)\]|([^\s:/@\[\]]+))(?::(\d{1,5}))?", text
    )
    port = int(match[3]) if match and match[3] else DEFAULT_PORT
    if match is None or not 0 < port < 65536:
        advice = "; set credentials as sasl_plain_username and sasl_plain_password" if "@" in text else ""
        raise ValueError(
            f"contains something that is not an address; write each address as host:port{advice}"
        )
    return match[1] or match[2], port
