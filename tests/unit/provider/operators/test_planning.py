from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_llmsched.engines.local.engine import LocalEngine
from airflow_llmsched.errors import CouldNotLookError
from airflow_llmsched.provider import run_files


@pytest.fixture
def opened(pipeline):
    pipeline.run("open_run")
    return pipeline


def test_xcom_gets_where_the_plan_is_and_a_summary_but_no_placement(opened):
    result = opened.run("plan_training")
    (best, *others) = run_files.read_plan(opened.scope).plans
    assert result["world_size"] == best.layout.world_size == 2
    assert result["num_alternatives"] == len(others)
    assert result["summary"] == best.summary()
    assert result["uri"].endswith("/plan.json")
    text = json.dumps(result)
    assert len(text) < 16 * 1024
    assert "slots" not in text


def test_settings_of_a_tool_are_written_beside_the_plan(opened):
    result = opened.run("plan_training", write_out=["torchrun", "accelerate"])
    assert set(result["settings"]) == {"torchrun", "accelerate"}
    assert (
        run_files.read_plan(opened.scope).tools == run_files.planned_tools(opened.scope) == ("torchrun", "accelerate")
    )
    folder = Path(urlsplit(result["uri"]).path).parent
    assert (folder / "torchrun.args").read_text() == "--nnodes=1\n--nproc-per-node=2\n--max-restarts=0\n"
    text = (folder / "accelerate.yaml").read_bytes()
    assert result["settings"]["accelerate"]["digest"] == hashlib.sha256(text).hexdigest()


def test_a_tool_that_cannot_express_the_plan_fails_the_task_and_an_unknown_one_does_so_first(opened):
    with pytest.raises(AirflowFailException, match=r"model = .*: torchtitan's models"):
        opened.run("plan_training", write_out=["torchtitan"])
    with pytest.raises(AirflowFailException, match="no such tool"):
        opened.run("plan_training", write_out=["nemo"], engine_options={"num_nodse": 2})


def test_an_ask_that_nothing_fits_fails_for_good_and_says_why(opened):
    with pytest.raises(AirflowFailException, match="rank"):
        opened.run("plan_training", engine_options={"num_nodes": 1, "slots_per_node": 1})


def test_an_engine_that_cannot_be_asked_is_asked_again_by_airflows_retries(opened):
    broken = opened.folder / "file"
    broken.write_text("no folder")
    with pytest.raises(CouldNotLookError):
        opened.run("plan_training", engine_options={**opened.options, "root": str(broken)})


def test_an_option_of_the_engine_that_does_not_exist_is_named(opened):
    with pytest.raises(AirflowFailException, match="num_nodse"):
        opened.run("plan_training", engine_options={"num_nodse": 2})


def test_a_run_that_was_never_opened_is_refused(pipeline):
    with pytest.raises(AirflowFailException, match="run OpenRunOperator first"):
        pipeline.run("plan_training")


@pytest.mark.parametrize("changes", [{}, {"queue": {"priority": "urgent"}}])
def test_a_run_that_will_wait_its_turn_is_planned_though_others_hold_everything(make_pipeline, monkeypatch, changes):
    pipeline = make_pipeline(**changes)
    pipeline.run("open_run")
    look = LocalEngine.topology

    def all_held(engine):
        tree = look(engine)
        return replace(tree, nodes=tuple(replace(node, num_free_slots=0, free_slots=()) for node in tree.nodes))

    monkeypatch.setattr(LocalEngine, "topology", all_held)
    if changes:
        assert pipeline.run("plan_training")["world_size"] == 2
        return
    with pytest.raises(
        AirflowFailException, match=r"(?s)0 slots are usable.*with a queue block in its spec the run would wait"
    ):
        pipeline.run("plan_training")
