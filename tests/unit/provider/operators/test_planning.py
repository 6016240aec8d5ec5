from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_llmsched.clock import SystemClock
from airflow_llmsched.control.arbiter_state import Claim
from airflow_llmsched.control.arbiter_view import left_over
from airflow_llmsched.control.open_arbiter import open_ground
from airflow_llmsched.domain.identity import NodeId, RunKey
from airflow_llmsched.domain.network_load import LinkLoad, NetworkLoad
from airflow_llmsched.domain.queue import QueuedGang
from airflow_llmsched.engines.local.engine import LocalEngine
from airflow_llmsched.errors import CouldNotLookError
from airflow_llmsched.provider import run_files
from tests.support.networked_house import two_blocks


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


FIRST, BESIDE_IT, APART = ({f"n{number:04d}" for number in range(at, at + 6)} for at in (0, 6, 12))


@pytest.fixture
def six_nodes(make_pipeline, monkeypatch):
    """Makes an opened pipeline of six nodes, which no rack has, beside a run that fills the link of a rack."""

    def make(**changes):
        traffic = {"group": "trainer", "group_size": 48, "collective": "all_reduce", "bytes_per_step": "64GiB"}
        pipeline = make_pipeline(
            batch={"sequence_length": 2, "global_batch": "48 sequences"},
            capacity={"min_ranks": 48, "max_ranks": 48},
            communication={"version": 1, "traffic": [traffic]},
            **changes,
        )
        monkeypatch.setattr(LocalEngine, "topology", lambda _engine: left_over(two_blocks(), claims(pipeline), run=ME))
        pipeline.run("open_run")
        return pipeline

    return make


ME, OTHER = RunKey("ls-me"), RunKey("ls-aaaaaaaaaaaaaaaaaaaa")
LOAD = NetworkLoad(
    shape="p5.48xlarge",
    step_s=1.0,
    links=(LinkLoad(domains=(("b00", "r001"),), bytes_per_step=2e10, alone_bytes_per_s=2.8e10),),
)


def ground_of(pipeline):
    return open_ground(pipeline.engine, "local", None, store=pipeline.scope.store(), clock=SystemClock())


def claims(pipeline):
    return ground_of(pipeline).state()


def hold(pipeline, nodes, load):
    gang = QueuedGang(key=OTHER, team="default", priority_class="normal")
    held = {NodeId(node): tuple(range(8)) for node in nodes}
    ground_of(pipeline).claim(
        Claim(gang=gang, num_records=1, since_s=0.0, dag_id="other", held=held, started_s=1.0, load=load)
    )


@pytest.mark.parametrize(("load", "nodes"), [(LOAD, APART), (None, BESIDE_IT)])
def test_a_run_is_planned_off_links_that_gangs_of_other_runs_keep_busy(six_nodes, load, nodes):
    pipeline = six_nodes()
    hold(pipeline, FIRST, load)
    pipeline.run("plan_training")
    found = run_files.read_plan(pipeline.scope)
    assert set(found.plans[0].placement.nodes) == nodes
    assert not any(note.startswith("Beside others") for note in found.notes)


def test_where_there_is_no_other_room_plan_and_log_say_who_slows_whom(six_nodes, capsys):
    pipeline = six_nodes()
    hold(pipeline, FIRST | APART | {"n0018"}, LOAD)
    pipeline.run("plan_training")
    found = run_files.read_plan(pipeline.scope)
    assert set(found.plans[0].placement.nodes) == BESIDE_IT
    (note,) = [each for each in found.notes if each.startswith("Beside others")]
    assert f"run {OTHER} (other) on the links of the rack of n0004 slows this run by " in note
    assert note in capsys.readouterr().out


def test_a_run_that_will_wait_its_turn_is_planned_as_if_nobody_ran(six_nodes):
    pipeline = six_nodes(queue={"priority": "urgent"})
    hold(pipeline, FIRST, LOAD)
    pipeline.run("plan_training")
    assert set(run_files.read_plan(pipeline.scope).plans[0].placement.nodes) == FIRST


def test_claims_that_cannot_be_read_keep_nobody_from_planning(six_nodes, caplog):
    pipeline = six_nodes()
    hold(pipeline, FIRST, LOAD)
    tree = pipeline.engine.topology()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalEngine, "topology", lambda _engine: tree)
        (record,) = [each.key for each in pipeline.scope.store().list("arbiter/") if "/records/" in each.key]
        pipeline.scope.store().put(record, b"torn")
        pipeline.run("plan_training")
    assert set(run_files.read_plan(pipeline.scope).plans[0].placement.nodes) == BESIDE_IT
    assert "planned as if no other run used the network" in caplog.text
