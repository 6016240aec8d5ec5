"""Files that are not modules travel with the package, and are found wherever and however it is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.source import PACKAGE, ROOT

LOOK = """
import json
from importlib import resources
from jinja2 import PackageLoader
import airflow_llmsched
from airflow_llmsched.planner.perf import hardware
from airflow_llmsched.prices import list_prices
from airflow_llmsched.specs import presets, reference
print(json.dumps({
    "package": airflow_llmsched.__file__,
    "typed": resources.files("airflow_llmsched").joinpath("py.typed").is_file(),
    "shapes": sorted(hardware.node_shapes()),
    "list_prices": len(list_prices.rows()),
    "presets": {name: presets.get(name).num_parameters for name in presets.names()},
    "page": reference.markdown(),
    "templates": PackageLoader("airflow_llmsched.reports", "templates").list_templates(),
}))
"""


def shipped() -> list[Path]:
    """What a wheel holds: hatchling takes every file of the package that git does not ignore."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", PACKAGE.name]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    return [Path(name) for name in listed if name and (ROOT / name).is_file()]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """What the package finds of its data when all there is of it is an archive, far from the checkout."""
    folder = tmp_path_factory.mktemp("installed")
    archive = folder / "wheel.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in shipped():
            file.write(ROOT / path, str(path))
    told = subprocess.run(
        [sys.executable, "-c", LOOK],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(archive)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    return json.loads(told.stdout)


def test_the_package_under_test_is_the_archive(found: dict[str, object]) -> None:
    assert "wheel.zip" in str(found["package"])


def test_data_files_are_found_without_the_checkout(found: dict[str, object]) -> None:
    assert found["typed"] is True
    assert "local-cpu" in found["shapes"]
    assert found["list_prices"] > 60
    assert found["presets"]["byte-gpt-1m"] == 1_271_200
    assert len(found["presets"]) == len(list((PACKAGE / "specs" / "presets").glob("*.yaml")))
    assert found["page"] == (ROOT / "docs" / "reference" / "spec.md").read_text()
    templates = sorted(path.name for path in (PACKAGE / "reports" / "templates").glob("*.j2"))
    assert {"plan.html.j2", "report.html.j2"} < set(templates)
    assert found["templates"] == templates


def test_a_wheel_holds_every_file_of_the_package_and_no_test() -> None:
    names = set(shipped())
    on_disk = {path.relative_to(ROOT) for path in PACKAGE.rglob("*") if path.is_file()}
    assert {path for path in on_disk - names if "__pycache__" not in path.parts} == set()
    assert not [path for path in names if path.name.startswith("test_") or path.name == "conftest.py"]
