"""The way in: a YAML file, text or a DAG-run form becomes a ``WorkloadSpec``, or one error that lists all mistakes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_llmsched.domain.workload import BatchPhase, ModelShape, WorkloadSpec
from airflow_llmsched.errors import SpecError, SpecErrors
from airflow_llmsched.specs import presets, rules, tree
from airflow_llmsched.specs.batch import to_phases
from airflow_llmsched.specs.block import Block
from airflow_llmsched.specs.build import build
from airflow_llmsched.specs.hf_config import reader
from airflow_llmsched.specs.paths import PathRules
from airflow_llmsched.specs.problems import Problem, nearest, to_error
from airflow_llmsched.specs.schema import ModelBlock, SpecModel
from airflow_llmsched.specs.shapes import block_problems, to_shape
from airflow_llmsched.specs.tree import Node
from airflow_llmsched.specs.validate import validate

_PATHS = (("data", "source"), ("checkpoint", "root"), ("checkpoint", "init_from"), ("model", "hf_config"))
Overrides = Mapping[str, Any]


def load(path: str | Path, *, overrides: Overrides | None = None) -> WorkloadSpec:
    """Read a spec file. ``overrides`` replaces or adds values by dotted path (``{"budget.deadline": "2h"}``).

    Overrides are treated as form input: paths in them stay below the spec's folder.

    Raises:
        SpecError: names file, line, path, value and hint. With several mistakes it is a ``SpecErrors``, whose
            ``errors`` lists them all.
    """
    file = Path(path)
    try:
        with file.open("rb") as stream:
            data = stream.read(tree.MAX_BYTES + 1)
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise SpecError(path="(spec)", hint=f"is not UTF-8 text: byte {error.start}", file=str(file)) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise SpecError(path="(spec)", hint=f"cannot be read: {reason}", file=str(path)) from None
    return loads(text, file=str(file), overrides=overrides)


def loads(
    text: str,
    *,
    file: str = "<spec>",
    base: Path | None = None,
    form: bool = False,
    overrides: Overrides | None = None,
) -> WorkloadSpec:
    """Read a spec from YAML text. Relative paths start from ``base``, or from the folder of ``file``.

    Text that someone typed into a DAG-run form is ``form``: its paths must stay below ``base``.

    Raises:
        SpecError: see :func:`load`.
    """
    root = tree.parse(text, file=file)
    if base is None and not file.startswith("<"):
        base = Path(file).parent
    return _finish(root, file=file, base=base, form=form, overrides=overrides)


def from_mapping(
    mapping: Mapping[str, Any],
    *,
    file: str = "<form>",
    base: Path | None = None,
    form: bool = True,
    overrides: Overrides | None = None,
) -> WorkloadSpec:
    """Read a spec from plain values: a DAG-run form's, whose paths must stay below ``base``, or a DAG author's own.

    Raises:
        SpecError: see :func:`load`.
    """
    return _finish(tree.from_plain(mapping, file=file), file=file, base=base, form=form, overrides=overrides)


def _finish(root: Node, *, file: str, base: Path | None, form: bool, overrides: Overrides | None) -> WorkloadSpec:
    if not isinstance(root.value, dict):
        raise SpecError(
            path="(spec)", hint="must be a block of keys; start with 'version: 1'", file=file, line=root.line
        )
    overridden = _apply(root, overrides or {}, file=file)
    plain: dict[str, Any] = root.plain()
    foreign: list[SpecError] = []
    spec, problems = validate(plain)
    bad = _blocks(problems)
    spec = _resolve_paths(spec, bad, problems, base=base, form=form, overridden=overridden)
    shape = None if _blocks(problems) & {"model"} else _shape(spec.model, problems, foreign)
    phases: tuple[BatchPhase, ...] | None = None
    if "batch" not in bad:
        phases, batch_problems = to_phases(spec.batch)
        problems += batch_problems
    bad = _blocks(problems) | ({"model"} if foreign else set())
    sound = rules.Sound(spec=spec, shape=shape, phases=None if "batch" in bad else phases)
    problems += list(dict.fromkeys(rules.check(sound, bad=bad)))
    if problems or foreign:
        found = to_error(problems, root, file=file).errors if problems else ()
        errors = [*found, *foreign]
        raise errors[0] if len(errors) == 1 else SpecErrors(errors)
    return build(spec, shape=shape, phases=phases or ())


def _apply(root: Node, overrides: Overrides, *, file: str) -> tuple[tree.Path, ...]:
    """Put overrides into the tree and return their paths."""
    paths = []
    for dotted, value in overrides.items():
        path = tuple(dotted.split("."))
        node = root
        for part in path[:-1]:
            child = node.value.get(part)
            if child is None or child.value is None:
                child = node.value[part] = Node({}, None)
            if not isinstance(child.value, dict):
                raise SpecError(
                    path=dotted, value=value, hint=f"cannot be set: {part!r} is no block of keys", file=file
                )
            # an alias shares its node, and only this path is to change
            node.value[part] = node = Node(dict(child.value), child.line, child.num_nodes, dict(child.key_lines))
        node.value[path[-1]] = tree.from_plain(value, file=file)
        paths.append(path)
    return tuple(paths)


def _blocks(problems: list[Problem]) -> set[str]:
    return {str(problem.path[0]) for problem in problems}


def _resolve_paths(
    spec: SpecModel,
    bad: set[str],
    problems: list[Problem],
    *,
    base: Path | None,
    form: bool,
    overridden: tuple[tree.Path, ...],
) -> SpecModel:
    """Return ``spec`` with absolute paths; what cannot be resolved joins ``problems``."""
    for path in _PATHS:
        block: Block | None = getattr(spec, path[0])
        written = None if block is None or path[0] in bad else getattr(block, path[1])
        if block is None or written is None:
            continue
        confined = form or any(path[: len(each)] == each for each in overridden)
        try:
            resolved = PathRules(base=base, confined=confined).resolve(written)
        except (ValueError, OSError, RuntimeError) as error:
            problems.append(Problem(path=path, value=written, hint=str(error)))
            continue
        spec = spec.model_copy(update={path[0]: block.model_copy(update={path[1]: resolved})})
    return spec


def _shape(block: ModelBlock | None, problems: list[Problem], foreign: list[SpecError]) -> ModelShape | None:
    """Return the model's shape; mistakes join ``problems``, those in a config.json ``foreign``."""
    if block is None:
        return None
    given = [name for name in ("preset", "hf_config", "shape") if getattr(block, name) is not None]
    if len(given) != 1:
        found = " and ".join(given) or "none"
        problems.append(
            Problem(path=("model",), hint=f"needs exactly one of preset, hf_config and shape, and has {found}")
        )
        return None
    if block.shape is not None:
        problems += list(block_problems(block.shape, ("model", "shape")))
        return to_shape(block.shape, name=block.name or "model")
    if block.preset is not None:
        return _preset_shape(block.preset, block.name, problems)
    try:
        shape = reader.read(Path(block.hf_config or ""))
    except SpecError as error:
        foreign.append(error)
        return None
    return _named(shape, block.name)


def _preset_shape(preset: str, name: str | None, problems: list[Problem]) -> ModelShape | None:
    if preset in presets.names():
        return _named(presets.get(preset).shape, name)
    near = nearest(preset, presets.names())
    guess = f"; did you mean {near!r}?" if near else ";"
    hint = f"is no shipped model{guess} Known: {', '.join(presets.names())}"
    problems.append(Problem(path=("model", "preset"), value=preset, hint=hint))
    return None


def _named(shape: ModelShape, name: str | None) -> ModelShape:
    return replace(shape, name=name) if name else shape
