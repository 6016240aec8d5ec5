"""Process 1 of one machine of ``ssh_hosts``: gives it a disk and a boot of its own, runs sshd, adopts orphans.

It runs in namespaces of its own (network, mounts, processes), and everything of the machine dies with it. Nothing but
the standard library: started with ``python -I -S``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def main(told: dict[str, Any]) -> None:
    """Mount, start sshd, and reap whatever ends until killed."""
    for source, target in told["mounts"]:
        subprocess.run(["mount", "--bind", source, target], check=True)
    # Where /proc shows nothing else: a supervisor of another machine is no process here.
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    with Path(told["log"]).open("ab") as log:
        subprocess.Popen(["/usr/sbin/sshd", "-D", "-e", "-f", told["config"]], stdout=log, stderr=log, cwd="/")
    while True:
        os.wait()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
