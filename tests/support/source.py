"""Our own source as the arch tests look at it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "airflow_llmsched"


def modules() -> list[Path]:
    """Every module of the package, ``__init__`` files included, relative to the checkout."""
    return sorted(path.relative_to(ROOT) for path in PACKAGE.rglob("*.py"))


def tree(module: Path) -> ast.Module:
    """The syntax tree of a module."""
    return ast.parse((ROOT / module).read_text(), filename=str(module))


def functions(module: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function and method of a module, nested ones included."""
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def dotted(module: Path) -> str:
    """The import name of a module."""
    parts = module.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
