"""The Slurm engine's options: where jobs go and what they ask for. JSON-safe, and every text of them a checked token.

What stands here may become part of an ``#SBATCH`` line, so no value may hold a blank, a quote or a line's end.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from airflow_llmsched.domain.topology import AS_SHAPES_SAY, NO_TERMS, NetworkFacts, NetworkLevel, NodeTerms
from airflow_llmsched.engines.terms import TERMS, terms_of
from airflow_llmsched.engines.wirings import NO_WIRINGS, WiringFiles
from airflow_llmsched.errors import SpecError
from airflow_llmsched.registry import misfit
from airflow_llmsched.topology.links import facts_of, links_of
from airflow_llmsched.topology.nodelist import expand

MAX_NOTICE_S = 65_535
"""Most seconds that sbatch takes in ``--signal`` (its manual)."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+\-]{0,127}(,[A-Za-z0-9][A-Za-z0-9._@+\-]{0,127}){0,15}")
_GRES = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,31}(:[A-Za-z0-9][A-Za-z0-9_.\-]{0,63})?")
_CONSTRAINT = re.compile(r"[A-Za-z0-9._\-&|,*\[\]()]{1,256}")
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._\-]{0,252}")
_PATH = re.compile(r"/[A-Za-z0-9._+=@/\-]{0,1000}")
_IMAGE = re.compile(r"[A-Za-z0-9/][A-Za-z0-9._+=@#:/\-]{0,1000}")
_MOUNT = re.compile(r"/[A-Za-z0-9._+=@/\-]{0,500}(:/[A-Za-z0-9._+=@/\-]{0,500}(:(ro|rw))?)?")


class ContainerKind(StrEnum):
    """What starts the ranks of a node inside an image."""

    PYXIS = "pyxis"
    """Slurm's own plugin for enroot: options of srun."""
    APPTAINER = "apptainer"
    """``apptainer exec`` in front of each node's command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """An image that ranks run in. ``mounts`` are ``host[:inside[:ro|rw]]``; ``root`` and its like must be among them.

    ``command`` is the program for ``ContainerKind.APPTAINER`` (``singularity`` on older sites).
    """

    kind: ContainerKind
    image: str
    mounts: tuple[str, ...] = ()
    workdir: str | None = None
    command: str = "apptainer"

    def __post_init__(self) -> None:
        """Refuse what could be read as something else on a command line. Raises ``SpecError``."""
        _check("container.image", self.image, _IMAGE, "must be a path or an image's address, without blanks")
        for mount in self.mounts:
            _check("container.mounts", mount, _MOUNT, "must be /host, /host:/inside or /host:/inside:ro")
        if self.workdir is not None:
            _check("container.workdir", self.workdir, _PATH, "must be an absolute path without blanks")
        _check("container.command", self.command, _IMAGE, "must be a program's name or path")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmOptions:
    """What every job of an engine has in common.

    ``root`` is a folder that all nodes of the cluster share; ``python`` runs our agent on them. ``gres`` is what one
    slot is (``gpu``, ``gpu:h100``; empty: slots are not counted by Slurm), and ``node_gres`` says it of nodes that have
    another kind. ``node_shape`` names the kind of machine to the planner, ``node_shapes`` that of single nodes. The
    cluster's network is read from Slurm, unless ``flat``; ``topology_name`` is which, where it has several.
    ``scale_up_level`` is its level whose domains are one NVLink domain each (``block``, where blocks are racks of it);
    ``switches_reduce`` says that the fabric's switches are set to add up (SHARP), ``network`` what its levels have, and
    ``fabric`` what it has as a whole (``topology.links``). ``wirings`` are what joins the devices inside nodes,
    ``node_terms`` what sets single nodes apart from others of their shape.

    With ``chooses_nodes`` Slurm picks the nodes instead of the plan, within ``switches`` leaf switches
    (waiting ``switches_wait_s`` for them) or in segments of ``segment`` nodes. ``requeue`` lets Slurm restart a job by
    itself, which is off: control restarts gangs. ``notice_s`` before its time limit a job is told to save.
    """

    root: str
    python: str
    slots_per_node: int
    gres: str = "gpu"
    node_gres: Mapping[str, str] = dataclasses.field(default_factory=dict)
    node_shape: str = "slurm-node"
    node_shapes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    flat: bool = False
    topology_name: str | None = None
    scale_up_level: str | None = None
    switches_reduce: bool = False
    network: tuple[NetworkLevel, ...] = ()
    fabric: NetworkFacts = AS_SHAPES_SAY
    wirings: WiringFiles = NO_WIRINGS
    node_terms: Mapping[str, NodeTerms] = dataclasses.field(default_factory=dict)
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    reservation: str | None = None
    constraint: str | None = None
    cluster: str | None = None
    time_limit_s: float | None = None
    notice_s: float = 120.0
    requeue: bool = False
    exclusive: bool = False
    memory_bytes_per_node: int | None = None
    cpus_per_node: int | None = None
    chooses_nodes: bool = False
    exclude: tuple[str, ...] = ()
    switches: int | None = None
    switches_wait_s: float | None = None
    segment: int | None = None
    container: Container | None = None
    vanish_grace_s: float = 60.0
    requeue_grace_s: float = 30.0

    def __post_init__(self) -> None:
        """Refuse what no job may carry. Raises ``SpecError``."""
        self._check_kinds()
        for name in ("root", "python"):
            _check(name, getattr(self, name), _PATH, "must be an absolute path on every node, without blanks")
        for name in ("partition", "account", "qos", "reservation", "cluster"):
            if getattr(self, name) is not None:
                _check(name, getattr(self, name), _NAME, "must be a name, or several with commas between them")
        for path, gres in {
            "gres": self.gres,
            **{f"node_gres.{node}": gres for node, gres in self.node_gres.items()},
        }.items():
            if gres:
                _check(path, gres, _GRES, "must be a resource such as gpu or gpu:h100, without a count")
        if self.constraint is not None:
            _check("constraint", self.constraint, _CONSTRAINT, "must be features joined by &, | or the like, no blanks")
        for node in (*self.exclude, *self.node_gres):
            check_node("exclude" if node in self.exclude else "node_gres", node)
        self._check_numbers()

    @classmethod
    def from_json(cls, options: Mapping[str, Any]) -> SlurmOptions:
        """Return options given as plain values. Raises ``SpecError`` for unknown and for bad ones."""
        known = {field.name for field in dataclasses.fields(cls)}
        unknown = sorted(set(options) - known)
        if unknown:
            raise SpecError(
                path=unknown[0], hint=f"is no option of the Slurm engine: it has {', '.join(sorted(known))}"
            )
        values = dict(options)
        if isinstance(values.get("exclude"), list):
            values["exclude"] = tuple(values["exclude"])
        values["network"] = links_of(values.get("network", ()))
        values["fabric"] = facts_of(values.get("fabric", {}))
        values["node_terms"] = _node_terms(values.get("node_terms", {}))
        values["wirings"] = WiringFiles.of(values.get("wirings", {}))
        if isinstance(values.get("container"), Mapping):
            values["container"] = _container(values["container"])
        try:
            return cls(**values)
        except TypeError as error:
            raise SpecError(path="options", hint=misfit(error)) from error

    def gres_of(self, node: str) -> str:
        """Return what one slot of ``node`` is to Slurm; empty when it does not count them."""
        return self.node_gres.get(node, self.gres)

    def shape_of(self, node: str) -> str:
        """Return the kind of machine that ``node`` is."""
        return self.node_shapes.get(node, self.node_shape)

    def terms_of(self, node: str) -> NodeTerms:
        """Return what sets ``node`` apart from others of its shape."""
        return self.node_terms.get(node, NO_TERMS)

    def _check_kinds(self) -> None:
        for name in ("flat", "switches_reduce", "requeue", "exclusive", "chooses_nodes"):
            if type(getattr(self, name)) is not bool:  # "no" in quotes would be taken for yes
                raise SpecError(path=name, value=getattr(self, name), hint="must be true or false")
        if isinstance(self.exclude, str):  # else taken for a list of its letters
            raise SpecError(path="exclude", value=self.exclude, hint="must be a list of nodes' names")

    def _check_numbers(self) -> None:
        for name in ("slots_per_node", "cpus_per_node", "memory_bytes_per_node", "switches", "segment"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int) and value >= 1):
                raise SpecError(path=name, value=value, hint="must be a whole number, 1 or more")
        for name in ("vanish_grace_s", "requeue_grace_s", "notice_s"):
            if not getattr(self, name) >= 0:
                raise SpecError(path=name, value=getattr(self, name), hint="must be 0 s or more")
        if self.notice_s > MAX_NOTICE_S:
            raise SpecError(path="notice_s", value=self.notice_s, hint=f"must be at most {MAX_NOTICE_S} s, says sbatch")
        for name in ("time_limit_s", "switches_wait_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise SpecError(path=name, value=value, hint="must be above 0 s")


def _node_terms(plain: object) -> dict[str, NodeTerms]:
    if not isinstance(plain, Mapping):
        hint = 'must have a block for each node, or list of them: {"gpu[001-016]": {"failures_per_hour": 0.01}}'
        raise SpecError(path="node_terms", value=plain, hint=hint)
    found: dict[str, NodeTerms] = {}
    for names, said in plain.items():
        at = f"node_terms.{names}"
        unknown = sorted(set(said) - set(TERMS)) if isinstance(said, Mapping) else [repr(said)]
        if unknown:
            raise SpecError(path=at, value=unknown[0], hint=f"is not known; known: {', '.join(TERMS)}")
        try:
            nodes = expand(str(names))
        except ValueError as error:
            raise SpecError(path=at, hint=str(error)) from error
        twice = sorted(found.keys() & set(nodes))
        if twice or not nodes:
            raise SpecError(path=at, hint=f"names {twice[0]} a second time" if twice else "names no node")
        found |= dict.fromkeys(nodes, terms_of(said, at=at))
    return found


def check_node(path: str, node: str) -> None:
    """Refuse what is no node's name. Raises ``SpecError``."""
    _check(path, node, _NODE, "must be a node's name")


def _container(value: Mapping[str, Any]) -> Container:
    try:
        kind = ContainerKind(value.get("kind", ""))
        return Container(**{**value, "kind": kind, "mounts": tuple(value.get("mounts", ()))})
    except (ValueError, TypeError) as error:
        hint = f"needs kind ({' or '.join(ContainerKind)}) and image, and may have mounts, workdir, command: {error}"
        raise SpecError(path="container", hint=hint) from error


def _check(path: str, value: object, form: re.Pattern[str], hint: str) -> None:
    if not isinstance(value, str) or not form.fullmatch(value):
        raise SpecError(path=path, value=value, hint=hint)
