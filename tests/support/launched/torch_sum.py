"""A rank that meets others by what torch.distributed reads: an all-reduce, and what it was told of its place.

Not by DeepSpeed's own start-up: on processors that compiles an extension first, which takes a minute.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch

told = json.loads(sys.argv[1])
torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
value = torch.tensor(rank + 1.0)
torch.distributed.all_reduce(value)
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK", "LLMSCHED_NODE", "CUDA_VISIBLE_DEVICES")
Path(told["out"], f"{rank}.json").write_text(
    json.dumps(
        {
            "rank": rank,
            "size": torch.distributed.get_world_size(),
            "sum": value.item(),
            **{name: os.environ[name] for name in names},
        }
    )
)
torch.distributed.destroy_process_group()
