"""The formats of JSON Schema strings as regular expressions.

Each matches only valid strings, not all of them: a date has no 29 February, a host name no more than four labels.
Sources: RFC 3339 (date, time, duration), 5321 and 1123 (email, host name), 2673 and 4291 (addresses), 3986 (URI), 6901
(JSON pointer), 4122 (UUID).
"""

from __future__ import annotations

from functools import cache

from .regex import Regex

_YEAR = r"(?:000[1-9]|00[1-9]\d|0[1-9]\d\d|[1-9]\d{3})"
_DAY = r"(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|02-(?:0[1-9]|1\d|2[0-8]))"
_DATE = f"{_YEAR}-{_DAY}"
_TIME = r"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,6})?(?:Z|[+-](?:[01]\d|2[0-3]):[0-5]\d)"
_CLOCK = r"(?:\d{1,6}H(?:\d{1,6}M(?:\d{1,6}S)?)?|\d{1,6}M(?:\d{1,6}S)?|\d{1,6}S)"
_SPAN = r"(?:\d{1,6}Y(?:\d{1,6}M(?:\d{1,6}D)?)?|\d{1,6}M(?:\d{1,6}D)?|\d{1,6}D)"
_DURATION = rf"P(?:\d{{1,6}}W|{_SPAN}(?:T{_CLOCK})?|T{_CLOCK})"
_LABEL = r"[A-Za-z0-9]{1,20}(?:-[A-Za-z0-9]{1,12}){0,2}"
_HOST = rf"(?:{_LABEL}\.){{1,3}}[A-Za-z]{{2,10}}"
_HOSTNAME = rf"{_LABEL}(?:\.{_LABEL}){{0,4}}"
_EMAIL = rf"[A-Za-z0-9_+-]{{1,16}}(?:\.[A-Za-z0-9_+-]{{1,12}})?@{_HOST}"
_OCTET = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_IPV4 = rf"{_OCTET}(?:\.{_OCTET}){{3}}"
_H = "[0-9a-fA-F]{1,4}"
_IPV6 = "|".join(
    [f"(?:{_H}:){{7}}{_H}", f"(?:{_H}:){{1,7}}:", f"{_H}:(?::{_H}){{1,6}}", f":(?::{_H}){{1,7}}", "::"]
    + [f"(?:{_H}:){{1,{7 - n}}}(?::{_H}){{1,{n}}}" for n in range(1, 6)]
)
_PCHAR = r"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"
_NAME = r"(?:[A-Za-z0-9._~-]|%[0-9A-Fa-f]{2})"
_SEGMENT = (
    r"(?:[A-Za-z0-9._~!$&'()*+,;=@-]|%[0-9A-Fa-f]{2})"  # no colon: a relative reference must not look like a scheme
)
_QUERY = rf"(?:\?(?:{_PCHAR}|[/?])*)?(?:#(?:{_PCHAR}|[/?])*)?"
_URI = (
    rf"[A-Za-z][A-Za-z0-9+.-]{{0,15}}:(?://(?:{_NAME}+(?::(?:[1-5]\d{{4}}|\d{{1,4}}))?)?(?:/{_PCHAR}*)*"
    rf"|{_PCHAR}+(?:/{_PCHAR}*)*){_QUERY}"
)
_REFERENCE = rf"(?:{_URI}|/?{_SEGMENT}+(?:/{_PCHAR}*)*{_QUERY})"
_POINTER = r"(?:/(?:[^/~]|~[01])*)*"

FORMATS: dict[str, str] = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": _DURATION,
    "email": _EMAIL,
    "idn-email": _EMAIL,
    "hostname": _HOSTNAME,
    "idn-hostname": _HOSTNAME,
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "uri": _URI,
    "iri": _URI,
    "uri-reference": _REFERENCE,
    "iri-reference": _REFERENCE,
    "uri-template": _REFERENCE,
    "uuid": "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    "json-pointer": _POINTER,
    "relative-json-pointer": rf"(?:0|[1-9]\d{{0,5}})(?:#|{_POINTER})",
}


@cache
def string_format(name: str) -> Regex | None:
    """The expression of a format; None for one that is not known."""
    pattern = FORMATS.get(name)
    return None if pattern is None else Regex.whole(pattern)
