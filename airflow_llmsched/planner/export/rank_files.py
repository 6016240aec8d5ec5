"""Which rank runs where, for launchers that are told: hostfiles, a rankfile, each node's devices, and a table."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Iterator

from airflow_llmsched.agent.launchers import rank_files
from airflow_llmsched.agent.launchers.devices import selection
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.planner.export.planned import PlannedRun, common_notes
from airflow_llmsched.planner.export.text import comments
from airflow_llmsched.planner.export.wiring import num_numa_nodes, rank_places, shape_of


def hostfile(run: PlannedRun) -> str:
    """Return Open MPI's hostfile."""
    placement = run.placement
    nodes = () if placement is None else placement.nodes
    return rank_files.hostfile((node, num) for node, num in zip(nodes, run.ranks_on_nodes, strict=True))


def rankfile(run: PlannedRun) -> str:
    """Return Open MPI's rankfile: each rank on the processor socket that its accelerator is next to."""
    number = num_numa_nodes(run)
    return rank_files.rankfile((each.rank, each.node, f"{each.socket(number)}:*") for each in rank_places(run))


def slurm_hostfile(run: PlannedRun) -> str:
    """Return a file for SLURM_HOSTFILE: the node of each task, in rank order."""
    return "".join(f"{each.node}\n" for each in rank_places(run))


def table(run: PlannedRun) -> str:
    """Return the places of all ranks as tab-separated values with a heading."""
    lines = ["rank\tnode\tgpu\tnic\tnuma"]
    for each in rank_places(run):
        nic, numa = ("" if value is None else value for value in (each.nic, each.numa_node))
        lines.append(f"{each.rank}\t{each.node}\t{each.slot}\t{nic}\t{numa}")
    return "".join(f"{line}\n" for line in lines)


def environment(run: PlannedRun) -> str:
    """Return variables that follow from the placement, each with its reason: of all ranks, then node by node."""
    told = [f"{comments([each.why])}{each.name}={shlex.quote(each.value)}\n" for each in run.launch_settings]
    blocks = ["# every rank\n" + "".join(told)] if told else []
    for slots, nodes in _nodes_by_slots(run).items():
        named = [f"{name}={shlex.quote(value)}\n" for name, value in selection(run.accelerator_vendor, slots).items()]
        if named:
            blocks.append(comments([f"ranks on {', '.join(nodes)}: the accelerators that the plan gave them there"]))
            blocks[-1] += "".join(named)
    return "\n".join(blocks) or "# nothing follows from this placement\n"


def _nodes_by_slots(run: PlannedRun) -> dict[tuple[int, ...], list[NodeId]]:
    slots_of: dict[NodeId, list[int]] = defaultdict(list)
    for each in rank_places(run):
        slots_of[each.node].append(each.slot)
    found: dict[tuple[int, ...], list[NodeId]] = defaultdict(list)
    for node, slots in slots_of.items():
        found[tuple(slots)].append(node)
    return dict(found)


def hostfile_notes(run: PlannedRun) -> tuple[str, ...]:
    """Say how to use it."""
    return ("mpirun --hostfile FILE --map-by slot starts ranks in this order.", *common_notes(run))


def rankfile_notes(run: PlannedRun) -> tuple[str, ...]:
    """Say how to use it, and what it takes for granted."""
    return ("mpirun --hostfile HOSTFILE --rankfile FILE, Open MPI 4.1.", *_wiring_notes(run), *common_notes(run))


def slurm_hostfile_notes(run: PlannedRun) -> tuple[str, ...]:
    """Say how to use it."""
    num = run.layout.world_size
    return (
        f"SLURM_HOSTFILE=FILE srun --distribution=arbitrary --ntasks={num} starts one task a rank, in this order.",
        *common_notes(run),
    )


def table_notes(run: PlannedRun) -> tuple[str, ...]:
    """Say what the table takes for granted."""
    return tuple(_wiring_notes(run))


def environment_notes(_run: PlannedRun) -> tuple[str, ...]:
    """Say what is left out."""
    return ("Only what follows from the placement is here; interfaces and cards are found by NCCL itself.",)


def _wiring_notes(run: PlannedRun) -> Iterator[str]:
    if run.wiring is not None:
        yield "Cards and NUMA nodes are those of the matrix that was handed over, on every node alike."
        told = {gpu.index for gpu in run.wiring.gpus}
        beyond = sum(place.slot not in told for place in rank_places(run))
        if beyond:
            yield f"{beyond} ranks have neither: the matrix has {len(told)} accelerators, as other nodes have."
    elif shape_of(run) is None:
        yield f"Which card and NUMA node an accelerator of {run.node_shape or 'these nodes'} is next to is not known."
    else:
        yield f"Cards and NUMA nodes are as {run.node_shape} is usually wired: hand over nvidia-smi topo -m (--wiring)."
