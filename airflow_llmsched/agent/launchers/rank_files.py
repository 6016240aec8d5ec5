"""Files by which Open MPI is told which rank runs where: the hostfile and the rankfile of ``mpirun`` 4.1. Pure."""

from __future__ import annotations

from collections.abc import Iterable


def hostfile(hosts: Iterable[tuple[str, int]]) -> str:
    """Return a hostfile of nodes in the order of their ranks, each with how many it has; those without are left out."""
    return "".join(f"{host} slots={num_ranks}\n" for host, num_ranks in hosts if num_ranks)


def rankfile(places: Iterable[tuple[int, str, str]]) -> str:
    """Return a rankfile of (rank, host, cores), cores as ``0-7`` of the node or ``1:*`` for all of a socket."""
    return "".join(f"rank {rank}={host} slot={cores}\n" for rank, host, cores in places)
