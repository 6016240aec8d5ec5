"""A task of a cluster that TF_CONFIG describes, without TensorFlow: serves on its own port, and asks every other task.

It reads what ``TFConfigClusterResolver`` reads, binds as gRPC does (SO_REUSEADDR), and checks who answers where.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from pathlib import Path

config = json.loads(os.environ["TF_CONFIG"])
told = json.loads(sys.argv[1])
kind, index = config["task"]["type"], config["task"]["index"]
tasks = {f"{each}{number}": where for each, all_ in config["cluster"].items() for number, where in enumerate(all_)}
name = f"{kind}{index}"


def serve(listener: socket.socket) -> None:
    while True:
        peer, _ = listener.accept()
        with peer:
            peer.sendall(name.encode())


def ask(where: str) -> str:
    host, port = where.rsplit(":", 1)
    give_up_s = time.monotonic() + 60
    while True:
        try:
            with socket.create_connection((host, int(port)), timeout=10) as peer:
                return peer.makefile().read()
        except OSError:
            if time.monotonic() > give_up_s:
                raise
            time.sleep(0.02)


if name in tasks:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    host, port = tasks[name].rsplit(":", 1)
    listener.bind((host, int(port)))
    listener.listen()
    threading.Thread(target=serve, args=(listener,), daemon=True).start()
answers = {task: ask(where) for task, where in tasks.items()}
Path(told["out"], f"{name}.json").write_text(json.dumps({"task": name, "answers": answers}))
if kind in ("ps", "evaluator"):
    time.sleep(1e6)  # served until ended
# Nobody leaves before all have asked, as collectives would see to it.
while len(list(Path(told["out"]).glob("*.json"))) < told["num_tasks"]:
    time.sleep(0.02)
