"""Every string that a format lets through is valid by an independent reading of the format."""

from __future__ import annotations

import datetime
import ipaddress
import re
import uuid
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bosquet.grammar.string_formats import FORMATS, string_format


def is_host(text):
    labels = text.split(".")
    return len(text) <= 253 and all(
        re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?", label) for label in labels
    )


def is_email(text):
    local, _, host = text.rpartition("@")
    return 0 < len(local) <= 64 and is_host(host) and not re.search(r"\.\.|^\.|\.$", local)


def is_uri(text):
    parts = urlsplit(text)
    assert parts.port is None or parts.port >= 0
    return (
        bool(parts.scheme)
        and re.fullmatch(r"(?:%[0-9A-Fa-f]{2}|[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=-])*", text) is not None
    )


def is_reference(text):
    urlsplit(text)
    return text != "" and re.fullmatch(r"(?:%[0-9A-Fa-f]{2}|[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=-])*", text) is not None


def is_pointer(text):
    return text == "" or (text.startswith("/") and not re.search("~(?![01])", text))


def is_relative_pointer(text):
    found = re.match(r"0|[1-9][0-9]*", text)
    rest = text[found.end() :] if found else None
    return rest is not None and (rest == "#" or is_pointer(rest))


def is_duration(text):
    date, _, clock = text.removeprefix("P").partition("T")
    return text.startswith("P") and text != "P" and not text.endswith("T") and bool(
        re.fullmatch(r"\d+W|(\d+Y)?(\d+M)?(\d+D)?", date) and re.fullmatch(r"(\d+H)?(\d+M)?(\d+S)?", clock)
    )  # fmt: skip


def parses(parse):
    def check(text):
        parse(text)
        return True

    return check


ORACLES = {
    "date": parses(datetime.date.fromisoformat),
    "time": parses(datetime.time.fromisoformat),
    "date-time": parses(datetime.datetime.fromisoformat),
    "duration": is_duration,
    "email": is_email,
    "hostname": is_host,
    "ipv4": parses(ipaddress.IPv4Address),
    "ipv6": parses(ipaddress.IPv6Address),
    "uri": is_uri,
    "uri-reference": is_reference,
    "uuid": parses(uuid.UUID),
    "json-pointer": is_pointer,
    "relative-json-pointer": is_relative_pointer,
}
SAME_AS = {
    "idn-email": "email",
    "idn-hostname": "hostname",
    "iri": "uri",
    "iri-reference": "uri-reference",
    "uri-template": "uri-reference",
}


def test_every_format_has_an_oracle():
    assert FORMATS.keys() == ORACLES.keys() | SAME_AS.keys()
    assert all(FORMATS[name] == FORMATS[other] for name, other in SAME_AS.items())


@pytest.mark.parametrize("name", sorted(ORACLES))
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_what_a_format_matches_is_valid(name, data):
    written = string_format(name).write()
    python = re.sub(r"\\u\{([0-9a-f]+)\}", lambda m: f"\\U{int(m[1], 16):08x}", written)
    if name.endswith("json-pointer"):  # its "any other character" makes drawing from the expression slow
        text = data.draw(st.text("/~01aé#2", max_size=8))
        if not re.fullmatch(python, text):
            return
    else:
        text = data.draw(st.from_regex(re.compile(python), fullmatch=True))
    assert ORACLES[name](text), text


@pytest.mark.parametrize(
    ("name", "yes", "no"),
    [
        ("date", ["2024-02-28", "1999-12-31"], ["2024-02-30", "2024-1-1", "0000-01-01", "2024-04-31", "x2024-01-01"]),
        ("time", ["23:59:59Z", "12:00:00.5+02:00"], ["24:00:00Z", "12:00:00", "12:60:00Z"]),
        ("date-time", ["2024-01-31T23:59:59Z"], ["2024-01-31 23:59:59Z", "2024-01-31"]),
        ("ipv4", ["127.0.0.1", "255.255.255.255"], ["256.0.0.1", "1.2.3", "01.2.3.4"]),
        ("ipv6", ["::", "::1", "1::", "1:2:3:4:5:6:7:8", "fe80::1:2"], ["1:2", "1::2::3", "12345::"]),
        ("email", ["a@b.no", "first.last+tag@mail.example.com"], ["a@b", ".a@b.no", "a b@c.no", "a..b@c.no"]),
        ("uri", ["https://example.com/a?b=c#d", "mailto:a@b.no", "urn:x:y"], ["example.com", "http//x", "a b:c"]),
        ("uuid", ["123e4567-e89b-12d3-a456-426614174000"], ["123e4567e89b12d3a456426614174000"]),
        ("duration", ["P1Y2M3D", "PT5M", "P3W"], ["P", "PT", "1Y", "P1S"]),
    ],
)  # fmt: skip
def test_examples(name, yes, no):
    python = re.compile(re.sub(r"\\u\{([0-9a-f]+)\}", lambda m: f"\\U{int(m[1], 16):08x}", string_format(name).write()))
    assert [text for text in yes if not python.fullmatch(text)] == []
    assert [text for text in no if python.fullmatch(text)] == []
