from __future__ import annotations

import importlib
import json
from importlib.resources import files

import jsonschema

from airflow_llmsched.provider.get_provider_info import get_provider_info


def test_info_is_valid_by_airflows_own_schema():
    schema = json.loads((files("airflow") / "provider_info.schema.json").read_text())
    jsonschema.validate(get_provider_info(), schema)


def test_everything_the_info_names_can_be_imported():
    info = get_provider_info()
    modules = [
        module
        for kind in ("operators", "sensors", "hooks", "triggers")
        for entry in info[kind]
        for module in entry["python-modules"]
    ]
    for module in modules:
        importlib.import_module(module)
    dotted = [*info["extra-links"], *info["cli"], *(plugin["plugin-class"] for plugin in info["plugins"])]
    for path in dotted:
        module, _, name = path.rpartition(".")
        assert getattr(importlib.import_module(module), name)
