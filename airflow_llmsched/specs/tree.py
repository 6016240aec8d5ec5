"""A spec as a tree of plain values that remember their line. Reads YAML safely: bounded, untagged, no key twice.

Scalars follow the YAML 1.2 core rules: ``no`` and ``12:30`` are text, ``012`` is twelve. Reading works on the event
stream of PyYAML's C parser, so that limits hold before anything is built: a deep, huge or self-multiplying document
costs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from airflow_llmsched.errors import SpecError

MAX_BYTES = 1024**2
MAX_DEPTH = 24
MAX_ALIASES = 64
MAX_NODES = 20_000
MAX_INTEGER = 2**63

_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]{1,80}")
_INT = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_WORDS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf")),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}

Path = tuple[str | int, ...]


@dataclass(slots=True)
class Node:
    """A value and its line (None when it came from no file). ``num_nodes`` counts values with aliases followed."""

    value: Any
    line: int | None
    num_nodes: int = 1
    key_lines: dict[str, int] = field(default_factory=dict)

    def plain(self) -> Any:
        """Return dicts, lists and scalars without lines."""
        if isinstance(self.value, dict):
            return {key: child.plain() for key, child in self.value.items()}
        if isinstance(self.value, list):
            return [child.plain() for child in self.value]
        return self.value

    def line_of(self, path: Path) -> int | None:
        """Return the line of ``path``, or of the innermost part of it that exists."""
        node, line = self, self.line
        for part in path:
            if isinstance(node.value, dict) and part in node.value:
                line = node.key_lines.get(str(part), line)
                node = node.value[str(part)]
            elif isinstance(node.value, list) and isinstance(part, int) and part < len(node.value):
                node = node.value[part]
                line = node.line if node.line is not None else line
            else:
                break
        return line


def dotted(path: Path) -> str:
    """Write a path as messages show it: ``batch.schedule[1].from``. The root is ``(spec)``; odd keys are quoted."""
    text = "".join(
        f".{part}" if isinstance(part, str) and _PLAIN_KEY.fullmatch(part) else f"[{part!r}]" for part in path
    )
    return text.removeprefix(".") or "(spec)"


def parse(text: str, *, file: str, whole: str = "(spec)") -> Node:
    """Read one YAML document, which errors call ``whole``. Raises ``SpecError`` with the line of what is wrong."""
    return _Reader(file, whole).read(text)


def from_plain(value: object, *, file: str) -> Node:
    """Wrap JSON-like values, under the same limits as a file. Raises ``SpecError`` for any other kind of value."""
    return _wrap(value, (), [0], file)


def _wrap(value: object, path: Path, count: list[int], file: str) -> Node:
    count[0] += 1
    if len(path) > MAX_DEPTH or count[0] > MAX_NODES:
        raise SpecError(path=dotted(path[:3]), hint="is nested too deep or holds too many values", file=file)
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise SpecError(path=dotted(path), value=key, hint="has a key that is not text", file=file)
        return Node({key: _wrap(child, (*path, key), count, file) for key, child in value.items()}, None)
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray)):
        return Node([_wrap(child, (*path, index), count, file) for index, child in enumerate(value)], None)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= MAX_INTEGER:
        raise SpecError(path=dotted(path), hint="is too large; a whole number must stay below 2^63", file=file)
    if isinstance(value, str) and len(value) > MAX_BYTES:
        raise SpecError(path=dotted(path), hint=f"is longer than {MAX_BYTES} characters", file=file)
    if value is None or isinstance(value, (str, bool, int, float)):
        return Node(value, None)
    raise SpecError(
        path=dotted(path),
        hint=f"is a {type(value).__name__}; only text, numbers, lists and mappings are read",
        file=file,
    )


@dataclass(slots=True)
class _Open:
    """A collection whose end has not been met. ``key`` is set while a mapping waits for that key's value."""

    node: Node
    path: Path
    anchor: str | None
    key: str | None = None


class _Reader:
    """Builds one tree from events, without recursion."""

    def __init__(self, file: str, whole: str) -> None:
        self._file = file
        self._whole = whole
        self._stack: list[_Open] = []
        self._anchors: dict[str, Node | None] = {}
        self._num_aliases = 0
        self._root: Node | None = None

    def read(self, text: str) -> Node:
        try:
            data = text.encode()
        except UnicodeEncodeError as error:
            raise SpecError(path=self._whole, hint=f"is not valid Unicode text: {error}", file=self._file) from None
        if len(data) > MAX_BYTES:
            raise SpecError(
                path=self._whole,
                hint=f"is {len(data)} bytes long; at most {MAX_BYTES} are read",
                file=self._file,
            )
        try:
            for event in self._events(data):
                self._take(event)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            hint = f"is not valid YAML: {error.problem or error.context}"
            raise SpecError(
                path=self._whole, hint=hint, file=self._file, line=mark.line + 1 if mark else None
            ) from None
        except yaml.YAMLError as error:
            raise SpecError(path=self._whole, hint=f"is not valid YAML: {error}", file=self._file) from None
        if self._root is None:
            raise SpecError(path=self._whole, hint="is empty; start with 'version: 1'", file=self._file)
        return self._root

    @staticmethod
    def _events(data: bytes) -> Iterator[Any]:
        return iter(yaml.parse(data, Loader=yaml.CSafeLoader))

    def _take(self, event: Any) -> None:
        line = event.start_mark.line + 1
        if isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            self._close()
        elif isinstance(event, yaml.AliasEvent):
            self._add(self._resolve_alias(event.anchor, line), line)
        elif isinstance(event, yaml.ScalarEvent):
            self._take_scalar(event, line)
        elif isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
            self._open(event, line)
        elif isinstance(event, yaml.DocumentStartEvent) and self._root is not None:
            raise self._error("holds a second document; keep one per file", line)

    def _take_scalar(self, event: Any, line: int) -> None:
        self._refuse_tag(event, line)
        top = self._stack[-1] if self._stack else None
        if top is not None and isinstance(top.node.value, dict) and top.key is None:
            if event.value in top.node.value:
                first = top.node.key_lines[event.value]
                raise self._error(f"has the key {event.value!r} twice (first on line {first})", line, top.path)
            top.key = event.value
            top.node.key_lines[event.value] = line
            return
        node = Node(self._scalar(event, line), line)
        if event.anchor:
            self._anchors[event.anchor] = node
        self._add(node, line)

    def _scalar(self, event: Any, line: int) -> Any:
        text: str = event.value
        if not event.implicit[0]:
            return text
        if text in _WORDS:
            return _WORDS[text]
        if _INT.fullmatch(text):
            if len(text) > 20 or abs(int(text)) >= MAX_INTEGER:
                raise self._error("is too large; a whole number must stay below 2^63", line, self._here())
            return int(text)
        return float(text) if len(text) < 400 and _FLOAT.fullmatch(text) else text

    def _open(self, event: Any, line: int) -> None:
        self._refuse_tag(event, line)
        if len(self._stack) >= MAX_DEPTH:
            raise self._error(f"is nested deeper than {MAX_DEPTH} levels", line)
        top = self._stack[-1] if self._stack else None
        if top is not None and isinstance(top.node.value, dict) and top.key is None:
            raise self._error("has a key that is not text", line, top.path)
        value: Any = {} if isinstance(event, yaml.MappingStartEvent) else []
        if event.anchor:
            self._anchors[event.anchor] = None
        self._stack.append(_Open(Node(value, line), self._here(), event.anchor))

    def _close(self) -> None:
        done = self._stack.pop()
        if done.anchor:
            self._anchors[done.anchor] = done.node
        self._add(done.node, done.node.line)

    def _add(self, node: Node, line: int | None) -> None:
        if not self._stack:
            self._root = node
            return
        top = self._stack[-1]
        if isinstance(top.node.value, list):
            top.node.value.append(node)
        elif top.key is None:
            raise self._error("has a key that is not text", line, top.path)
        else:
            top.node.value[top.key] = node
            top.key = None
        top.node.num_nodes += node.num_nodes
        if top.node.num_nodes > MAX_NODES:
            raise self._error(f"holds more than {MAX_NODES} values once its aliases are followed", line)

    def _resolve_alias(self, anchor: str | None, line: int) -> Node:
        self._num_aliases += 1
        if self._num_aliases > MAX_ALIASES:
            raise self._error(f"has more than {MAX_ALIASES} aliases", line)
        if anchor is None or anchor not in self._anchors:
            raise self._error(f"has the alias *{anchor}, but nothing is anchored as &{anchor} above it", line)
        node = self._anchors[anchor]
        if node is None:
            raise self._error(f"has the alias *{anchor} inside its own anchor", line)
        return node

    def _refuse_tag(self, event: Any, line: int) -> None:
        if event.tag is not None:
            raise self._error(f"has the tag {event.tag!r}; tags are not read, quote text instead", line, self._here())

    def _here(self) -> Path:
        """Return the path of the value that comes next."""
        if not self._stack:
            return ()
        top = self._stack[-1]
        part: str | int | None = len(top.node.value) if isinstance(top.node.value, list) else top.key
        return top.path if part is None else (*top.path, part)

    def _error(self, hint: str, line: int | None, path: Path = ()) -> SpecError:
        return SpecError(path=dotted(path) if path else self._whole, hint=hint, file=self._file, line=line)
