"""JSON Schema of specs (draft 2020-12), for editors: completion, hover text and a first check while typing."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from airflow_llmsched.specs import presets
from airflow_llmsched.specs.schema import OBJECTIVES, SpecModel
from airflow_llmsched.specs.validate import block_of, fields_of

DIALECT = "https://json-schema.org/draft/2020-12/schema"

_SHORTHANDS: dict[str, tuple[str, ...]] = {"objective": OBJECTIVES, "parallelism": ("auto",)}


def json_schema() -> dict[str, Any]:
    """Return the schema. It is a little wider than the loader: rules between keys are the loader's alone."""
    body = schema_of(SpecModel)
    for key, words in (*_SHORTHANDS.items(), ("model", presets.names())):
        _allow_words(body["properties"][key], words)
    return {"$schema": DIALECT, **body, "title": "llmsched workload"}


def schema_of(root: type[BaseModel]) -> dict[str, Any]:
    """Return the schema of a file whose whole is ``root``, defaults written as the file would."""
    body = root.model_json_schema()
    definitions = body["$defs"]
    for block in blocks(root):
        properties = body["properties"] if block is root else definitions[block.__name__]["properties"]
        for key, shown in written_defaults(block).items():
            properties[key].pop("default", None)
            if shown is not None:
                properties[key]["default"] = shown
    return body


def blocks(root: type[BaseModel] = SpecModel) -> list[type[BaseModel]]:
    """Return every block class, the whole file first, each before the blocks within it."""
    found: list[type[BaseModel]] = [root]
    for block in found:
        for info in block.model_fields.values():
            inner = block_of(info.annotation)
            if inner is not None and inner not in found:
                found.append(inner)
    return found


def written_defaults(block: type[BaseModel]) -> dict[str, Any]:
    """Return the default of each key as a spec would write it; None for required keys, blocks and absent values."""
    defaults: dict[str, Any] = dict.fromkeys(fields_of(block))
    for key, info in fields_of(block).items():
        if info.is_required() or block_of(info.annotation) is not None:
            continue
        name = next(each for each, field in block.model_fields.items() if field is info)
        shown = block.model_construct(**{name: info.default}).model_dump(mode="json", include={name})
        defaults[key] = shown[name]
    return defaults


def _allow_words(prop: dict[str, Any], words: tuple[str, ...]) -> None:
    """Let a block be written as one of ``words``."""
    choices = prop.pop("anyOf", None) or [{"$ref": prop.pop("$ref")}]
    prop["anyOf"] = [{"type": "string", "enum": list(words)}, *choices]
