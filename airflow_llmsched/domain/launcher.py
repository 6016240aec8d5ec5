"""What starts the ranks of a gang."""

from __future__ import annotations

from enum import StrEnum


class Launcher(StrEnum):
    """What starts the ranks of one node."""

    TORCHRUN = "torchrun"
    PLAIN = "plain"
    """Each rank is started directly, with RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set."""
    MPIRUN = "mpirun"
    """Open MPI's, on the first node; its daemons are started by the supervisors of their nodes."""
    DEEPSPEED = "deepspeed"
    """DeepSpeed's launcher of one node, on every node."""
    JAX = "jax"
    """Each rank is started directly, with what ``jax.distributed.initialize()`` reads beside the plain variables."""
    TF_CONFIG = "tf_config"
    """Each rank is started directly, with TF_CONFIG beside the plain variables."""
