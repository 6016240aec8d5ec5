"""Settings as text: argument lists, TOML, YAML and JSON of plain values, in the order given."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

Scalar = str | int | float | bool | None


def arguments_text(arguments: Iterable[str]) -> str:
    """Return an argument list with one option and its values a line, quoted for a POSIX shell."""
    lines: list[list[str]] = []
    for argument in arguments:
        if argument.startswith("--") or not lines:
            lines.append([])
        lines[-1].append(shlex.quote(argument))
    return "".join(" ".join(line) + "\n" for line in lines)


def comments(notes: Iterable[str]) -> str:
    """Return notes as comment lines of TOML or YAML."""
    return "".join(f"# {' '.join(note.split())}\n" for note in notes)


def json_text(settings: Mapping[str, Any]) -> str:
    """Return nested settings as indented JSON."""
    return json.dumps(settings, indent=2) + "\n"


def toml_text(sections: Mapping[str, Mapping[str, Any]]) -> str:
    """Return tables of scalars and of lists of scalars as TOML; empty tables are left out."""
    blocks = [
        f"[{name}]\n" + "".join(f"{key} = {_scalar(value)}\n" for key, value in section.items())
        for name, section in sections.items()
        if section
    ]
    return "\n".join(blocks)


def yaml_text(settings: Mapping[str, Any]) -> str:
    """Return scalars and mappings of scalars as YAML; empty mappings are left out."""
    lines = []
    for key, value in settings.items():
        if isinstance(value, Mapping):
            lines += [f"{key}:", *(f"  {name}: {_scalar(inner)}" for name, inner in value.items())] if value else []
        else:
            lines.append(f"{key}: {_scalar(value)}")
    return "".join(f"{line}\n" for line in lines)


def _scalar(value: Any) -> str:
    """JSON's scalars and lists are TOML's and YAML's, too: but TOML has no null, no surrogates and no raw DEL."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
