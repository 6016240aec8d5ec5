"""A process of its own that reserves from a folder, checks that nobody else has its nodes, and frees them again."""

from __future__ import annotations

import random
import sys

from airflow_llmsched.clock import SystemClock
from airflow_llmsched.clouds.onprem.fleet import Fleet, Reservation
from airflow_llmsched.clouds.onprem.reservations import Reservations
from airflow_llmsched.domain.capacity import Pool
from airflow_llmsched.domain.identity import LeaseKey, NodeId, RunKey
from airflow_llmsched.domain.workload import CapacityType
from airflow_llmsched.errors import CapacityError
from airflow_llmsched.objects.local import LocalStore

POOL = Pool(cloud="onprem", region="hall", zone="", shape="dgx", capacity_type=CapacityType.ON_DEMAND)


def choose(fleet: Fleet, *, key: LeaseKey, nodes: list[NodeId], num_nodes: int) -> Reservation:
    free = [node for node in nodes if node not in fleet.taken]
    if len(free) < num_nodes:
        raise CapacityError("full")
    return Reservation(key=key, pool=POOL, nodes=tuple(free[:num_nodes]), until_s=4e9)


def main(root: str, letter: str, num_rounds: int) -> None:
    chance = random.Random(letter)
    mine = Reservations(LocalStore(root), fleet="hall", clock=SystemClock(), snapshot_every=4)
    nodes = [NodeId(f"n{number}") for number in range(4)]
    for rental in range(1, num_rounds + 1):
        key = LeaseKey(run=RunKey(f"ls-{letter * 20}"), generation=1, rental=rental)
        num_nodes = chance.randint(1, 4)
        try:
            held = mine.reserve(key.name, lambda fleet: choose(fleet, key=key, nodes=nodes, num_nodes=num_nodes))  # noqa: B023 - called at once
        except CapacityError:
            continue
        seen = mine.fleet().reserved
        assert seen[key.name].nodes == held.nodes
        others = {node for name, each in seen.items() if name != key.name for node in each.nodes}
        assert not others & set(held.nodes), f"{key.name} shares {others & set(held.nodes)}"
        mine.extend(key.name, until_s=4e9 + rental)
        mine.free(key.name)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
