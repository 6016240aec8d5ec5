"""A rank of JAX: ``jax.distributed.initialize()`` without arguments, and a psum over all processes."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

told = json.loads(sys.argv[1])
jax.distributed.initialize()
rank = jax.process_index()
mesh = Mesh(jax.devices(), ("all",))
own = jnp.array([rank + 1.0])
shards = jax.make_array_from_process_local_data(NamedSharding(mesh, PartitionSpec("all")), own)
total = jax.jit(
    jax.shard_map(lambda x: jax.lax.psum(x, "all"), mesh=mesh, in_specs=PartitionSpec("all"), out_specs=PartitionSpec())
)(shards)
Path(told["out"], f"{rank}.json").write_text(
    json.dumps(
        {
            "rank": rank,
            "size": jax.process_count(),
            "sum": float(total.addressable_data(0)[0]),
            **{name: os.environ[name] for name in ("RANK", "LOCAL_RANK", "LLMSCHED_NODE", "JAX_LOCAL_DEVICE_IDS")},
        }
    )
)
jax.distributed.shutdown()
