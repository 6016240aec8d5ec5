"""The way in for a topology written by hand: YAML becomes a ``TopologyTree``, or one error that lists all mistakes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pydantic import ValidationError

from airflow_llmsched.domain.hardware import Transport
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.topology import NetworkFacts, NetworkLevel, NodeTerms, TopologyNode, TopologyTree
from airflow_llmsched.errors import SpecError
from airflow_llmsched.specs import tree
from airflow_llmsched.specs.problems import Problem, nearest, to_error
from airflow_llmsched.specs.topology_schema import NodesBlock, TopologyModel
from airflow_llmsched.specs.validate import to_problem, unknown_keys, without_unknown
from airflow_llmsched.topology.nodelist import expand
from airflow_llmsched.topology.reading import MAX_NODES, num_accelerators


@dataclass(slots=True)
class _Placed:
    """Nodes so far, what is wrong with others, and which entry has which."""

    nodes: dict[str, TopologyNode]
    problems: list[Problem]
    index_of: dict[str, int]


def loads(text: str, *, file: str = "<topology>") -> TopologyTree:
    """Read a topology from YAML text.

    Raises:
        SpecError: names line, path and value of each mistake (``SpecErrors`` for several).
    """
    root = tree.parse(text, file=file, whole="(topology)")
    if not isinstance(root.value, dict):
        raise SpecError(path="(topology)", hint="must be a block of keys; start with 'version: 1'", file=file, line=1)
    plain = root.plain()
    problems = list(unknown_keys(plain, TopologyModel))
    try:
        model = TopologyModel.model_validate(without_unknown(plain, TopologyModel))
    except ValidationError as error:
        problems += [to_problem(each, TopologyModel) for each in error.errors(include_url=False)]
        raise to_error(problems, root, file=file) from None
    problems += _level_rules(model)
    placed = _Placed({}, problems, {})
    if not problems:
        for index, block in enumerate(model.nodes):
            _place(block, ("nodes", index), model.levels, placed)
        _mark_unusable(model, placed)
    if problems:
        raise to_error(problems, root, file=file)
    return TopologyTree(
        levels=tuple(model.levels),
        nodes=tuple(sorted(placed.nodes.values(), key=lambda node: (node.path, node.id))),
        scale_up_level=model.scale_up_level,
        network=tuple(
            NetworkLevel(level=link.level, bandwidth_bytes_per_s=link.bandwidth, is_measured=link.measured)
            for link in model.links
        ),
        switches_reduce=model.switches_reduce,
        facts=NetworkFacts(
            num_rails=model.rails,
            transport=None if model.transport is None else Transport(model.transport),
            traffic_class=model.traffic_class,
            service_level=model.service_level,
        ),
    )


def _level_rules(model: TopologyModel) -> Iterator[Problem]:
    for index, level in enumerate(model.levels):
        if level in model.levels[:index]:
            yield Problem(path=("levels", index), value=level, hint="is there twice: give it a name of its own")
    if model.scale_up_level is not None:
        yield from _known(model.scale_up_level, ("scale_up_level",), model.levels)
    told = [link.level for link in model.links]
    for index, link in enumerate(told):
        if link is not None:
            yield from _known(link, ("links", index, "level"), model.levels)
        if link in told[:index]:
            hint = "is told twice: keep one entry for it"
            yield Problem(path=("links", index), value=link or "all nodes", hint=hint)


def _known(level: str, path: tree.Path, levels: Sequence[str]) -> Iterator[Problem]:
    if level not in levels:
        near = nearest(level, levels)
        guess = f"did you mean {near!r}? " if near else ""
        yield Problem(path=path, value=level, hint=f"is no level; {guess}known: {', '.join(levels)}")


def _place(block: NodesBlock, at: tree.Path, levels: Sequence[str], placed: _Placed) -> None:
    """Put the nodes of a block into their domains; what is wrong joins the problems."""
    problems = placed.problems
    names = _expanded(block.names, (*at, "names"), problems)
    num_slots = block.slots or num_accelerators(block.shape)
    if num_slots is None:
        hint = f"is required, as plans do not know the shape {block.shape!r}: accelerators of each node"
        problems.append(Problem(path=(*at, "slots"), hint=hint))
    elif block.free is not None and block.free > num_slots:
        hint = f"is more than the {num_slots} slots of each node"
        problems.append(Problem(path=(*at, "free"), value=block.free, hint=hint))
    paths = _domains(block, at, levels, num_names=len(names), problems=problems)
    for name in names:
        if name in placed.index_of:
            hint = f"has node {name!r}, which nodes[{placed.index_of[name]}] has as well: a node hangs in one place"
            problems.append(Problem(path=(*at, "names"), value=block.names, hint=hint))
            return
        placed.index_of[name] = int(at[1])
    if len(placed.index_of) > MAX_NODES:
        problems.append(Problem(path=(*at, "names"), hint=f"is beyond {MAX_NODES} nodes in all: split the file"))
    if num_slots is None or not paths or problems:
        return
    share = len(names) // len(paths)
    terms = NodeTerms(
        usd_per_hour=block.usd_per_hour, failures_per_hour=block.failures_per_hour, data=tuple(sorted(set(block.data)))
    )
    for number, name in enumerate(names):
        placed.nodes[name] = TopologyNode(
            id=NodeId(name),
            path=paths[number // share],
            shape=block.shape,
            num_slots=num_slots,
            num_free_slots=num_slots if block.free is None else block.free,
            terms=terms,
        )


def _domains(
    block: NodesBlock, at: tree.Path, levels: Sequence[str], *, num_names: int, problems: list[Problem]
) -> list[tuple[str, ...]]:
    """Return the paths that the nodes are dealt out to; none where that is not possible."""
    if len(block.path) != len(levels):
        hint = f"must have one part for each level ({', '.join(levels)})"
        problems.append(Problem(path=(*at, "path"), value=", ".join(block.path), hint=hint))
        return []
    parts = [
        _expanded(part, (*at, "path", index), problems) if "[" in part else (part,)
        for index, part in enumerate(block.path)
    ]
    number = math.prod(map(len, parts))
    if number and num_names % number:
        hint = f"stands for {number} domains, on which {num_names} nodes cannot be dealt out evenly: write two entries"
        problems.append(Problem(path=(*at, "path"), value=", ".join(block.path), hint=hint))
        return []
    return list(itertools.product(*parts)) if num_names else []


def _expanded(text: str, path: tree.Path, problems: list[Problem]) -> tuple[str, ...]:
    try:
        names = expand(text)
    except ValueError as error:
        problems.append(Problem(path=path, value=text, hint=str(error)))
        return ()
    if not names or len(set(names)) < len(names):
        problems.append(Problem(path=path, value=text, hint="names nothing, or a thing twice"))
        return ()
    return names


def _mark_unusable(model: TopologyModel, placed: _Placed) -> None:
    for index, block in enumerate(model.unusable):
        path = ("unusable", index, "names")
        for name in _expanded(block.names, path, placed.problems):
            if name not in placed.index_of:
                hint = f"has node {name!r}, which is not among the nodes"
                placed.problems.append(Problem(path=path, value=block.names, hint=hint))
                break
            if name in placed.nodes:
                placed.nodes[name] = replace(placed.nodes[name], unusable_reason=block.reason)
