"""The JAAS line of Java configurations: accepted and rejected lines, and errors that show nothing of the line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioproducer.settings.jaas import parse_jaas

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


def read(text):
    entry = parse_jaas(text)
    return entry.module, {name: secret.reveal() for name, secret in entry.options.items()}


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (f'{PLAIN} required username="svc" password="pw";', {"username": "svc", "password": "pw"}),
        (f"{PLAIN} required username='svc' password='pw';", {"username": "svc", "password": "pw"}),
        (f"{PLAIN} required username=svc password=pw;", {"username": "svc", "password": "pw"}),
        (f'{PLAIN} required username = "svc"\n  password = "pw" ;', {"username": "svc", "password": "pw"}),
        (f'{PLAIN} REQUIRED username="svc";  ', {"username": "svc"}),
        (f'{PLAIN} optional password="a;b=c d";', {"password": "a;b=c d"}),
        (rf'{PLAIN} required password="say \"hi\" \\ \n";', {"password": 'say "hi" \\ \n'}),
        (f'{PLAIN} required password="";', {"password": ""}),
        (f"{PLAIN} required;", {}),
    ],
)
def test_a_login_module_and_its_options_are_read(text, options):
    assert read(text) == ("PlainLoginModule", options)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "must be 'LoginModule required"),
        ("hunter2", "must be 'LoginModule required"),
        ('"hunter2" required;', "must be 'LoginModule required"),
        (f'{PLAIN} username="svc";', "must be 'LoginModule required"),
        (f'{PLAIN} required username="svc"', "must end with a semicolon"),
        (f'{PLAIN} required username="svc" password="hunter2', "an unclosed quotation mark"),
        (f'{PLAIN} required username="svc" hunter2;', "after option 1"),
        (f'{PLAIN} required username="svc" password="hun"ter2;', "after option 2"),
        (f"{PLAIN} required username=;", "no value for option 1"),
        (f"{PLAIN} required username", "after option 0"),
        (f'{PLAIN} required username="svc"; {PLAIN} required;', "one login module, not several"),
    ],
)
def test_an_invalid_line_is_rejected_without_showing_it(text, problem):
    with pytest.raises(ValueError, match=problem) as raised:
        parse_jaas(text)

    assert "hunter2" not in str(raised.value)
    assert "ter2" not in str(raised.value)


@given(st.text(max_size=60), st.sampled_from(["", f"{PLAIN} required ", f'{PLAIN} required a="']))
def test_no_text_raises_anything_but_value_error(text, before):
    try:
        parse_jaas(before + text)
    except ValueError:
        return


VALUES = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@given(VALUES)
def test_any_quoted_password_is_read_back(password):
    quoted = password.replace("\\", "\\\\").replace('"', '\\"')

    assert read(f'{PLAIN} required password="{quoted}";')[1] == {"password": password}


def test_an_entry_shows_no_value():
    assert "hunter2" not in repr(parse_jaas(f"{PLAIN} required password=hunter2;"))
