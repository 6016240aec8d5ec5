from __future__ import annotations

from pathlib import Path

from airflow_llmsched.agent import proc
from airflow_llmsched.agent.gangdir import GangDir
from airflow_llmsched.agent.spool import write_json
from airflow_llmsched.engines.attempt_files import AttemptFiles


def test_what_is_not_there_yet_is_looked_for_again_and_then_remembered(tmp_path: Path) -> None:
    gang = GangDir(tmp_path)
    files = AttemptFiles(gang)
    assert (files.request(), files.supervisor("n0"), files.started("n0")) == (None, None, None)
    gang.node("n0").make()
    write_json(gang.request, {"body": 1})
    gang.node("n0").claim(proc.myself(), at_s=1.0, port=None)
    write_json(gang.node("n0").started, {"at_s": 2.0})
    for _ in range(2):
        assert files.request() == {"body": 1}
        assert files.supervisor("n0") == proc.myself()
        assert files.started("n0") == {"at_s": 2.0}
        for path in (gang.request, gang.node("n0").started, *tmp_path.glob("nodes/n0/claim.json")):
            path.unlink(missing_ok=True)
