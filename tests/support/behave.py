"""A rank of the engine contract as a real process: does what ``RankScript`` number RANK of its argument says."""

from __future__ import annotations

import json
import os
import signal
import sys
import time


def main() -> None:
    script = json.loads(sys.argv[1])[int(os.environ["RANK"])]
    if script["ignores_sigterm"]:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if script["says"]:
        sys.stdout.write(script["says"] + "\n")
        sys.stdout.flush()
    time.sleep(1e6 if script["lasts_s"] is None else script["lasts_s"])
    if script["signal"] is not None:
        os.kill(os.getpid(), script["signal"])
    sys.exit(script["exit_code"])


main()
