"""What a BMC's power button is to the machines of ``ssh_hosts``: ``power_off.py ROOT HOST`` exits 0 once one is off."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path


def main(root: str, host: str) -> int:
    """End a machine's first process, and with it all others; wait until none of its namespace is left."""
    boot = int((Path(root) / "power" / host).read_text())
    first = int(Path(f"/proc/{boot}/task/{boot}/children").read_text().split()[0])
    space = Path(f"/proc/{first}/ns/pid").readlink()
    os.kill(first, 9)
    while any(_space_of(path) == space for path in Path("/proc").glob("[0-9]*")):
        time.sleep(0.02)
    return 0


def _space_of(path: Path) -> Path | None:
    with contextlib.suppress(OSError):
        return (path / "ns" / "pid").readlink()
    return None


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
