from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

from airflow_llmsched.engines.slurm.options import Container, ContainerKind, SlurmOptions
from airflow_llmsched.errors import SpecError

BASE = {"root": "/shared/llmsched", "python": "/opt/venv/bin/python", "slots_per_node": 8}


def test_options_come_from_plain_values() -> None:
    text = json.dumps(
        {
            **BASE,
            "partition": "low,high",
            "exclude": ["n7"],
            "node_gres": {"m1": "gpu:a100"},
            "container": {"kind": "pyxis", "image": "nvcr.io#nvidia/pytorch:25.01-py3", "mounts": ["/shared"]},
        }
    )
    options = SlurmOptions.from_json(json.loads(text))
    assert options.exclude == ("n7",)
    assert options.container == Container(
        kind=ContainerKind.PYXIS, image="nvcr.io#nvidia/pytorch:25.01-py3", mounts=("/shared",)
    )
    assert (options.gres_of("n1"), options.gres_of("m1")) == ("gpu", "gpu:a100")
    assert options.requeue is False


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("root", "shared"),
        ("root", "/shared/a b"),
        ("python", "python"),
        ("python", "/usr/bin/python;reboot"),
        ("partition", "low high"),
        ("partition", ""),
        ("partition", "low\n#SBATCH --uid=0"),
        ("account", "--uid=0"),
        ("qos", 'a"b'),
        ("reservation", "$(id)"),
        ("cluster", "a;b"),
        ("constraint", "gpu; rm"),
        ("gres", "gpu:h100:8"),
        ("gres", "gpu 8"),
        ("node_gres", {"n1 n2": "gpu"}),
        ("node_gres", {"n1": "gpu;x"}),
        ("exclude", ["n[1-2]"]),
        ("node_terms", ["n1"]),
        ("node_terms", {"n[1-": {}}),
        ("node_terms", {"": {}}),
        ("node_terms", {"n1": 3}),
        ("node_terms", {"n1": {"price": 3}}),
        ("node_terms", {"n1": {"usd_per_hour": -1}}),
        ("node_terms", {"n[1-3]": {}, "n3": {}}),
        ("exclude", "n4"),
        ("requeue", "no"),
        ("exclusive", "false"),
        ("chooses_nodes", 1),
        ("flat", None),
        ("switches_reduce", "false"),
        ("time_limit_s", 0),
        ("notice_s", -1),
        ("notice_s", 65_536),
        ("slots_per_node", 0),
        ("switches", 0),
        ("segment", 1.5),
        ("vanish_grace_s", float("nan")),
        ("container", {"kind": "docker", "image": "x"}),
        ("container", {"kind": "pyxis"}),
        ("container", {"kind": "pyxis", "image": "-rf"}),
        ("container", {"kind": "pyxis", "image": "x", "mounts": ["/a,/b"]}),
        ("container", {"kind": "apptainer", "image": "x", "workdir": "here"}),
        ("colour", "red"),
    ],
)
def test_what_no_job_may_carry_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(SpecError, match=name):
        SlurmOptions.from_json({**BASE, name: value})


def test_missing_options_are_named() -> None:
    with pytest.raises(SpecError, match="python"):
        SlurmOptions.from_json({"root": "/shared", "slots_per_node": 8})


def test_every_text_of_the_options_is_a_token() -> None:
    """What is not refused has no blank, quote, line end, or anything else that bash or sbatch would read as more."""
    for letter in map(chr, range(128)):
        for name in ("partition", "account", "qos", "reservation", "constraint", "gres", "root", "python"):
            value = f"/a{letter}b" if name in ("root", "python") else f"a{letter}b"
            try:
                SlurmOptions.from_json({**BASE, name: value})
            except SpecError:
                continue
            assert re.fullmatch(r"[A-Za-z0-9._:+@,/=&|*()\[\]\-]+", value), (name, value)


def test_the_reference_page_names_every_option() -> None:
    page = (Path(__file__).resolve().parents[4] / "docs" / "reference" / "slurm.md").read_text()
    section = page.partition("## Options")[2].partition("\n## ")[0]
    assert [field.name for field in fields(SlurmOptions) if f"`{field.name}`" not in section] == []
