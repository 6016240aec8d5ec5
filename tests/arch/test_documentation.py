"""What the guides point at is there: links lead somewhere, indexes list every page, examples import what exists."""

from __future__ import annotations

import ast
import re
import textwrap
from importlib import import_module
from pathlib import Path

import pytest

from tests.support.source import ROOT

PAGES = [Path("README.md"), *sorted(path.relative_to(ROOT) for path in (ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)")
EXAMPLE = re.compile(r"^( *)```python\n(.*?)^\1```", re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Names that headings of a page have on GitHub."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def is_dead(page: Path, link: str) -> bool:
    """Whether a link of a page leads to no file of the checkout, or to no heading of it."""
    path, _, anchor = link.partition("#")
    target = ROOT / page.parent / path if path else ROOT / page
    return not target.exists() or bool(anchor and target.suffix == ".md" and anchor not in anchors(target))


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    links = [link for link in LINK.findall((ROOT / page).read_text()) if "://" not in link]
    assert [link for link in links if is_dead(page, link)] == []


@pytest.mark.parametrize("folder", sorted({page.parent for page in PAGES if page.parent.name != ""}), ids=str)
def test_index_of_a_folder_lists_every_page(folder: Path) -> None:
    listed = set(LINK.findall((ROOT / folder / "README.md").read_text()))
    assert {page.name for page in PAGES if page.parent == folder and page.name != "README.md"} <= listed


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_examples_import_what_there_is(page: Path) -> None:
    for _, example in EXAMPLE.findall((ROOT / page).read_text()):
        for line in textwrap.dedent(example).splitlines():
            if not line.startswith("from airflow_llmsched"):
                continue
            [imported] = ast.parse(line).body
            assert isinstance(imported, ast.ImportFrom)
            assert imported.module is not None
            module = import_module(imported.module)
            for name in imported.names:
                assert hasattr(module, name.name) or import_module(f"{imported.module}.{name.name}"), line
