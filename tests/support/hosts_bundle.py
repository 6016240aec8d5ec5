"""The hosts engine's command on this machine, as it would run on a host: from the bundle, by a process of its own."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_llmsched.engines.hosts import bundle
from airflow_llmsched.engines.hosts.words import Failed, answer_of


class OneHost:
    """Runs verbs with ``folder`` as the host's own."""

    def __init__(self, root: Path, *, node: str = "h1") -> None:
        self.folder = root / "host"
        self.node = node
        self._command = root / "command"
        zipfile.ZipFile(io.BytesIO(bundle.build().data)).extractall(self._command)

    def run(self, verb: str, told: Mapping[str, Any], *, follows: bytes = b"") -> Mapping[str, Any] | Failed:
        """Return the answer."""
        line = json.dumps({"folder": str(self.folder), "node": self.node, **told}).encode() + b"\n"
        argv = [sys.executable, "-I", "-S", str(self._command), verb]
        done = subprocess.run(argv, input=line + follows, capture_output=True, check=True, timeout=100, cwd="/")
        answer = answer_of(done.stdout)
        assert answer is not None, done.stderr
        return answer

    def ok(self, verb: str, **told: Any) -> Mapping[str, Any]:
        """Return the answer, which must be one."""
        answer = self.run(verb, told)
        assert not isinstance(answer, Failed), answer
        return answer
