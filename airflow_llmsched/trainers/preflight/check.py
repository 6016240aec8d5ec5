"""What each rank of a preflight gang runs: ``python -m airflow_llmsched.trainers.preflight.check``.

The first rank of each node checks the node, and prints what its ranks found. A rank exits 0 once that is said.
"""

from __future__ import annotations

import datetime
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import distributed

from airflow_llmsched.agent import api
from airflow_llmsched.trainers.preflight.compute import check_compute
from airflow_llmsched.trainers.preflight.devices import check_devices
from airflow_llmsched.trainers.preflight.links import check_sum, exchange, judge_node, pairs_of
from airflow_llmsched.trainers.preflight.nccl import check_nccl
from airflow_llmsched.trainers.preflight.network import check_cards
from airflow_llmsched.trainers.preflight.storage import check_folder
from airflow_llmsched.trainers.preflight.words import OPTIONS_VARIABLE, Options, bad, line, skipped

Checks = list[dict[str, Any]]


def main() -> int:
    """Check, and say what was found."""
    options = Options.from_json(os.environ[OPTIONS_VARIABLE])
    rank, num_ranks, local_rank = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    node = api.layout().node or "node"
    api.ready()
    is_first = local_rank == 0
    num_local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    slots = shown_slots(os.environ, num_slots=num_local_ranks)
    own = _node_checks(options, node=node, slots=slots) if is_first else []
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    own.append(_compute(device, seed=rank))
    met = _meet(options, rank=rank, num_ranks=num_ranks)
    if met is None:
        own = _together(options, node=node, is_first=is_first, own=own, device=device)
        distributed.destroy_process_group()
    else:
        own.append(met)
    if is_first:
        sys.stdout.write("".join(f"{line(check)}\n" for check in own))
        sys.stdout.flush()
    return 0


def _compute(device: torch.device, *, seed: int) -> dict[str, Any]:
    try:
        return check_compute(device, seed=seed)
    except RuntimeError as error:  # such as a device that does not start, or is out of memory
        return bad("compute", f"{device}: {str(error).splitlines()[0]}")


def shown_slots(environ: Mapping[str, str], *, num_slots: int) -> list[int]:
    """Return the accelerators of the node that the gang has, as the node's own tools number them.

    They are those that its processes are shown; the first ones where that is not said in numbers.
    """
    shown = environ.get("CUDA_VISIBLE_DEVICES") or environ.get("ROCR_VISIBLE_DEVICES") or ""
    named = shown.split(",")
    if len(named) == num_slots and all(each.isdecimal() for each in named):
        return [int(each) for each in named]
    return list(range(num_slots))


def _node_checks(options: Options, *, node: str, slots: Sequence[int]) -> Checks:
    num_slots = len(slots)
    checks = [*check_devices(vendor=options.vendor, slots=slots), check_cards(num_nics=options.num_nics)]
    checks += [check_folder(folder, node=node, num_bytes=options.num_storage_bytes) for folder in options.folders]
    if options.nccl_tests and num_slots > 1:
        checks.append(check_nccl(options.nccl_tests, num_gpus=num_slots))
    return checks


def _meet(options: Options, *, rank: int, num_ranks: int) -> dict[str, Any] | None:
    """Join the others; where that fails, return it as a check of this node."""
    limit = datetime.timedelta(seconds=options.link_limit_s)
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    try:
        distributed.init_process_group(backend, rank=rank, world_size=num_ranks, timeout=limit)
        control = distributed.new_group(backend="gloo", timeout=limit)
        distributed.monitored_barrier(control, timeout=limit, wait_all_ranks=True)
    except RuntimeError as error:
        words = str(error).splitlines()[0]
        late = re.search(r"Ranks ([\d, ]+) failed to pass", words)
        return skipped("meeting", f"ranks {late[1]} did not come" if late else words)
    return None


def _together(options: Options, *, node: str, is_first: bool, own: Checks, device: torch.device) -> Checks:
    """Check what takes several nodes; return the checks of all ranks of this one."""
    ranks: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(ranks, (node, is_first))
    leaders = {name: number for number, (name, first) in enumerate(ranks) if first}
    nodes = list(leaders)
    results = _pairs(options, nodes, leaders, device=device)
    own = [*own, check_sum(num_bytes=options.num_link_bytes, device=device)]
    said: list[Any] = [None] * len(ranks)
    distributed.all_gather_object(said, own)
    found = [check for (name, _), checks in zip(ranks, said, strict=True) if name == node for check in checks]
    return [*_worst_of_each(found), judge_node(nodes.index(node), results, nodes)]


def _pairs(
    options: Options, nodes: Sequence[str], leaders: Mapping[str, int], *, device: torch.device
) -> dict[tuple[int, int], float | str]:
    """Have nodes exchange a buffer by pairs; return all pairs' results, on every rank."""
    rank = distributed.get_rank()
    results: dict[tuple[int, int], float | str] = {}
    for pairs in pairs_of(len(nodes)):
        mine: dict[tuple[int, int], float | str] = {}
        for pair in pairs:
            ends = [leaders[nodes[each]] for each in pair]
            if rank in ends:
                peer = ends[1] if rank == ends[0] else ends[0]
                mine[pair] = exchange(
                    peer, num_bytes=options.num_link_bytes, limit_s=options.link_limit_s, device=device
                )
        said: list[Any] = [None] * distributed.get_world_size()
        distributed.all_gather_object(said, mine)
        for each in said:
            for pair, result in each.items():
                known = results.get(pair)
                results[pair] = result if known is None else _worse(known, result)
    return results


def _worse(one: float | str, other: float | str) -> float | str:
    if isinstance(one, str) or isinstance(other, str):
        return one if isinstance(one, str) else other
    return min(one, other)


def _worst_of_each(checks: Checks) -> Checks:
    """Return the worst of the checks that several ranks of a node made: a bad one, else the slowest."""
    worst: dict[str, dict[str, Any]] = {}
    for check in checks:
        known = worst.get(check["name"])
        if known is None or _key(check) < _key(known):
            worst[check["name"]] = check
    return list(worst.values())


def _key(check: Mapping[str, Any]) -> tuple[bool, float]:
    value = check["value"]
    return check["outcome"] != "bad", float("inf") if value is None else float(value)


if __name__ == "__main__":
    sys.exit(main())
