"""Translates the names of TLS cipher suites in the settings into OpenSSL's names.

openssl_ciphers() is called when the settings are checked and when a TLS context is created. This module opens no
files."""

from __future__ import annotations

import re
import ssl

from aioproducer.errors import ConfigError

UNSAFE_SUITES = ":!aNULL:!eNULL"
"""Excludes suites that do not authenticate the broker or do not encrypt, even when they come from a group such as HIGH
or ALL."""

_SUITE_NAME = re.compile(r"[A-Za-z0-9_+-]+")
_TLS_13_SUITES = {
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
    "TLS_AES_128_CCM_SHA256",
    "TLS_AES_128_CCM_8_SHA256",
}
"""The cipher suites of TLS 1.3 (RFC 8446, B.4)."""


def openssl_ciphers(suites: tuple[str, ...]) -> list[str]:
    """Return the OpenSSL names of the suites that are not for TLS 1.3.

    A suite may be given under Java's name, such as TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256.

    Raises:
        ConfigError: OpenSSL has no suite of that name, or only suites without authentication or without encryption.
    """
    names = []
    for suite in suites:
        if suite in _TLS_13_SUITES:
            continue
        if not _SUITE_NAME.fullmatch(suite):
            raise ConfigError(
                f"ssl_cipher_suites: {suite!r} is not the name of a cipher suite, which consists of letters, digits, "
                "'-', '_' and '+'; leave out directives such as !NAME and @SECLEVEL=0",
                setting="ssl_cipher_suites",
                value=suites,
            )
        name = suite
        if suite.startswith("TLS_") and "_WITH_" in suite:
            exchange, _, rest = suite[4:].partition("_WITH_")
            cipher = re.sub(r"^AES_(\d+)_", r"AES\1_", rest).replace("_CBC", "")
            name = "-".join([*exchange.split("_"), *cipher.split("_")]).removeprefix("RSA-")
            name = name.removesuffix("-SHA256") if "CHACHA20" in name else name
        if not _names_suites(name):
            raise ConfigError(
                f"ssl_cipher_suites: {suite!r} is unknown to {ssl.OPENSSL_VERSION}, or not allowed by it",
                setting="ssl_cipher_suites",
                value=suites,
            )
        if not _names_suites(name + UNSAFE_SUITES):
            raise ConfigError(
                f"ssl_cipher_suites: {suite!r} contains only suites that do not encrypt or do not authenticate "
                "the broker; name other suites",
                setting="ssl_cipher_suites",
                value=suites,
            )
        names.append(name)
    return names


def _names_suites(ciphers: str) -> bool:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).set_ciphers(ciphers)
    except ssl.SSLError:
        return False
    return True
