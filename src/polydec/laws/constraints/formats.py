"""Formats of strings as expressions: a string has the format where the whole of it matches.

They are as exact as an expression can be, and where it cannot be (which second is a leap second, what a coded label spells)
a few strings are left out, never let in; docs/constraints.md lists them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from polydec.laws.constraints.patterns import library_pattern

_LEAP = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DATE = (
    "(?:(?:[0-9]{3}[1-9]|[0-9]{2}[1-9][0-9]|[0-9][1-9][0-9]{2}|[1-9][0-9]{3})-"
    "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    f"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP}-02-29)"
)
_TIME = (
    "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:[.][0-9]+)?"
    "(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)
_DURATION = (
    "P(?:(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)"
    "(?:T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S))?"
    "|T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)|[0-9]+W)"
)
_LABEL = (  # at most 63 characters, and no two hyphens at its third and fourth place: those are coded names
    "(?:[a-zA-Z0-9](?:[a-zA-Z0-9-]?[a-zA-Z0-9])?"
    "|[a-zA-Z0-9][a-zA-Z0-9-](?:[a-zA-Z0-9][a-zA-Z0-9-]{0,59}[a-zA-Z0-9]"
    "|-[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,58}[a-zA-Z0-9])?))"
)
_HOST = f"{_LABEL}(?:[.]{_LABEL})*"
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_V4 = f"(?:{_BYTE}[.]){{3}}{_BYTE}"
_H = "[0-9a-fA-F]{1,4}"
_LAST = f"(?:{_H}:{_H}|{_V4})"
_V6 = "(?:{})".format(
    "|".join(
        [
            f"(?:{_H}:){{6}}{_LAST}",
            f"::(?:{_H}:){{5}}{_LAST}",
            *(
                f"(?:(?:{_H}:){{0,{before}}}{_H})?::(?:{_H}:){{{4 - before}}}{_LAST}"
                for before in range(5)
            ),
            f"(?:(?:{_H}:){{0,5}}{_H})?::{_H}",
            f"(?:(?:{_H}:){{0,6}}{_H})?::",
        ]
    )
)
_HEX = "[0-9a-fA-F]"
_FREE = "[a-zA-Z0-9._~!$&'()*+,;=-]"
_CODED = "%[0-9a-fA-F]{2}"
_SIGN = f"(?:[a-zA-Z0-9._~!$&'()*+,;=:@-]|{_CODED})"
_AUTHORITY = (
    f"(?:(?:[a-zA-Z0-9._~!$&'()*+,;=:-]|{_CODED})*@)?"
    rf"(?:\[(?:{_V6}|[vV]{_HEX}+[.](?:[a-zA-Z0-9._~!$&'()*+,;=:-])+)\]|(?:{_FREE}|{_CODED})*)(?::[0-9]*)?"
)
_SEGMENTS = f"(?:/{_SIGN}*)*"
_TAIL = rf"(?:\?(?:{_SIGN}|[/?])*)?(?:#(?:{_SIGN}|[/?])*)?"
_NET = f"//{_AUTHORITY}{_SEGMENTS}"
_ROOTED = f"/(?:{_SIGN}+{_SEGMENTS})?"
_URI = f"[a-zA-Z][a-zA-Z0-9+.-]*:(?:{_NET}|{_ROOTED}|{_SIGN}+{_SEGMENTS})?{_TAIL}"
_PLAIN = f"(?:[a-zA-Z0-9._~!$&'()*+,;=@-]|{_CODED})+"
_POINTER = "(?:/(?:[^/~]|~[01])*)*"
_ATOM = "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]+"


def _uuid(version: str) -> str:
    return f"{_HEX}{{8}}-{_HEX}{{4}}-{version}-{_HEX}{{12}}"


FORMATS: Mapping[str, str] = MappingProxyType(
    {
        "date": _DATE,
        "time": _TIME,
        "date-time": f"{_DATE}[tT]{_TIME}",
        "duration": _DURATION,
        "email": rf"{_ATOM}(?:[.]{_ATOM})*@(?:{_HOST}|\[{_V4}\])",
        "hostname": _HOST,
        "ipv4": _V4,
        "ipv6": _V6,
        "uuid": _uuid(f"{_HEX}{{4}}-{_HEX}{{4}}"),
        **{
            f"uuid{version}": _uuid(f"{version}{_HEX}{{3}}-[89abAB]{_HEX}{{3}}")
            for version in range(1, 9)
        },
        "uri": _URI,
        "uri-reference": f"(?:{_URI}|(?:{_NET}|{_ROOTED}|{_PLAIN}{_SEGMENTS})?{_TAIL})",
        "json-pointer": _POINTER,
        "relative-json-pointer": f"(?:0|[1-9][0-9]*)(?:#|{_POINTER})",
        "idn-email": rf"{_ATOM}(?:[.]{_ATOM})*@{_HOST}",
        "idn-hostname": _HOST,
        "iri": _URI,
        "iri-reference": f"(?:{_URI}|(?:{_NET}|{_ROOTED}|{_PLAIN}{_SEGMENTS})?{_TAIL})",
        "uri-template": f"(?:{_URI}|(?:{_NET}|{_ROOTED}|{_PLAIN}{_SEGMENTS})?{_TAIL})",
    }
)
"""Of each format what the whole string matches."""

UNKEPT = frozenset({"regex"})
"""Formats of the standard that no expression describes. What is no standard's says nothing, by the
standard.
"""
LONGEST: Mapping[str, int] = MappingProxyType({"hostname": 253, "idn-hostname": 253})
"""Of a format the most characters."""


def format_pattern(name: str) -> str:
    """The expression of a format, which the whole string matches."""
    return f"^(?:{FORMATS[name]})$"


def with_patterns(schema: Any) -> Any:
    """A schema as the library reads it: formats are expressions, and expressions are in its
    dialect.

    Formats that are in no standard say nothing, and are left out.
    """
    if isinstance(schema, list):
        return [with_patterns(x) for x in schema]
    if not isinstance(schema, Mapping):
        return schema
    out = dict[str, Any]()
    for key, value in schema.items():
        # Names of properties stay as they are; expressions among them are translated.
        if key in NAMED and isinstance(value, Mapping):
            named = {name: with_patterns(x) for name, x in value.items()}
            by_pattern = key == "patternProperties"
            if by_pattern:
                out[key] = {library_pattern(k): x for k, x in named.items()}
            else:
                out[key] = named
        elif key == "pattern" and isinstance(value, str):
            out[key] = library_pattern(value)
        elif key in VALUES:
            out[key] = value
        else:
            out[key] = with_patterns(value)
    # A format is an expression of our own, where it is kept at all.
    kind = schema.get("format")
    if not isinstance(kind, str) or kind in UNKEPT:
        return out
    # The library has formats of its own, which differ: only the expression stays.
    del out["format"]
    if kind not in FORMATS:
        return out
    pattern = format_pattern(kind)
    if kind in LONGEST:
        high = out.get("maxLength", LONGEST[kind])
        if isinstance(high, int):
            out["maxLength"] = min(high, LONGEST[kind])
        else:
            out["maxLength"] = high
    # Two expressions must both match: the second goes into allOf.
    if "pattern" not in out:
        return {**out, "pattern": pattern}
    more = out.get("allOf", [])
    return {**out, "allOf": [*more, {"pattern": pattern}] if isinstance(more, list) else more}


NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keys behind which schemas stand by names of their own."""
VALUES = ("const", "enum", "default", "examples", "x-guidance")
"""Keys behind which no schema stands."""
