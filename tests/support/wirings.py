"""What ``nvidia-smi topo -m`` prints, for tests of whoever reads it from a file."""

from __future__ import annotations

TWO_SOCKETS = """\
        GPU0    GPU1    GPU2    GPU3    CPU Affinity    NUMA Affinity
GPU0     X      SYS     PHB     SYS     0-15    0
GPU1    SYS      X      SYS     PHB     16-31   1
GPU2    PHB     SYS      X      SYS     0-15    0
GPU3    SYS     PHB     SYS      X      16-31   1
"""
"""Four GPUs of which the even ones are on one NUMA node, and the odd ones on the other."""
