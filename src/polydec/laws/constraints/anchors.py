"""What references in a JSON schema point to: pointers, anchors and identifiers, from wherever they stand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urljoin

EACH = (
    "properties",
    "patternProperties",
    "$defs",
    "definitions",
    "dependentSchemas",
    "dependencies",
)
LIST = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
ONE = (
    *("items", "additionalItems", "additionalProperties", "not", "if", "then", "else", "contains"),
    *("propertyNames", "unevaluatedProperties", "unevaluatedItems", "contentSchema"),
)


class UnresolvedReferenceError(ValueError):
    """A reference that points to nothing in the schema, or to what is only known while a value is
    looked at.
    """


def parts_of(schema: Any) -> Iterator[tuple[str, Any]]:
    """The schemas that stand in a schema, each with its way from there as a JSON pointer."""
    if not isinstance(schema, Mapping):
        return
    for key, value in schema.items():
        # Keys of the value are names of their own; only what stands behind them are schemas.
        if key in EACH and isinstance(value, Mapping):
            for name, part in value.items():
                yield f"/{key}/{str(name).replace('~', '~0').replace('/', '~1')}", part
        elif key in LIST and isinstance(value, list):
            yield from ((f"/{key}/{i}", part) for i, part in enumerate(value))
        elif key in ONE:
            yield f"/{key}", value


def resolve_base_uri(schema: Any, base: str) -> str:
    """Compute the base address of a schema: its own `$id`, where it has one.

    Args:
        schema: The schema.
        base: The address that holds where it stands.

    Returns:
        The address that references inside the schema start from.
    """
    if isinstance(schema, Mapping):
        own = schema.get("$id")
    else:
        own = None
    # An `$id` that is only a fragment is an anchor of draft 7, not an address.
    if not isinstance(own, str) or own.startswith("#"):
        return base
    return urljoin(base, own).removesuffix("#")


@dataclass
class ReferenceResolver:
    """Finds what references point to. All that may be pointed to is found when it is made.

    Attributes:
        root: The schema.
    """

    root: Any
    _resources: dict[str, Any] = field(default_factory=dict[str, Any])
    _named: dict[tuple[str, str], tuple[Any, str]] = field(
        default_factory=dict[tuple[str, str], tuple[Any, str]]
    )
    _dynamic: dict[str, int] = field(default_factory=dict[str, int])

    def __post_init__(self) -> None:
        self._resources[""] = self.root
        # All parts of the schema are visited, each with the address that holds there.
        waiting = [(self.root, "")]
        while waiting:
            schema, base = waiting.pop()
            if not isinstance(schema, Mapping):
                continue
            here = resolve_base_uri(schema, base)
            if here != base or schema is self.root:
                self._resources[here] = schema
            self._note(schema, here)
            waiting += [(part, here) for _, part in parts_of(schema)]

    def _note(self, schema: Mapping[str, Any], base: str) -> None:
        for key in ("$anchor", "$dynamicAnchor"):
            if isinstance(schema.get(key), str):
                # An anchor is named by the address and its name together.
                self._named[base, schema[key]] = schema, base
        if isinstance(schema.get("$dynamicAnchor"), str):
            name = schema["$dynamicAnchor"]
            self._dynamic[name] = self._dynamic.get(name, 0) + 1
        if schema.get("$recursiveAnchor") is True:
            self._dynamic["$recursive"] = self._dynamic.get("$recursive", 0) + 1
        own = schema.get("$id")
        if isinstance(own, str) and own.startswith("#"):  # draft 7's form of an anchor
            self._named[base, own[1:]] = schema, base

    def resolve_target(self, key: str, ref: str, base: str) -> tuple[Any, str]:
        """Find what a reference points to.

        Args:
            key: The keyword: `$ref`, `$dynamicRef` or `$recursiveRef`.
            ref: Its value.
            base: The address that holds where it stands.

        Returns:
            The schema, and the address that holds there.

        Raises:
            UnresolvedReferenceError: It points to nothing in this schema, or to several places.
        """
        if key == "$recursiveRef":
            dynamic = "$recursive"
        else:
            dynamic = ref.partition("#")[2]
        # A dynamic reference with one possible target is an ordinary reference.
        if key != "$ref" and self._dynamic.get(dynamic, 0) > 1:
            raise UnresolvedReferenceError(
                f"{key} {ref!r} may point to several places: only one is followed"
            )
        # Joined by hand where only a fragment differs: urljoin does not know every scheme.
        address, _, fragment = (
            base + ref if ref.startswith("#") else urljoin(base, ref)
        ).partition("#")
        fragment = unquote(fragment)
        if address not in self._resources:
            raise UnresolvedReferenceError(f"{key} {ref!r} points out of the schema")
        # A fragment with a slash is a path into the document, any other one a name.
        if fragment and not fragment.startswith("/"):
            if (address, fragment) not in self._named:
                raise UnresolvedReferenceError(f"{key} {ref!r} points to nothing")
            return self._named[address, fragment]
        return self._pointed(self._resources[address], address, fragment, f"{key} {ref!r}")

    def follow_reference(self, ref: str) -> Any:
        """What a reference points to, wherever it stands; None where that is not plain, as there
        are several addresses.
        """
        # With several addresses the target depends on where the reference stands.
        if len({id(x) for x in self._resources.values()}) > 1:
            return None
        try:
            return self.resolve_target("$ref", ref, resolve_base_uri(self.root, ""))[0]
        except UnresolvedReferenceError:
            return None

    def _pointed(self, schema: Any, base: str, pointer: str, called: str) -> tuple[Any, str]:
        at = schema
        for part in pointer.split("/")[1:]:
            # Escapes of JSON pointers: ~1 is a slash, ~0 a tilde.
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(at, list) and name.isdecimal() and int(name) < len(at):
                at = at[int(name)]
            elif isinstance(at, Mapping) and name in at:
                at = at[name]
            else:
                raise UnresolvedReferenceError(f"{called} points to nothing")
            # A part on the way may have an address of its own.
            base = resolve_base_uri(at, base)
        return at, base
