"""The reference page of specs (``docs/reference/spec.md``), made from the schema so that it cannot fall behind it."""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources
from typing import Any

from pydantic import BaseModel

from airflow_llmsched.specs import json_schema, presets
from airflow_llmsched.specs.schema import SpecModel
from airflow_llmsched.specs.validate import block_of, fields_of

EXAMPLES = ("transformer.yaml", "stated_traffic.yaml")

_HEAD = """\
# Workload spec

<!-- Made by `llmsched schema --markdown`. Do not edit: change airflow_llmsched/specs/schema.py and make it again. -->

A spec says what to train, on how much, within which limits. `llmsched check SPEC` reads one and lists every mistake
with its line; `llmsched schema` prints a JSON Schema for editors.

- **Quantities carry their unit.** `80GiB` is 80 * 2^30 bytes, `80GB` is 80 * 10^9. `4Mi tokens` is 4 * 2^20 tokens,
  `4M tokens` is 4 * 10^6. Durations are `90s`, `10min`, `36h`, `2d` or `1h30min`; money is `$120` or `120 USD`;
  ratios are `5%`. A bare number where a unit is needed is an error.
- **YAML 1.2 words.** `no` is text, `012` is twelve. No tags, no key twice, at most 1 MiB, 24 levels and 64 aliases.
- **Paths** are relative to the spec's folder. In a DAG-run form they may not leave it.
- **Unknown keys are errors**, with the nearest known key.
"""


def markdown() -> str:
    """Return the whole page."""
    schema = json_schema.json_schema()
    parts = [_HEAD, *tables(SpecModel, schema)]
    parts.append(_presets())
    parts += ["## Examples\n"]
    parts += [f"```yaml\n{example(name)}```\n" for name in EXAMPLES]
    return "\n".join(parts)


def example(name: str) -> str:
    """Return the text of a shipped example."""
    return (resources.files(__package__) / "examples" / name).read_text(encoding="utf-8")


def tables(root: type[BaseModel], schema: dict[str, Any]) -> list[str]:
    """Return a section with a table of keys for every block of a file whose whole is ``root``."""
    return [_section(block, path, schema) for block, path in _sections(root)]


def _sections(root: type[BaseModel]) -> list[tuple[type[BaseModel], str]]:
    """Return blocks with the path under which a file writes them, in the order of the schema."""
    sections: list[tuple[type[BaseModel], str]] = []

    def visit(block: type[BaseModel], path: str) -> None:
        sections.append((block, path))
        for key, info in fields_of(block).items():
            inner = block_of(info.annotation)
            if inner is not None:
                visit(inner, f"{path}.{key}".removeprefix(".") + ("[]" if "list[" in str(info.annotation) else ""))

    visit(root, "")
    seen: dict[type[BaseModel], str] = {}
    for block, path in sections:
        seen[block] = f"{seen[block]}, {path}" if block in seen else path
    return list(seen.items())


def _section(block: type[BaseModel], path: str, schema: dict[str, Any]) -> str:
    definition = schema["$defs"][block.__name__] if path else schema
    required = definition.get("required", [])
    title = "## Top level" if not path else "## " + ", ".join(f"`{each}`" for each in path.split(", "))
    about = " ".join((block.__doc__ or "").split()).replace("``", "`")
    rows = [
        f"| `{key}` | {_type(prop)} | {_default(key, prop, required)} | {_cell(prop.get('description', ''))} |"
        for key, prop in definition["properties"].items()
    ]
    table = "\n".join(["| key | type | default | meaning |", "|---|---|---|---|", *rows])
    return f"{title}\n\n{about}\n\n{table}\n"


def _default(key: str, prop: dict[str, Any], required: list[str]) -> str:
    if key in required:
        return "**required**"
    default = prop.get("default")
    if default in (None, ""):
        return ""
    shown = str(default).lower() if isinstance(default, (bool, list, dict)) else str(default)
    return f"`{shown}`"


def _type(prop: dict[str, Any]) -> str:
    """Say in a few words what may be written."""
    choices = [each for each in prop.get("anyOf", [prop]) if each.get("type") != "null"]
    return _cell(" or ".join(dict.fromkeys(_one_type(each) for each in choices)))


def _one_type(prop: dict[str, Any]) -> str:
    if "anyOf" in prop and "type" not in prop:
        return " or ".join(_one_type(each) for each in prop["anyOf"])
    return next((say(prop) for key, say in _SAY if key in prop), _PLAIN.get(prop.get("type", ""), "anything"))


def _value_type(values: Any) -> str:
    return _one_type(values) if isinstance(values, dict) else "anything"


def _words(prop: dict[str, Any]) -> str:
    words = prop["enum"]
    return ", ".join(f"`{word}`" for word in words) if len(words) <= _MANY_WORDS else "a preset"


_MANY_WORDS = 8
_PLAIN = {"integer": "whole number", "number": "number", "boolean": "true or false", "string": "text"}
_SAY: tuple[tuple[str, Callable[[dict[str, Any]], str]], ...] = (
    ("$ref", lambda _: "block"),
    ("const", lambda prop: f"`{prop['const']}`"),
    ("enum", _words),
    ("examples", lambda prop: "quantity: " + ", ".join(f"`{each}`" for each in prop["examples"])),
    ("pattern", lambda _: "quantity of tokens"),
    ("items", lambda prop: f"list of {_one_type(prop['items'])}"),
    ("additionalProperties", lambda prop: f"map of text to {_value_type(prop['additionalProperties'])}"),
)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _presets() -> str:
    rows = []
    for name in presets.names():
        preset = presets.get(name)
        rows.append(f"| `{name}` | {preset.num_parameters:,} | {_cell(preset.source)} |")
    table = "\n".join(["| `model` | parameters | source |", "|---|---|---|", *rows])
    return f"## Presets\n\nWords for `model`, with their exact number of parameters.\n\n{table}\n"
