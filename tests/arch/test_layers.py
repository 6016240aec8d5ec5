"""The layers of DESIGN.md hold: import-linter's contracts in setup.cfg, and that they cover every package."""

from __future__ import annotations

import configparser
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.source import PACKAGE, ROOT

CONTRACTS = configparser.ConfigParser()
CONTRACTS.read(ROOT / "setup.cfg")


@pytest.fixture(scope="module")
def verdict() -> subprocess.CompletedProcess[str]:
    """What import-linter says about the checkout."""
    program = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    return subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)


def test_all_contracts_are_kept(verdict):
    assert verdict.returncode == 0, verdict.stdout + verdict.stderr
    assert re.search(r"Contracts: [1-9]\d* kept, 0 broken", verdict.stdout), verdict.stdout


def _top_level() -> set[str]:
    return {
        path.stem
        for path in PACKAGE.iterdir()
        if (path.suffix == ".py" and path.stem != "__init__") or (path.is_dir() and list(path.rglob("*.py")))
    }


def _listed(contract: str, key: str) -> set[str]:
    return set(re.split(r"[\s|]+", CONTRACTS[f"importlinter:contract:{contract}"][key].strip()))


def test_every_package_has_its_layer():
    assert _top_level() - _listed("layers", "layers") == set()


def test_every_package_but_the_provider_may_not_import_airflow():
    sources = {name.removeprefix("airflow_llmsched.") for name in _listed("airflow", "source_modules")}
    assert _top_level() - sources == {"provider"}


def test_the_linter_would_catch_an_import_upwards(tmp_path: Path):
    """The contracts are worth something: the same ones, over a copy with one bad import, break."""
    copy = tmp_path / "airflow_llmsched"
    for module in PACKAGE.rglob("*.py"):
        target = copy / module.relative_to(PACKAGE)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(module.read_text())
    with (copy / "domain" / "identity.py").open("a") as file:
        file.write("\nfrom airflow_llmsched import registry as registry\n")
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from importlinter.cli import lint_imports;"
        f"sys.exit(lint_imports(config_filename={str(ROOT / 'setup.cfg')!r}, no_cache=True))"
    )
    result = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 1, result.stdout
    assert "airflow_llmsched.domain is not allowed to import airflow_llmsched.registry" in result.stdout
