"""Finds, in source text, calls that change something outside of the process, and whether an effect point wraps them."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_OS = _words(
    "chmod chown fchmod ftruncate fork kill killpg link makedirs mkdir mkfifo posix_spawn remove removedirs rename "
    "renames replace rmdir symlink truncate unlink utime write"
)
_PATH = _words(
    "chmod hardlink_to mkdir rename rmdir symlink_to touch unlink write_bytes write_json write_last write_text"
)
_SUBPROCESS = frozenset({"Popen", "run", "call", "check_call", "check_output"})
_SHUTIL = frozenset({"copy", "copy2", "copyfile", "copytree", "move", "rmtree"})
_AGENT = frozenset({"create_json", "write_json", "LineWriter"})
"""Functions of ``agent.spool`` that write."""

_PORTS: dict[str, frozenset[str]] = {
    "engine": frozenset({"submit", "abandon", "stop", "preempt"}),
    "store": frozenset({"put", "create", "delete"}),
    "channel": frozenset(
        {"prepare", "tend", "renew", "extend", "revoke", "order_checkpoint", "order_stop", "order_interval"}
    ),
}
"""What changes the outside through a port, by the word with which the name of such an object ends."""

_WRITES = re.compile(r"[wax+]")
_OS_WRITES = frozenset({"O_WRONLY", "O_RDWR", "O_CREAT", "O_APPEND", "O_TRUNC"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """One call that changes something. ``function`` is the innermost function around it, ``point`` what wraps it."""

    line: int
    call: str
    function: str
    point: str | None


def effects(tree: ast.Module) -> list[Effect]:
    """Return every effectful call of a module, in order of lines."""
    points = set(_points(tree))
    found: list[Effect] = []

    def visit(node: ast.AST, function: str, point: str | None) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            marks = [each.id for each in node.decorator_list if isinstance(each, ast.Name) and each.id in points]
            # What a function does happens when it is called, not where it is defined.
            function, point = node.name, marks[0] if marks else None
        elif isinstance(node, ast.With):
            names = [each.context_expr for each in node.items]
            marks = [each.id for each in names if isinstance(each, ast.Name) and each.id in points]
            for item in node.items:
                visit(item, function, point or _first_before(item, node, points))
            for each in node.body:
                visit(each, function, marks[0] if marks else point)
            return
        elif isinstance(node, ast.Call) and is_effect(node):
            found.append(Effect(line=node.lineno, call=ast.unparse(node.func), function=function, point=point))
        for child in ast.iter_child_nodes(node):
            visit(child, function, point)

    visit(tree, "<module>", None)
    return sorted(found, key=lambda effect: effect.line)


def _points(tree: ast.Module) -> Iterator[str]:
    """Yield the module's names of effect points."""
    for node in tree.body:
        made = node.value if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) else None
        if made is not None and ast.unparse(made.func) == "EffectPoint":
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))


def _first_before(item: ast.withitem, node: ast.With, points: set[str]) -> str | None:
    """Return the point that a ``with`` statement enters before ``item``: what comes later is wrapped by it too."""
    for each in node.items[: node.items.index(item)]:
        if isinstance(each.context_expr, ast.Name) and each.context_expr.id in points:
            return each.context_expr.id
    return None


def is_effect(call: ast.Call) -> bool:
    """Whether a call, by its name and arguments, changes something outside of this process."""
    match call.func:
        case ast.Name(id=name):
            return name in _AGENT or (name == "open" and _opens_for_writing(call, position=1))
        case ast.Attribute(value=receiver, attr=name):
            return any(rule(receiver, name, call) for rule in _RULES)
        case _:
            return False


def _of_os(receiver: ast.expr, name: str, call: ast.Call) -> bool:
    if not isinstance(receiver, ast.Name):
        return False
    if receiver.id == "os" and name == "open":
        return any(isinstance(node, ast.Attribute) and node.attr in _OS_WRITES for node in ast.walk(call))
    table = {"os": _OS, "subprocess": _SUBPROCESS, "shutil": _SHUTIL, "proc": frozenset({"end_all", "send"})}
    return name in table.get(receiver.id, frozenset()) or (receiver.id == "obstore" and name in _PORTS["store"])


def _of_path(receiver: ast.expr, name: str, call: ast.Call) -> bool:
    if name == "replace":  # of a path takes one argument; of a string two, of a dataclass or a date names
        return len(call.args) == 1 and not call.keywords
    if name == "make":  # of the agent's node directory
        return not call.args
    return name in _PATH or (name == "open" and _is_not_module(receiver) and _opens_for_writing(call, position=0))


def _of_port(receiver: ast.expr, name: str, _call: ast.Call) -> bool:
    owner = receiver.func if isinstance(receiver, ast.Call) else receiver
    last = (owner.attr if isinstance(owner, ast.Attribute) else owner.id if isinstance(owner, ast.Name) else "").lower()
    return any(last.endswith(word) and name in changes for word, changes in _PORTS.items())


_RULES: tuple[Callable[[ast.expr, str, ast.Call], bool], ...] = (_of_os, _of_path, _of_port)


def _is_not_module(receiver: ast.expr) -> bool:
    return not (isinstance(receiver, ast.Name) and receiver.id == "os")


def _opens_for_writing(call: ast.Call, *, position: int) -> bool:
    modes = [each.value for each in call.keywords if each.arg == "mode"]
    modes += call.args[position : position + 1]
    return any(
        isinstance(mode, ast.Constant)
        and isinstance(mode.value, str)
        and len(mode.value) <= 3
        and _WRITES.search(mode.value) is not None
        for mode in modes
    )
