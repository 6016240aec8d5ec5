"""From a gang to the batch script and the options of its job. Pure: what is rendered can be printed and read.

A script has ``#SBATCH`` lines of checked tokens and one command: it hands the agent's request, as base64 in a quoted
here-document, to ``airflow_llmsched.agent.slurm_batch``, which becomes the batch process itself (``exec``). So no text
of a spec ever meets a shell. What ranks are to find in their environment is not in it: it lies in the attempt's folder
(``agent.shelf``), which only its owner reads, while Slurm keeps scripts, and shows them to its administrators.
"""

from __future__ import annotations

import base64
import json
import math
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_llmsched.domain.gang import GangSpec, LaunchRequest
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.engines.agent_request import agent_body, check_gang
from airflow_llmsched.engines.slurm.comment import comment_of
from airflow_llmsched.engines.slurm.options import ContainerKind, SlurmOptions, check_node
from airflow_llmsched.errors import SpecError
from airflow_llmsched.topology.nodelist import compress, expand

NAME = "slurm"
BATCH = "airflow_llmsched.agent.slurm_batch"

MAX_SCRIPT_BYTES = 4 * 1024 * 1024
"""Slurm's default limit (``max_script_size`` of SchedulerParameters)."""

_END = "LLMSCHED_REQUEST"
_LINE = 120
_MIB = 1024 * 1024
_EXCLUDE = "exclude"
_LEAF_SWITCH, _BLOCK = "switch0", "block"

_SHOWN_BY = {"": "--nv", "nvidia": "--nv", "amd": "--rocm"}
"""By accelerators' maker, the option of ``apptainer exec`` that brings their driver into an image; TPUs need none."""

JsonDict = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Nodes that are asked for alike. A job of several parts is a heterogeneous one."""

    nodes: tuple[NodeId, ...]
    gres: str
    num_slots: int


def render(gang: GangSpec, *, options: SlurmOptions) -> LaunchRequest:
    """Return the request for ``gang``. Raises ``SpecError`` for what no job of this engine can be."""
    nodes = gang.placement.nodes
    check_gang(gang, slots=dict.fromkeys(nodes, options.slots_per_node))
    for node in nodes:
        check_node("placement", node)
    for node in gang.excluded:
        check_node("excluded", node)
    binds_devices = any(options.gres_of(node) for node in nodes)
    body = agent_body(gang, addresses={node: str(node) for node in nodes}, binds_devices=binds_devices)
    jobs = _jobs(gang, parts_of(gang, options), options)
    text = script(jobs, _handed_over(body, gang, len(jobs), options), python=options.python)
    if len(text) > MAX_SCRIPT_BYTES:
        hint = f"makes a batch script of {len(text)} bytes; Slurm takes {MAX_SCRIPT_BYTES}"
        raise SpecError(path="command", hint=f"{hint}. Hand long arguments over in a file")
    return LaunchRequest(engine=NAME, key=gang.key, body={**body, "slurm": {"script": text, "parts": jobs}})


def parts_of(gang: GangSpec, options: SlurmOptions) -> tuple[Part, ...]:
    """Return the nodes grouped by what is asked of each, in the order of their ranks.

    Nodes taken whole are asked for alike, however many of their slots have ranks.
    """
    groups: dict[tuple[str, int], list[NodeId]] = {}
    for node in gang.placement.nodes:
        slots = options.slots_per_node if options.exclusive else len(gang.placement.held_on(node))
        groups.setdefault((options.gres_of(node), slots), []).append(node)
    return tuple(Part(nodes=tuple(nodes), gres=gres, num_slots=slots) for (gres, slots), nodes in groups.items())


def script(jobs: Sequence[Mapping[str, str | None]], handed_over: Mapping[str, Any], *, python: str) -> str:
    """Return the batch script: options of each part, and the one command."""
    lines = ["#!/bin/bash"]
    for index, job in enumerate(jobs):
        if index:
            lines.append("#SBATCH hetjob")
        lines += [f"#SBATCH --{name}" if value is None else f"#SBATCH --{name}={value}" for name, value in job.items()]
    text = json.dumps(handed_over, separators=(",", ":"), sort_keys=True)
    # srun heeds these before the step's own options: of a job of parts they count the tasks of the first one alone.
    lines += [
        "unset SLURM_EXPORT_ENV SLURM_NTASKS SLURM_NPROCS",
        f"exec {shlex.quote(python)} -P -m {BATCH} <<'{_END}'",
    ]
    coded = base64.b64encode(text.encode()).decode()
    lines += [coded[at : at + _LINE] for at in range(0, len(coded), _LINE)]
    return "\n".join((*lines, _END, ""))


def excluded_of(told: Mapping[str, Any]) -> frozenset[str]:
    """Return the nodes that a rendered job (a request's ``slurm``) keeps off."""
    return frozenset(node for job in told["parts"] for node in expand(job.get(_EXCLUDE, "")))


def without_unknown(told: Mapping[str, Any], known: Collection[str]) -> JsonDict:
    """Return a rendered job that keeps off ``known`` nodes alone: Slurm refuses one that names any other.

    A bad node is often taken out of the cluster, long before a run forgets it.
    """
    text, parts = told["script"], []
    for job in told["parts"]:
        if _EXCLUDE not in job:
            parts.append(job)
            continue
        left = [node for node in expand(job[_EXCLUDE]) if node in known]
        line, kept = f"#SBATCH --{_EXCLUDE}={job[_EXCLUDE]}\n", {_EXCLUDE: compress(left)} if left else {}
        text = text.replace(line, f"#SBATCH --{_EXCLUDE}={kept[_EXCLUDE]}\n" if left else "")
        parts.append({name: value for name, value in job.items() if name != _EXCLUDE} | kept)
    return {**told, "script": text, "parts": parts}


def handed_over(text: str) -> JsonDict:
    """Return what a batch script hands to its command. Raises ``ValueError`` for what is no script of ours."""
    _, found, rest = text.partition(f"<<'{_END}'\n")
    coded, ended, _ = rest.partition(f"\n{_END}\n")
    if not found or not ended:
        raise ValueError("this is no batch script of ours: it hands nothing over")
    return dict(json.loads(base64.b64decode(coded)))


def _jobs(gang: GangSpec, parts: Sequence[Part], options: SlurmOptions) -> list[dict[str, str | None]]:
    """Return each part's options as sbatch spells them; None stands for an option without a value.

    A part takes from the first one whatever concerns the whole job. Parts share its name, so that a job of several
    would wait for itself if it had to be the only one of that name.
    """
    excluded = {*options.exclude, *(gang.excluded if options.chooses_nodes else ())}
    jobs: list[dict[str, str | None]] = [dict(_of_the_part(part, options, excluded)) for part in parts]
    if len(parts) == 1:
        jobs = [{**jobs[0], **_near(gang, options)}]
    alone: dict[str, str | None] = {"dependency": "singleton"} if len(parts) == 1 else {}
    return [{**dict(_of_the_whole(gang, options)), **alone, **jobs[0]}, *jobs[1:]]


def _of_the_whole(gang: GangSpec, options: SlurmOptions) -> Iterator[tuple[str, str | None]]:
    yield "job-name", gang.key.name
    yield "comment", comment_of(gang)
    yield "output", f"{options.root}/{gang.key.name}.%j.log"
    yield "open-mode", "append"
    yield "chdir", options.root
    yield "export", "NONE"
    yield ("requeue" if options.requeue else "no-requeue"), None
    if options.time_limit_s is not None:
        yield "time", str(math.ceil(options.time_limit_s / 60))
        if options.notice_s >= 1:
            yield "signal", f"B:USR1@{int(options.notice_s)}"


def _of_the_part(part: Part, options: SlurmOptions, excluded: Collection[str]) -> Iterator[tuple[str, str | None]]:
    yield "nodes", str(len(part.nodes))
    yield "ntasks-per-node", "1"
    for name in ("partition", "account", "qos", "reservation", "constraint"):
        value = getattr(options, name)
        if value is not None:
            yield name, value
    if part.gres and part.num_slots:
        yield "gres", f"{part.gres}:{part.num_slots}"
    if options.exclusive:
        yield "exclusive", None
    if options.cpus_per_node is not None:
        yield "cpus-per-task", str(options.cpus_per_node)
    if options.memory_bytes_per_node is not None:
        yield "mem", f"{max(1, options.memory_bytes_per_node // _MIB)}M"
    yield from _where(part, options)
    if excluded:
        yield _EXCLUDE, compress(sorted(excluded))


def _where(part: Part, options: SlurmOptions) -> Iterator[tuple[str, str]]:
    if not options.chooses_nodes:
        yield "nodelist", compress(sorted(part.nodes))
    elif options.switches is not None:
        minutes = "" if options.switches_wait_s is None else f"@{math.ceil(options.switches_wait_s / 60)}"
        yield "switches", f"{options.switches}{minutes}"
    if options.segment is not None:
        yield "segment", str(options.segment)


def _near(gang: GangSpec, options: SlurmOptions) -> dict[str, str | None]:
    """Return how near to each other Slurm's nodes are to be, where it chooses them and the options say nothing.

    ``--switches`` counts leaf switches (``topology/tree``); of ``--segment`` each so many nodes are in one block
    (``topology/block``). Levels are named as ``topology.slurm`` reads them.
    """
    if not options.chooses_nodes or options.switches is not None or options.segment is not None:
        return {}
    num_nodes = len(gang.placement.nodes)
    near: dict[str, str | None] = {}
    if any(each.level == _LEAF_SWITCH and each.num_nodes == num_nodes for each in gang.close):
        near["switches"] = "1"
    in_blocks = [each.num_nodes for each in gang.close if each.level == _BLOCK]
    if in_blocks:
        near["segment"] = str(min(in_blocks))
    return near


def _handed_over(body: JsonDict, gang: GangSpec, num_parts: int, options: SlurmOptions) -> JsonDict:
    return {
        "v": 1,
        "root": options.root,
        "gang_dir": f"{options.root}/gangs/{gang.key.name}",
        "body": {name: value for name, value in body.items() if name != "environment"},
        "step": {"srun": _srun(num_parts, options), "python": _python(gang, options)},
        "chooses_nodes": options.chooses_nodes,
        "notice_s": options.notice_s,
        "requeue": options.requeue,
    }


def _srun(num_parts: int, options: SlurmOptions) -> list[str]:
    """Return what starts one task on each node. No task is killed for another: the agents end a gang themselves."""
    argv = ["srun", "--ntasks-per-node=1", "--kill-on-bad-exit=0", "--no-kill", "--input=none", "--export=ALL"]
    if num_parts > 1:
        argv.append(f"--het-group=0-{num_parts - 1}")
    container = options.container
    if container is not None and container.kind is ContainerKind.PYXIS:
        argv.append(f"--container-image={container.image}")
        mounts = ",".join(mount if ":" in mount else f"{mount}:{mount}" for mount in container.mounts)
        argv += [f"--container-mounts={mounts}"] if mounts else []
        argv += [f"--container-workdir={container.workdir}"] if container.workdir is not None else []
    return argv


def _python(gang: GangSpec, options: SlurmOptions) -> list[str]:
    """Return what runs Python on a node: inside the image, where there is one."""
    container = options.container
    if container is None or container.kind is not ContainerKind.APPTAINER:
        return [options.python]
    shows_devices = options.gres and gang.accelerator_vendor in _SHOWN_BY
    gpus = [_SHOWN_BY[gang.accelerator_vendor]] if shows_devices else []
    mounts = [part for mount in container.mounts for part in ("--bind", mount)]
    workdir = [] if container.workdir is None else ["--pwd", container.workdir]
    return [container.command, "exec", *gpus, *mounts, *workdir, container.image, options.python]
