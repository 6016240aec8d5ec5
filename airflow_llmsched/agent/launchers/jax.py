"""``jax.distributed``: each rank is one process of JAX, and ``jax.distributed.initialize()`` needs no arguments.

JAX (0.10, ``jax/_src/distributed.py``) reads JAX_COORDINATOR_ADDRESS and JAX_LOCAL_DEVICE_IDS, but finds the number of
processes and the own one only where it knows the cluster. Of those that it knows, Open MPI's is asked first and reads
nothing but the environment (``jax/_src/clusters/ompi_cluster.py``): so it is told in those words. Slurm's would take
our one supervisor for each node to be the process. JAX_NUM_PROCESSES and JAX_PROCESS_ID are for scripts that pass them
on.
"""

from __future__ import annotations

from airflow_llmsched.agent.launchers.devices import is_tpu
from airflow_llmsched.agent.launchers.site import Site, Start


def starts(site: Site) -> list[Start]:
    """Return one process for each rank of the node."""
    return [Start(site.wrapper, _environ(site, local_rank)) for local_rank in range(len(site.ranks))]


def _environ(site: Site, local_rank: int) -> dict[str, str]:
    place = site.place_of(local_rank)
    environ = {
        **site.environ,
        **place,
        "JAX_COORDINATOR_ADDRESS": site.meeting.endpoint,
        "JAX_NUM_PROCESSES": place["WORLD_SIZE"],
        "JAX_PROCESS_ID": place["RANK"],
        "OMPI_MCA_orte_hnp_uri": "llmsched",  # its presence says "Open MPI"; it is not read, as the address is given
        "OMPI_COMM_WORLD_SIZE": place["WORLD_SIZE"],
        "OMPI_COMM_WORLD_RANK": place["RANK"],
        "OMPI_COMM_WORLD_LOCAL_RANK": place["LOCAL_RANK"],
    }
    if not is_tpu(site.body):
        environ["JAX_LOCAL_DEVICE_IDS"] = place["LOCAL_RANK"]  # among those that the node's ranks see
    return environ
