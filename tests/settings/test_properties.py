"""Properties files are read as java.util.Properties reads them, and errors name file and line."""

from __future__ import annotations

import contextlib
import os
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioproducer import ConfigError, Producer
from aioproducer.settings.properties import MAX_SIZE, read_properties
from aioproducer.types import Secret


def written(tmp_path, text, encoding="latin-1"):
    path = tmp_path / "client.properties"
    path.write_bytes(text.encode(encoding) if isinstance(text, str) else text)
    return path


def pairs(path):
    return [(found.key, found.value) for found in read_properties(path)]


GOLDEN = [
    ("a=1", [("a", "1")]),
    ("a:1", [("a", "1")]),
    ("a 1", [("a", "1")]),
    ("a\t1", [("a", "1")]),
    ("a = 1", [("a", "1")]),
    ("a : 1", [("a", "1")]),
    ("a   1  ", [("a", "1  ")]),
    ("  a=1", [("a", "1")]),
    ("a", [("a", "")]),
    ("a=", [("a", "")]),
    ("=1", [("", "1")]),
    (":1", [("", "1")]),
    (" = 1", [("", "1")]),
    ("a==1", [("a", "=1")]),
    ("a=:1", [("a", ":1")]),
    ("a:=1", [("a", "=1")]),
    ("a\\=b=1", [("a=b", "1")]),
    ("a\\:b:1", [("a:b", "1")]),
    ("a\\ b=1", [("a b", "1")]),
    ("a=b\\ c", [("a", "b c")]),
    ("# comment\na=1", [("a", "1")]),
    ("! comment\na=1", [("a", "1")]),
    ("  # comment\na=1", [("a", "1")]),
    ("a=1 # no comment", [("a", "1 # no comment")]),
    ("# goes on\\\na=1", [("a", "1")]),
    ("a=1\\\n   2", [("a", "12")]),
    ("a=1\\\n  2\\\n  3", [("a", "123")]),
    ("a=1\\\\\nb=2", [("a", "1\\"), ("b", "2")]),
    ("a=1\\\\\\\nb=2", [("a", "1\\b=2")]),
    ("a=1\\", [("a", "1")]),
    ("a=1\\\n", [("a", "1")]),
    ("a=1\\\n\nb=2", [("a", "1"), ("b", "2")]),
    ("a=1\\\n# no comment\nb=2", [("a", "1# no comment"), ("b", "2")]),
    ("\\\n  a=1", [("a", "1")]),
    ("\\\n# comment\na=1", [("a", "1")]),
    ("\\\n  ! comment\na=1", [("a", "1")]),
    ("\\\n\na=1", [("a", "1")]),
    ("\\\n\\\n# comment\\\na=1", [("a", "1")]),
    ("=\\\n# no comment", [("", "# no comment")]),
    ("\\\n\n", []),
    ("\\\n# comment", []),
    ("\\\n", [("", "")]),
    ("\\", [("", "")]),
    ("a=1\xa0", [("a", "1\xa0")]),
    ("a=\xa01", [("a", "\xa01")]),
    ("a=1\x85", [("a", "1\x85")]),
    ("a\xa0b=1", [("a\xa0b", "1")]),
    ("a\x85b 1", [("a\x85b", "1")]),
    ("\xa0a=1", [("\xa0a", "1")]),
    ("a\\\n  b=1", [("ab", "1")]),
    ("a=1\r\nb=2", [("a", "1"), ("b", "2")]),
    ("a=1\rb=2", [("a", "1"), ("b", "2")]),
    ("a=1\\\r\n  2", [("a", "12")]),
    ("\n\n  \n\ta=1\n", [("a", "1")]),
    ("a=\\t\\n\\r\\f", [("a", "\t\n\r\x0c")]),
    ("a=\\q\\\"\\'", [("a", "q\"'")]),
    ("a=\\u0041\\u00e9", [("a", "Aé")]),
    ("a=\\u00E9", [("a", "é")]),
    ("a=\\u004", None),
    ("a=\\uxyz1", None),
    ("\\u0041=1", [("A", "1")]),
    ("a=\\\\u0041", [("a", "\\u0041")]),
    ("a=\\\\\\u0041", [("a", "\\A")]),
    ("a=é", [("a", "é")]),
    ("a=C:\\temp\\new", [("a", "C:\temp\new")]),
    ("a\x0c1", [("a", "1")]),
    ("a=\x0c1", [("a", "1")]),
    ("\x0ca=1", [("a", "1")]),
    ("a=1\x0c", [("a", "1\x0c")]),
    ("a=\\ud83d\\ude00", [("a", "😀")]),
    ("a=1\na=2", [("a", "1"), ("a", "2")]),
    ("a=\\ 1", [("a", " 1")]),
    ("a= \\u0020b", [("a", " b")]),
    ("a\\\\=1", [("a\\", "1")]),
    ("a=\\", [("a", "")]),
    ("\\", [("", "")]),
    ("\\\n", [("", "")]),
    ("a\\\n=1", [("a", "1")]),
    ("a\\\n 1", [("a1", "")]),
    ("a \\\n = 1", [("a", "1")]),
    ("a=b=c:d e", [("a", "b=c:d e")]),
]
"""The result of java.util.Properties.load (OpenJDK 17) for each text, in the order of its calls to put. None
means that it raised an exception."""


@pytest.mark.promise(
    "Settings from anywhere", "a properties file is read as Java reads it; errors name file and line"
)
@pytest.mark.parametrize(("text", "expected"), GOLDEN)
def test_a_file_is_read_as_in_java(text, expected, tmp_path):
    path = written(tmp_path, text)

    if expected is None:
        with pytest.raises(ConfigError, match=r"\\u in line 1 must be followed by four hexadecimal digits"):
            pairs(path)
    else:
        assert pairs(path) == expected


def test_all_lines_with_a_malformed_escape_are_named(tmp_path):
    path = written(tmp_path, "a=\\u12\nb=1\nc=\\\n  \\uXXXX\nd=\\u00e9\n")

    with pytest.raises(ConfigError, match=r"\\u in lines 1, 3 must be followed by four hexadecimal digits"):
        pairs(path)


def stored(key: str, value: str) -> str:
    """Return a line as java.util.Properties.store writes it: all characters with a special meaning are escaped."""

    def escaped(text: str, signs: str) -> str:
        out = ""
        for character in text:
            if character in signs or character == "\\":
                out += "\\" + character
            elif " " < character < "\x7f" or character == " ":
                out += character
            else:
                half = character.encode("utf-16-be")
                out += "".join(f"\\u{half[at] << 8 | half[at + 1]:04x}" for at in range(0, len(half), 2))
        return out

    value = escaped(value, "=:#!")
    return escaped(key, "=:#! ") + "=" + ("\\" + value if value.startswith(" ") else value)


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(st.lists(st.tuples(TEXTS.filter(bool), TEXTS), max_size=5))
def test_properties_stored_by_java_are_read_back(tmp_path_factory, properties):
    path = tmp_path_factory.mktemp("stored") / "x.properties"
    path.write_text("#Sat Nov 21\n" + "\n".join(stored(*pair) for pair in properties))

    assert pairs(path) == properties


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_but_config_error(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("bytes") / "x.properties"
    path.write_bytes(data)

    with contextlib.suppress(ConfigError):
        read_properties(path)


def test_the_line_of_a_property_is_that_where_it_begins(tmp_path):
    path = written(tmp_path, "# one\n\na=1\\\n  more\n\nb=2\r\nc=3\rd=4")

    assert [(found.key, found.line) for found in read_properties(path)] == [
        ("a", 3),
        ("b", 6),
        ("c", 7),
        ("d", 8),
    ]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1"])
def test_utf_8_and_latin_1_are_both_read(encoding, tmp_path):
    assert pairs(written(tmp_path, "sasl.username=Zoë", encoding)) == [("sasl.username", "Zoë")]


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda path: None, "there is no such file"),
        (lambda path: path.mkdir(), "it is a directory"),
        (lambda path: os.mkfifo(path), "it is not a regular file"),
        (lambda path: path.write_bytes(b"a=1\nb=\x00\x01"), "it is not text (byte 0x00 in line 2)"),
        (lambda path: path.write_bytes(b"\x7fELF\x02"), "it is not text (byte 0x7f in line 1)"),
        (lambda path: path.write_bytes(b"\x89PNG\r\n\x1a\n"), "it is not text (byte 0x1a in line 2)"),
        (lambda path: path.write_bytes(b"#" * (MAX_SIZE + 1)), f"it is larger than {MAX_SIZE} bytes"),
        (lambda path: path.symlink_to(path), "Too many levels of symbolic links"),
        (lambda path: path.write_bytes(b"a=1\nb=2\nc=\\u12"), "\\u in line 3 must be followed by four"),
    ],
    ids=["missing", "directory", "pipe", "binary", "program", "picture", "huge", "loop", "escape"],
)
def test_a_file_that_cannot_be_read_is_named_with_the_reason(make, problem, tmp_path):
    path = tmp_path / "client.properties"
    make(path)

    with pytest.raises(ConfigError) as raised:
        read_properties(path)

    assert str(raised.value).startswith(f"the properties file {str(path)!r} can't be read: ")
    assert problem in str(raised.value)
    assert raised.value.setting == "from_properties"


def test_a_file_without_permission_is_named(tmp_path, monkeypatch):
    path = written(tmp_path, "a=1")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.open", refuse)

    with pytest.raises(ConfigError, match=f"{re.escape(repr(str(path)))} can't be read: Permission denied"):
        read_properties(path)


@pytest.mark.parametrize("path", [None, 5, b"client.properties", "", "nul\0inside", ["client.properties"]])
def test_an_invalid_path_is_rejected(path):
    with pytest.raises(ConfigError, match="from_properties requires the path of a file"):
        read_properties(path)


def test_a_property_shows_no_value(tmp_path):
    [found] = read_properties(written(tmp_path, "sasl.password=hunter2"))

    assert "hunter2" not in repr(found)


@pytest.mark.parametrize("end", ["\xa0", "\x85", "\u2003", "\u3000"])
def test_a_password_keeps_a_final_blank_other_than_a_space(tmp_path, end):
    login = f'x.PlainLoginModule required username="svc" password=pw{end} ;'
    path = tmp_path / "client.properties"
    path.write_text(
        f"bootstrap.servers=h:1\nsecurity.protocol=SASL_SSL\nsasl.jaas.config={login}\n"
        f"sasl.mechanism=PLAIN\nssl.truststore.location=ca.p12\nssl.truststore.password=pw{end} \t\n",
        encoding="utf-8",
    )

    effective = Producer.from_properties(path).config

    assert effective.ssl_truststore_password == Secret(f"pw{end}")
    assert effective.sasl_plain_password == Secret(f"pw{end}")


def test_an_impossible_path_is_rejected():
    with pytest.raises(ConfigError, match=r"no file can have this name"):
        read_properties("client\ud800.properties")
