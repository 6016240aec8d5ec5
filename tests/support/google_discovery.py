"""Google's description of its REST interfaces, as google-api-python-client ships it: finds methods, checks bodies."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import googleapiclient

DOCUMENTS = Path(googleapiclient.__file__).parent / "discovery_cache" / "documents"
_INTEGERS = {"int64": r"-?\d+", "uint64": r"\d+"}


@dataclass(frozen=True, kw_only=True)
class Match:
    """A method that a call means, with what its path says."""

    id: str
    path: dict[str, str]
    method: Mapping[str, Any]


class Discovery:
    """One document, such as ``compute.v1``."""

    def __init__(self, name: str) -> None:
        self._document = json.loads((DOCUMENTS / f"{name}.json").read_text())
        self.schemas: dict[str, Any] = self._document["schemas"]
        self._common = set(self._document["parameters"])
        root = f"/{self._document['servicePath']}"
        self._methods = [(_pattern(root, method), method) for method in _methods(self._document)]

    def match(self, verb: str, path: str) -> Match | None:
        """Return the method of a call; None: Google has none."""
        for pattern, method in self._methods:
            found = pattern.fullmatch(path) if method["httpMethod"] == verb else None
            if found:
                return Match(id=method["id"], path=dict(found.groupdict()), method=method)
        return None

    def request_problems(self, match: Match, params: Mapping[str, str], body: object) -> list[str]:
        """Return what Google would refuse about a call's parameters and body."""
        known = match.method.get("parameters", {})
        problems = [f"unknown parameter {name}" for name in params if name not in known and name not in self._common]
        for name, value in {**match.path, **params}.items():
            pattern = known.get(name, {}).get("pattern")
            if pattern and not re.fullmatch(pattern, value):
                problems.append(f"{name} {value!r} does not match {pattern}")
        wanted = match.method.get("request")
        if wanted is None:
            return problems + ([] if body is None else ["a body, where none is wanted"])
        return problems + list(self.problems(wanted, body, is_request=True))

    def problems(self, schema: Mapping[str, Any], value: object, *, at: str = "", is_request: bool) -> Iterator[str]:
        """Yield where ``value`` is not what ``schema`` describes: unknown fields, bad enum words, wrong types."""
        if "$ref" in schema:
            schema = self.schemas[schema["$ref"]]
        kind = schema.get("type", "any")
        if kind == "object":
            yield from self._object_problems(schema, value, at=at, is_request=is_request)
        elif kind == "array":
            if not isinstance(value, list):
                yield f"{at}: no list"
                return
            for index, each in enumerate(value):
                yield from self.problems(schema["items"], each, at=f"{at}[{index}]", is_request=is_request)
        else:
            yield from _scalar_problems(schema, kind, value, at=at)

    def _object_problems(self, schema: Mapping[str, Any], value: object, *, at: str, is_request: bool) -> Iterator[str]:
        if not isinstance(value, dict):
            yield f"{at}: no object"
            return
        known, others = schema.get("properties", {}), schema.get("additionalProperties")
        for name, each in value.items():
            field = known.get(name, others)
            where = f"{at}.{name}"
            if field is None:
                yield f"{where}: unknown field"
            elif is_request and _is_output(field):
                yield f"{where}: is told by Google, not asked for"
            else:
                yield from self.problems(field, each, at=where, is_request=is_request)


@functools.cache
def discovery(name: str) -> Discovery:
    """Return a document, read once."""
    return Discovery(name)


def _is_output(field: Mapping[str, Any]) -> bool:
    return bool(field.get("readOnly")) or field.get("description", "").lstrip().startswith("[Output Only]")


def _scalar_problems(schema: Mapping[str, Any], kind: str, value: object, *, at: str) -> Iterator[str]:
    wanted = {"string": str, "boolean": bool, "integer": int, "number": (int, float), "any": object}[kind]
    if not isinstance(value, wanted) or (kind in ("integer", "number") and isinstance(value, bool)):
        yield f"{at}: {value!r} is no {kind}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{at}: {value!r} is none of {', '.join(schema['enum'])}"
    digits = _INTEGERS.get(schema.get("format", ""))
    if kind == "string" and digits and not re.fullmatch(digits, str(value)):
        yield f"{at}: {value!r} is no whole number"


def _methods(node: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    yield from node.get("methods", {}).values()
    for resource in node.get("resources", {}).values():
        yield from _methods(resource)


def _pattern(root: str, method: Mapping[str, Any]) -> re.Pattern[str]:
    """Return an expression for the paths of a method, with a group for each of its parameters."""
    path = re.escape(root + method["path"])
    path = re.sub(r"\\\{\\\+(\w+)\\\}", lambda found: f"(?P<{found[1]}>{_inner(method, found[1])})", path)
    return re.compile(re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^/]+)", path))


def _inner(method: Mapping[str, Any], name: str) -> str:
    return method["parameters"][name]["pattern"].strip("^$")
