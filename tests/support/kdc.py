"""A temporary Kerberos realm for the tests: MIT's key distribution centre (KDC) on a free port."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

from aioproducer.testing.plugin import is_ci

REALM = "TEST.EXAMPLE"
JVMS = Path("/usr/lib/jvm")
"""The directory in which Debian installs each Java."""
_TOOLS = ("krb5kdc", "kdb5_util", "kadmin.local", "kinit")


class Kdc:
    """A KDC: the environment variables that point to it, and its keys."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.krb5_conf = folder / "krb5.conf"
        kdc_conf = folder / "kdc.conf"
        self.environment = {"KRB5_CONFIG": str(self.krb5_conf), "KRB5_KDC_PROFILE": str(kdc_conf)}
        self.krb5_conf.write_text(
            f"""[libdefaults]
 default_realm = {REALM}
 dns_lookup_kdc = false
 dns_lookup_realm = false
 dns_canonicalize_hostname = false
 rdns = false
 udp_preference_limit = 1
[realms]
 {REALM} = {{
  kdc = 127.0.0.1:{port}
 }}
[domain_realm]
 localhost = {REALM}
"""
        )
        kdc_conf.write_text(
            f"""[kdcdefaults]
 kdc_listen = 127.0.0.1:{port}
 kdc_tcp_listen = 127.0.0.1:{port}
[realms]
 {REALM} = {{
  database_name = {folder}/principal
  key_stash_file = {folder}/stash
  acl_file = {folder}/acl
  supported_enctypes = aes256-cts-hmac-sha1-96:normal
 }}
[logging]
 kdc = FILE:{folder}/kdc.log
"""
        )

    def run(self, *command: str) -> None:
        """Run one of the Kerberos tools."""
        subprocess.run(
            command, env={**os.environ, **self.environment}, check=True, capture_output=True, timeout=30
        )

    def keytab(self, principal: str) -> str:
        """Create a principal and return the path of the file with its key."""
        path = str(self.folder / f"{principal.replace('/', '-')}.keytab")
        self.run("kadmin.local", "addprinc", "-randkey", principal)
        self.run("kadmin.local", "ktadd", "-k", path, principal)
        return path


@contextmanager
def running(folder: Path) -> Iterator[Kdc]:
    """Run a block with a KDC. If the gssapi package or Debian's krb5-kdc, krb5-admin-server or krb5-user is missing,
    the tests are skipped, or fail: see skip_or_fail."""
    missing = [tool for tool in _TOOLS if shutil.which(tool, path=f"{os.environ['PATH']}:/usr/sbin") is None]
    if importlib.util.find_spec("gssapi") is None:
        missing.append("gssapi")
    if missing:
        skip_or_fail(f"{', '.join(missing)}: install gssapi, krb5-kdc, krb5-admin-server and krb5-user")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    kdc = Kdc(folder, port)
    kdc.run("kdb5_util", "create", "-s", "-P", "master", "-r", REALM)
    process = subprocess.Popen(
        ["krb5kdc", "-n", "-P", str(folder / "pid")],
        env={**os.environ, **kdc.environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _until_it_listens(process, port)
        yield kdc
    finally:
        process.terminate()
        process.wait(10)


def java_or_skip() -> str:
    """Return a Java that can run a broker with GSSAPI. Without one the tests are skipped, or fail: see skip_or_fail."""
    java = java_with_kerberos()
    if java is None:
        skip_or_fail(
            "no Java 17 with jdk.security.jgss: install openjdk-17-jre-headless; test_kerberos.py runs without Java"
        )
    return java


def java_with_kerberos() -> str | None:
    """Return a Java that is new enough for a broker and supports GSSAPI, or None. `make kerberos` also calls this."""
    for java in ("java", *map(str, sorted(JVMS.glob("*/bin/java")))):
        found = shutil.which(java)
        if found is None:
            continue
        listed = subprocess.run([found, "--list-modules"], capture_output=True, text=True, timeout=60)
        version = re.search(r"^jdk\.security\.jgss@(\d+)", listed.stdout, re.MULTILINE)
        if version is not None and int(version[1]) >= 17:
            return found
    return None


def skip_or_fail(message: str) -> NoReturn:
    """Skip a Kerberos test; fail it with KERBEROS_TESTS=1, and with CI=true unless KERBEROS_TESTS=0."""
    wanted = os.environ.get("KERBEROS_TESTS")
    if wanted == "1" or (wanted != "0" and is_ci()):
        pytest.fail(message)
    pytest.skip(message)


def _until_it_listens(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + 10
    while True:
        assert process.poll() is None, "the KDC has ended"
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.02)
