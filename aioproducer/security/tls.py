"""Creates an ssl.SSLContext from the settings.

Certificates are reread when their files change. This module opens files, so its functions are called in a thread. A
context created by this module checks the broker's certificate chain and host name and uses TLS 1.2 or 1.3. Only a
context created by the user can lack these checks."""

from __future__ import annotations

import contextlib
import os
import secrets
import ssl
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from aioproducer.errors import ConfigError, TlsError, escaped
from aioproducer.security.cipher_suites import UNSAFE_SUITES, openssl_ciphers
from aioproducer.security.file_stamps import stamp
from aioproducer.security.pem import (
    CERTIFICATE,
    CRL,
    PemSource,
    has_crl,
    in_lines,
    own_problem,
    store_problem,
    trusted_problem,
)
from aioproducer.types import Secret

if TYPE_CHECKING:
    from aioproducer.config import ProducerConfig


_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_PLAINTEXT = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE")
"""OpenSSL's reasons for a failed handshake if the peer does not speak TLS."""

_HINTS = {
    "CERTIFICATE_REQUIRED": "the broker requires a client certificate; set ssl_keystore_location",
    "HANDSHAKE_FAILURE": "the broker requires a client certificate, or the two sides have no TLS version or "
    "cipher suite in common",
    "PROTOCOL_VERSION": "the broker does not support any TLS version that ssl_enabled_protocols allows",
    "UNSUPPORTED_PROTOCOL": "the broker does not support any TLS version that ssl_enabled_protocols allows",
    "UNKNOWN_CA": "the broker does not trust the authority that signed this client's certificate",
    "BAD_CERTIFICATE": "the broker does not accept this client's certificate",
    "CERTIFICATE_EXPIRED": "the broker says that this client's certificate has expired",
    "CERTIFICATE_UNKNOWN": "the broker does not accept this client's certificate",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": (
        "the broker presented no certificate; a cipher suite of ssl_context allows this; add !aNULL to the ciphers of "
        "the context"
    ),
}
"""Explanations of failed handshakes, keyed by the end of OpenSSL's reason."""


class TlsContext:
    """The TLS context of one producer. Before each connection, it rereads the files if one of them has changed."""

    def __init__(self, config: ProducerConfig) -> None:
        """Store the arguments; files are opened later."""
        self._config = config
        self._log = config.log(__name__)
        self._context: ssl.SSLContext | None = None
        self._seen: tuple[object, ...] = ()

    def current(self) -> ssl.SSLContext:
        """Return the context for a new connection. Blocks while files are read.

        Raises:
            ConfigError: a file can't be read or its content is invalid, and there is no previous context to fall back
                on.
        """
        given: ssl.SSLContext | None = self._config.ssl_context
        if given is not None:
            if self._context is None and (not given.check_hostname or given.verify_mode != ssl.CERT_REQUIRED):
                self._log.warning(
                    "ssl_context does not check %s: an attacker on the network path can read and change everything",
                    "host names" if given.verify_mode == ssl.CERT_REQUIRED else "certificates",
                )
            self._context = given
            return given
        seen = tuple(map(stamp, self._files()))
        if self._context is None or seen != self._seen:
            try:
                self._context = make_context(self._config)
            except ConfigError as error:
                if self._context is None:
                    raise
                # The file may be incomplete because it is being written. The next connection checks it again.
                self._log.warning(
                    "certificates could not be reloaded, so the previous ones remain in use: %s", error
                )
            else:
                self._seen = seen
        return self._context

    def _files(self) -> list[str]:
        config = self._config
        named = (
            config.ssl_truststore_location,
            config.ssl_keystore_location,
            config.ssl_certificate_location,
            config.ssl_key_location,
            config.ssl_crl_location,
        )
        return [path for path in named if path is not None]


def make_context(config: ProducerConfig) -> ssl.SSLContext:
    """Read all files and create a context.

    Raises:
        ConfigError: a file can't be read, or its content is invalid. The error names the setting.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # checks the chain and the host name
    versions = [_VERSIONS[name] for name in config.ssl_enabled_protocols]
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    _set_ciphers(context, config.ssl_cipher_suites)
    _load_trusted(context, config)
    _load_own(context, config)
    if config.ssl_crl_location is not None:
        with _explained("ssl_crl_location", config.ssl_crl_location):
            _load_crl(context, config.ssl_crl_location)
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    return context


def _set_ciphers(context: ssl.SSLContext, suites: tuple[str, ...]) -> None:
    """Set the cipher suites. TLS 1.3 suites cannot be chosen individually: if none is named, TLS 1.3 is not used."""
    if not suites:
        return
    older = openssl_ciphers(suites)
    if not older:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        return
    if len(older) == len(suites):
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(":".join(older) + UNSAFE_SUITES)


# Trusted certificates


def _load_crl(context: ssl.SSLContext, path: str) -> None:
    with _named_problem(path, CRL):
        context.load_verify_locations(path)
    # OpenSSL also accepts a file that contains only certificates.
    if os.path.isfile(path) and not has_crl(_bytes_of(path)):
        raise ValueError(trusted_problem(_bytes_of(path), CRL))


def _load_trusted(context: ssl.SSLContext, config: ProducerConfig) -> None:
    text, path = config.ssl_truststore_certificates, config.ssl_truststore_location
    if text is None and path is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        return
    # As in Java, every certificate in the store is trusted, including a broker's own.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if text is not None:
        with _explained("ssl_truststore_certificates", "the text"):
            try:
                # Only the text around the PEM blocks may contain non-ASCII characters.
                context.load_verify_locations(cadata=in_lines(text).encode("ascii", "replace").decode())
            except ssl.SSLError:
                raise ValueError(trusted_problem(text.encode(), CERTIFICATE)) from None
        return
    assert path is not None
    with _explained("ssl_truststore_location", path):
        if os.path.isdir(path):
            context.load_verify_locations(capath=path)
        elif _kind("ssl_truststore", path, config.ssl_truststore_type) == "PEM":
            with _named_problem(path, CERTIFICATE):
                context.load_verify_locations(cafile=path)
        else:
            stored = _pkcs12("ssl_truststore", path, config.ssl_truststore_password)
            found = [stored.cert, *stored.additional_certs]
            encoding = _cryptography("ssl_truststore").serialization.Encoding.DER
            ders = [one.certificate.public_bytes(encoding) for one in found if one is not None]
            if not ders:
                raise ValueError("the PKCS12 store contains no certificate")
            context.load_verify_locations(cadata=b"".join(ders))


# The client's certificate


def _load_own(context: ssl.SSLContext, config: ProducerConfig) -> None:
    """Load this client's certificate and key (mTLS), if there are any."""
    key = config.ssl_keystore_key
    chain_path, key_path = config.ssl_certificate_location, config.ssl_key_location
    password = _Password(config.ssl_key_password)
    if config.ssl_keystore_certificate_chain is not None or key is not None:
        # No local variable contains a chain: a traceback may show local variables, and a chain may contain a key.
        certificate = _read(
            _source(
                "ssl_keystore_certificate_chain",
                config.ssl_keystore_certificate_chain,
                "ssl_certificate_location",
                chain_path,
            )
        )
        own = _read(_source("ssl_keystore_key", key, "ssl_key_location", key_path))
        assert own.text is not None
        assert certificate.text is not None
        with _explained_own(certificate, own, password):
            _load_pem_text(context, own.text, certificate.text, password)
    elif chain_path is not None:
        certificate = PemSource("ssl_certificate_location", chain_path, None)
        own = certificate if key_path is None else PemSource("ssl_key_location", key_path, None)
        with _explained_own(certificate, own, password):
            context.load_cert_chain(chain_path, key_path, password=password)
    elif config.ssl_keystore_location is not None:
        path = config.ssl_keystore_location
        with _explained("ssl_keystore_location", path):
            is_pem = _kind("ssl_keystore", path, config.ssl_keystore_type) == "PEM"
            if not is_pem:
                _load_pkcs12(context, path, config.ssl_keystore_password)
        if is_pem:
            certificate = PemSource("ssl_keystore_location", path, None)
            if config.ssl_key_password is None:
                password = _Password(config.ssl_keystore_password, "ssl_keystore_password")
            with _explained_own(certificate, certificate, password):
                context.load_cert_chain(path, password=password)


def _source(setting: str, text: str | Secret | None, path_setting: str, path: str | None) -> PemSource:
    """Return a PemSource for the text, or, if it is None, for the file, which is read later."""
    if text is not None:
        return PemSource(setting, "the text", text if isinstance(text, Secret) else Secret(text))
    assert path is not None  # settings/security.py rejects a key without a certificate, and vice versa
    return PemSource(path_setting, path, None)


def _read(source: PemSource) -> PemSource:
    """Return the source with its text, which is read from the file if necessary."""
    if source.text is not None:
        return source
    with _explained(source.setting, source.name):
        return source._replace(text=Secret(_pem_of(source.name)))


class _Password:
    """The function that OpenSSL calls to get the password of an encrypted key. Without it, OpenSSL would prompt on the
    terminal."""

    def __init__(self, password: Secret | None, setting: str = "ssl_key_password") -> None:
        self._password = password
        self._setting = setting
        self.used = ""
        """The setting whose password was given to OpenSSL; empty if OpenSSL did not ask for one."""

    def __call__(self) -> str:
        if self._password is None:
            raise ValueError("the private key is encrypted; set ssl_key_password")
        self.used = self._setting
        return self._password.reveal()


def _load_pkcs12(context: ssl.SSLContext, path: str, password: Secret | None) -> None:
    crypto = _cryptography("ssl_keystore")
    pem = crypto.serialization.Encoding.PEM
    stored = _pkcs12("ssl_keystore", path, password)
    if stored.key is None or stored.cert is None:
        raise ValueError("the PKCS12 store does not contain a private key with its certificate")
    passing = Secret(secrets.token_hex(32))
    key = stored.key.private_bytes(
        pem,
        crypto.serialization.PrivateFormat.PKCS8,
        crypto.serialization.BestAvailableEncryption(passing.reveal().encode()),
    )
    chain = [stored.cert, *stored.additional_certs]
    certificates = b"".join(one.certificate.public_bytes(pem) for one in chain)
    _load_pem_text(context, Secret(key.decode()), Secret(certificates.decode()), _Password(passing))


def _load_pem_text(context: ssl.SSLContext, key: Secret, chain: Secret, password: _Password) -> None:
    """Load PEM text through a temporary file, because OpenSSL reads a chain only from a file.

    The file has no name if the system supports that; otherwise, only this user can read it.
    """
    with contextlib.ExitStack() as stack:
        if hasattr(os, "memfd_create"):
            descriptor = os.memfd_create("pem")
            path = f"/proc/self/fd/{descriptor}"
        else:
            descriptor, path = tempfile.mkstemp(suffix=".pem")  # readable only by this user
            stack.callback(os.unlink, path)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(f"{in_lines(key.reveal())}\n{in_lines(chain.reveal())}\n")
            file.flush()
            context.load_cert_chain(path, password=password)


def _pem_of(path: str) -> str:
    with open(
        path, encoding="ascii", errors="replace"
    ) as file:  # only the text around the blocks may be non-ASCII
        return file.read()


# Files


def _bytes_of(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _kind(prefix: str, path: str, named: str | None) -> str:
    """Return the configured type of a file, or detect it from the beginning of the file: PEM or PKCS12."""
    with open(path, "rb") as file:
        start = file.read(64 * 1024)
    is_java, is_pem = start[:4] in (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce"), b"-----BEGIN " in start
    del start  # a traceback that shows locals must not show the content of a key store
    if is_java:
        raise ValueError(
            f"the file is a Java key store (JKS), which only Java can read; convert it with keytool -importkeystore "
            f"-srckeystore {path} -destkeystore {path}.p12 -deststoretype PKCS12 and set {prefix}_type='PKCS12'"
        )
    if named is not None:
        return named
    return "PEM" if is_pem else "PKCS12"


def _pkcs12(prefix: str, path: str, password: Secret | None) -> Any:
    pkcs12 = _cryptography(prefix).pkcs12
    # No local variable contains the data, because a traceback may show it.
    try:
        return pkcs12.load_pkcs12(_bytes_of(path), None if password is None else password.reveal().encode())
    except ValueError:
        pass
    raise ValueError(store_problem(_bytes_of(path), prefix, password is not None))


def _cryptography(prefix: str) -> Any:
    """Return the modules of the library that reads PKCS12."""
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.serialization import pkcs12
    except ImportError:
        raise ConfigError(
            f"{prefix}_location: PKCS12 requires the cryptography package (pip install 'aioproducer[pkcs12]'); PEM "
            "does not",
            setting=f"{prefix}_location",
            value=None,
        ) from None
    return _Crypto(serialization, pkcs12)


class _Crypto:
    def __init__(self, serialization: Any, pkcs12: Any) -> None:
        self.serialization = serialization
        self.pkcs12 = pkcs12


@contextlib.contextmanager
def _explained(setting: str, source: str) -> Iterator[None]:
    """Turn a file error or an OpenSSL error into a ConfigError that names the setting but quotes no content."""
    try:
        yield
    except ConfigError:
        raise
    except ssl.SSLError as error:
        why = f"OpenSSL can't use it ({error.reason or error})"
    except OSError as error:
        why = error.strerror or type(error).__name__
    except ValueError as error:
        why = str(error)
    else:
        return
    raise ConfigError(f"{setting}: {source}: {why}", setting=setting, value=None)


@contextlib.contextmanager
def _named_problem(path: str, what: str) -> Iterator[None]:
    """Describe what is wrong with a certificate or revocation list file, because OpenSSL does not."""
    try:
        yield
    except ssl.SSLError:
        if not os.path.isfile(path):
            raise
        raise ValueError(trusted_problem(_bytes_of(path), what)) from None


@contextlib.contextmanager
def _explained_own(certificate: PemSource, key: PemSource, password: _Password) -> Iterator[None]:
    """Turn an error in this client's certificate or key into a ConfigError that names the setting at fault."""
    guilty = key
    sources = (certificate, key)
    try:
        yield
    except ssl.SSLError as error:
        if all(source.text is not None or os.path.isfile(source.name) for source in sources):
            guilty, why = own_problem(_read(certificate), _read(key), error.reason, password.used)
        else:  # a pipe cannot be read a second time
            why = f"OpenSSL can't use it ({error.reason or error})"
    except OSError as error:
        why = error.strerror or type(error).__name__
        unread = (source for source in sources if source.text is None)
        guilty = next((source for source in unread if not _is_readable(source.name)), certificate)
    except ValueError as error:
        why = str(error)
    else:
        return
    raise ConfigError(f"{guilty.setting}: {guilty.name}: {why}", setting=guilty.setting, value=None)


def _is_readable(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.R_OK)


def certificate_name(host: str) -> str:
    """Return the name that the broker's certificate must contain: the host without an address scope or a trailing
    dot."""
    return host.partition("%")[0].rstrip(".")


# Errors


_UNKNOWN_ISSUER = (
    "set ssl_truststore_location (or ssl_truststore_certificates) to the certificate of the authority that "
    "signed it"
)
_OTHER_NAME = (
    "the name that the client connects to must be in the certificate; change bootstrap_servers, the broker's "
    "advertised.listeners, or the certificate"
)
_CERTIFICATE_HINTS = {
    2: _UNKNOWN_ISSUER,
    9: "compare this machine's clock with the broker's",
    10: "the broker needs a new certificate",
    18: _UNKNOWN_ISSUER,
    19: _UNKNOWN_ISSUER,
    20: _UNKNOWN_ISSUER,
    21: _UNKNOWN_ISSUER,
    62: _OTHER_NAME,
    64: _OTHER_NAME,
}
"""Advice about rejected certificates, keyed by OpenSSL's code (X509_V_ERR_... in x509_vfy.h)."""


def handshake_error(who: object, error: ssl.SSLError) -> TlsError:
    """Return the error for a failed handshake."""
    reason = (error.reason or "").upper()
    if isinstance(error, ssl.SSLCertVerificationError):
        why = f"the broker's certificate was rejected: {escaped(error.verify_message)}"
        if hint := _CERTIFICATE_HINTS.get(error.verify_code):
            why = f"{why}; {hint}"
    elif reason in _PLAINTEXT:
        why = "the peer does not speak TLS: is it a PLAINTEXT or SASL_PLAINTEXT listener, or not a Kafka broker?"
    else:
        hint = next((hint for end, hint in _HINTS.items() if reason.endswith(end)), "")
        why = f"the TLS handshake failed: {hint or 'OpenSSL reports an error'} ({reason or escaped(str(error))})"
    return TlsError(f"{who}: {why}")
