"""Rules of STYLE.md and DESIGN.md that a reader would otherwise have to check by eye."""

from __future__ import annotations

import ast
import re
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.support.source import PACKAGE, ROOT, dotted, functions, modules, tree

MAX_MODULE_LINES = 600
MAX_FUNCTION_LINES = 60

# Contract suites are tests themselves: what must exist is a subclass that runs them.
CONTRACTS = [module for module in modules() if module.match("airflow_llmsched/testing/*_contract.py")]
TESTED = [module for module in modules() if module.name != "__init__.py" and module not in CONTRACTS]


def _test_of(module: Path) -> Path:
    inside = module.relative_to("airflow_llmsched")
    return Path("tests/unit") / inside.parent / f"test_{inside.name}"


@pytest.mark.parametrize("module", TESTED, ids=str)
def test_every_module_has_a_mirrored_test_file_with_tests_in_it(module):
    path = ROOT / _test_of(module)
    assert path.is_file(), f"{module} needs {_test_of(module)}"
    tests = [node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)]
    assert any(name.startswith("test_") for name in tests), f"{_test_of(module)} has no test"


@pytest.mark.parametrize("module", CONTRACTS, ids=str)
def test_every_contract_suite_is_run_against_an_adapter(module):
    users = [path for path in (ROOT / "tests").rglob("test_*.py") if f"import {dotted(module)}" in _import_lines(path)]
    assert users, f"no test subclasses {dotted(module)}"


def _import_lines(path: Path) -> str:
    """Imports of a test file, each as ``import a.b`` whatever form it has."""
    return "\n".join(f"import {name}" for name in _imports(path.relative_to(ROOT)))


def test_every_unit_test_file_mirrors_a_module():
    expected = {_test_of(module) for module in (*TESTED, *CONTRACTS)}
    found = {path.relative_to(ROOT) for path in (ROOT / "tests" / "unit").rglob("test_*.py")}
    assert found - expected == set()


@pytest.mark.parametrize("module", modules(), ids=str)
def test_every_module_says_what_it_owns(module):
    node = tree(module)
    assert ast.get_docstring(node), f"{module} has no docstring"


@pytest.mark.parametrize("module", modules(), ids=str)
def test_no_module_grows_beyond_its_one_idea(module):
    num_lines = len((ROOT / module).read_text().splitlines())
    assert num_lines < MAX_MODULE_LINES, f"{module} has {num_lines} lines"


@pytest.mark.parametrize("module", modules(), ids=str)
def test_no_function_is_long(module):
    long = {
        f"{each.name} at line {each.lineno}": each.end_lineno - each.lineno + 1
        for each in functions(module)
        if each.end_lineno - each.lineno + 1 >= MAX_FUNCTION_LINES
    }
    assert long == {}


@pytest.mark.parametrize("module", modules(), ids=str)
def test_no_module_holds_unfinished_work(module):
    text = (ROOT / module).read_text()
    assert [word for word in ("TO" + "DO", "FIX" + "ME", "XX" + "X:") if word in text] == []


@pytest.mark.parametrize("folder", ["newsfragments", "docs"])
def test_no_page_holds_an_unfinished_merge(folder):
    torn = re.compile(r"^(?:<{7}|={7}|>{7})(?: |$)", re.MULTILINE)
    pages = sorted((ROOT / folder).rglob("*.md"))
    assert pages
    assert [str(page.relative_to(ROOT)) for page in pages if torn.search(page.read_text())] == []


@pytest.mark.parametrize("folder", sorted({str(module.parent) for module in modules()}))
def test_every_folder_of_modules_is_a_package(folder):
    assert (ROOT / folder / "__init__.py").is_file(), f"{folder} needs an __init__.py"


@cache
def _imports(module: Path) -> frozenset[str]:
    """Full names of what a module imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno}: write the import in full"
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return frozenset(found)


AGENT = [module for module in modules() if module.is_relative_to("airflow_llmsched/agent")]


@pytest.mark.parametrize("module", AGENT, ids=str)
def test_the_agent_imports_the_standard_library_and_itself_only(module):
    outside = {
        name
        for name in _imports(module)
        if name.split(".")[0] not in sys.stdlib_module_names
        and not (name == "airflow_llmsched.agent" or name.startswith("airflow_llmsched.agent."))
        and name != "airflow_llmsched"
    }
    assert outside == set()


def test_the_package_itself_imports_nothing_because_every_rank_imports_it():
    assert _imports((PACKAGE / "__init__.py").relative_to(ROOT)) == set()


@pytest.mark.parametrize("module", modules(), ids=str)
def test_no_program_is_started_through_a_shell(module):
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Call):
            shell = [each for each in node.keywords if each.arg == "shell"]
            assert not shell, f"{module}:{node.lineno}: pass an argument list"
            called = ast.unparse(node.func)
            assert called not in ("os.system", "os.popen"), f"{module}:{node.lineno}: pass an argument list"


SILENCED = re.compile(r"# (?:ruff: )?noqa(?:: [A-Z]+[0-9]+(?:, ?[A-Z]+[0-9]+)*)?(?P<reason>.*)")


@pytest.mark.parametrize("folder", ["airflow_llmsched", "tests", "dags"])
def test_whoever_silences_the_linter_says_why(folder):
    bare = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            found = SILENCED.search(line)
            if found and not found.group("reason").strip(" -#()"):
                bare.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    assert bare == [], "put the reason beside it, or better: change the code so that none is needed"
