"""Each rank is started by itself, with its place in the variables that torch.distributed reads (``env://``)."""

from __future__ import annotations

from airflow_llmsched.agent.launchers.site import Site, Start


def starts(site: Site) -> list[Start]:
    """Return one process for each rank of the node."""
    return [Start(site.wrapper, {**site.environ, **site.place_of(local_rank)}) for local_rank in range(len(site.ranks))]
