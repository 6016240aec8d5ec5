from __future__ import annotations

import json

from airflow_llmsched.agent import wire
from airflow_llmsched.agent.launchers.site import whose
from tests.support.launching import BODY, starts


def test_environment_says_who_the_rank_is_and_what_the_gang_asked_for_wins_over_what_was_there() -> None:
    base = {"PATH": "/bin", "OMP_NUM_THREADS": "8", "RANK": "7", "MASTER_PORT": "1", wire.NODE: "outer"}
    (start,) = starts("n0", base)
    environ = start.environ
    assert environ["PATH"] == "/bin"
    assert environ["OMP_NUM_THREADS"] == "2"
    assert "RANK" not in environ
    assert "MASTER_PORT" not in environ
    assert environ["LLMSCHED_DATASET"] == "/data"
    assert environ[wire.NODE] == "n0"
    assert environ[wire.SPOOL] == "/gang/nodes/n0/spool"
    assert (environ[wire.RUN_KEY], environ[wire.GENERATION], environ[wire.ATTEMPT]) == ("ls-x", "2", "3")
    assert environ[wire.ATTEMPT_NAME] == "ls-x-g2-a3"
    assert environ.items() >= whose(BODY).items()
    assert json.loads(environ[wire.LAYOUT]) == {"dp": 4}
    assert environ[wire.SUPERVISOR] == "1:2:boot"


def test_a_process_says_where_its_gang_reports_and_whose_it_is() -> None:
    said = whose(BODY)
    assert said[wire.CHANNEL] == BODY["channel_root"]
    assert json.loads(said[wire.ORIGIN]) == BODY["origin"]


def test_one_thread_per_rank_unless_told_otherwise() -> None:
    assert starts("n0", environment={})[0].environ["OMP_NUM_THREADS"] == "1"
