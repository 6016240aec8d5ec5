"""Options of ``sbatch`` where Slurm chooses the nodes: as near to each other as the plan's groups need.

Source: https://slurm.schedmd.com/sbatch.html (25.05): ``--switches`` counts leaf switches of ``topology/tree``;
``--segment`` is of ``topology/block``, where each run of so many nodes is inside one block. Levels are named as the
readers of Slurm's topology name them: ``switch0`` is a leaf switch, ``block`` a base block.
"""

from __future__ import annotations

from collections.abc import Sequence

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.planner.export.cells import Cells, cells_of, is_uneven
from airflow_llmsched.planner.export.gaps import Gap
from airflow_llmsched.planner.export.planned import PlannedRun, common_notes
from airflow_llmsched.planner.export.pods import node_rank_words
from airflow_llmsched.planner.export.text import arguments_text
from airflow_llmsched.planner.export.torchrun import UNEVEN_NODES

LEAF_SWITCH = "switch0"
BLOCK = "block"


def _unsayable(run: PlannedRun) -> object | None:
    if is_uneven(run):
        return None
    cells = cells_of(run)
    needs = [*([(cells.whole, cells.num_pods)] if cells.whole else []), *((c.level, c.num_pods) for c in cells.inner)]
    sayable = [BLOCK] if cells.inner else [BLOCK, LEAF_SWITCH]
    left = [f"{num} nodes in a {level}" for level, num in needs if level not in sayable]
    return "; ".join(left) or None


GAPS = (
    UNEVEN_NODES,
    Gap(
        path="placement",
        why="Slurm keeps a job on one leaf switch, or runs of nodes in one block, and nothing else; engine slurm can "
        "name the plan's own nodes instead (it does unless chooses_nodes is set)",
        used=_unsayable,
    ),
)


def options(cells: Cells, *, excluded: Sequence[NodeId] = ()) -> dict[str, str]:
    """Return options by name, without their dashes; ``excluded`` nodes are those that Slurm must leave out."""
    found = {"nodes": str(cells.num_pods), "ntasks-per-node": "1", "gpus-per-node": str(cells.ranks_per_pod)}
    if cells.whole == LEAF_SWITCH:
        found["switches"] = "1"
    elif cells.whole == BLOCK:
        found["segment"] = str(cells.num_pods)
    for cell in cells.inner:
        found["segment"] = str(cell.num_pods)
    if excluded:
        found["exclude"] = ",".join(excluded)
    return found


def render(run: PlannedRun) -> str:
    """Return the options, one a line."""
    return arguments_text(f"--{name}={value}" for name, value in options(cells_of(run), excluded=run.excluded).items())


def notes(run: PlannedRun) -> tuple[str, ...]:
    """Say what else sbatch has to be told."""
    return (
        "Add the script, which starts one launcher on each node: "
        f"{node_rank_words(cells_of(run), index='SLURM_NODEID')}.",
        *common_notes(run),
    )
