"""A real local engine, and real ranks: with PyTorch where it says so, else of a script that says what it is told to."""

from __future__ import annotations

from dataclasses import replace

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_llmsched.clock import SystemClock
from airflow_llmsched.control.arbiter_ground import Ground
from airflow_llmsched.control.arbiter_state import Claim
from airflow_llmsched.control.events import PlanChosen, Woke
from airflow_llmsched.control.open_arbiter import open_ground
from airflow_llmsched.domain.identity import NodeId, RunKey
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.ledger import Bucket
from airflow_llmsched.domain.queue import QueuedGang
from airflow_llmsched.engines.local.engine import LocalEngine
from airflow_llmsched.provider import preflight_run, run_files
from airflow_llmsched.provider.gang_run import preflight_record
from airflow_llmsched.provider.gang_watch import cancel
from airflow_llmsched.provider.handover import handed_over
from airflow_llmsched.provider.hooks.placement import PlacementHook
from airflow_llmsched.provider.operators.gang_base import GangFailedError
from tests.support.pipeline import Pipeline, plain_spec

CHECKS = """
import json, os, time
node = os.environ["LLMSCHED_NODE"]
if {slow}:
    time.sleep(600)
check = {{"name": "disk", "outcome": "bad" if node in {broken} else "ok", "detail": "worn out"}}
print("LLMSCHED-PREFLIGHT " + json.dumps(check))
size = "268435456 bytes over " + os.environ["WORLD_SIZE"] + " ranks"
check = {{"name": "collective", "outcome": "ok", "detail": size, "value": {rate}}}
print("LLMSCHED-PREFLIGHT " + json.dumps(check))
"""
SLOW_LINK = 2e6
"""Bytes/s of a collective: so far below what a topology claims that every plan over nodes shows it."""
OTHER = RunKey("ls-aaaaaaaaaaaaaaaaaaaa")
FOUR_RANKS = {"min_ranks": 4, "max_ranks": 4}


@pytest.fixture
def pipeline(tmp_path, monkeypatch):
    monkeypatch.setenv("AIRFLOW__LLMSCHED__STATE_ROOT", str(tmp_path / "state"))
    made = Pipeline(
        tmp_path, spec=plain_spec(capacity=FOUR_RANKS, batch={"sequence_length": 2, "global_batch": "4 sequences"})
    )
    made.options = {"num_nodes": 3, "slots_per_node": 2}
    yield made
    made.close()


@pytest.fixture
def links(tmp_path):
    """Makes a stand-in for nccl-tests that finds wrong values on the given nodes."""

    def make(*broken: str) -> str:
        path = tmp_path / "all_reduce_perf"
        cases = "".join(f"{node}) wrong=7;; " for node in broken)
        path.write_text(
            f'#!/bin/sh\nwrong=0\ncase "$LLMSCHED_NODE" in {cases}*) ;; esac\n'
            'echo "# Out of bounds values : $wrong OK"\necho "# Avg bus bandwidth    : 300.5"\n'
        )
        path.chmod(0o755)
        return str(path)

    return make


@pytest.fixture
def checks(tmp_path, monkeypatch):
    """Has ranks find the given nodes broken, at once; ``slow`` ones never end. ``rate`` is that of their collective."""

    def find(*broken: str, slow: bool = False, rate: float | None = None) -> None:
        path = tmp_path / "checks.py"
        path.write_text(CHECKS.format(broken=broken, slow=slow, rate=rate))
        monkeypatch.setattr(preflight_run, "_CHECK", (str(path),))

    return find


def ground_of(pipeline) -> Ground:
    ground = open_ground(pipeline.engine, "local", None, store=pipeline.scope.store(), clock=SystemClock())
    assert ground is not None
    return ground


def claims_of(pipeline) -> dict[RunKey, Claim]:
    return dict(ground_of(pipeline).state().claims)


def test_sound_nodes_pass_in_one_round_and_are_trained_on(pipeline, checks) -> None:
    checks()
    pipeline.prepare()
    told = pipeline.run("preflight")
    assert (told["rounds"], told["num_nodes"], told["unfit"]) == (1, 2, {})
    record = preflight_record(pipeline.scope, generation=0)
    assert record.plan == run_files.read_plan(pipeline.scope).plans[0]
    spans = [event.span for event in pipeline.journal() if event.kind == "span_noted"]
    assert [span.bucket for span in spans if span.label.endswith("preflight")] == [Bucket.QUEUE, Bucket.PROVISION]


@pytest.mark.parametrize("tools", [("megatron-lm",), ("accelerate",)])
def test_without_unfit_nodes_a_run_is_planned_for_the_same_tools(pipeline, checks, tools) -> None:
    """Accelerate has no pipelines: what the run was planned for is not given up for nodes that are left."""
    for name in ("communication", "memory"):
        del pipeline.spec[name]
    batch = {"sequence_length": 64, "global_batch": "4 sequences"}
    pipeline.spec |= {
        "model": "byte-gpt-1m",
        "precision": {"compute": "fp32"},
        "parallelism": {"pp": 2},
        "batch": batch,
    }
    checks("n1")
    pipeline.prepare()
    run_files.write(pipeline.scope, run_files.PLAN_FILE, replace(run_files.read_plan(pipeline.scope), tools=tools))
    if "accelerate" in tools:
        with pytest.raises(AirflowFailException, match="no plan without the nodes that are unfit"):
            pipeline.run("preflight")
        return
    assert pipeline.run("preflight")["rounds"] == 2
    plan = preflight_record(pipeline.scope, generation=0).plan
    assert plan is not None
    assert (plan.layout.pp, set(plan.placement.nodes)) == (2, {"n0", "n2"})


def test_what_was_checked_is_held_until_the_launch_takes_it_over(pipeline, checks) -> None:
    checks()
    pipeline.prepare()
    deferred = pipeline.defer("preflight")
    scope = pipeline.scope
    held = claims_of(pipeline)[scope.checks_key].held
    assert set(held) == {"n0", "n1"}
    deferred.finish()
    assert claims_of(pipeline)[scope.checks_key].held == held
    pipeline.defer("run_gang")
    (claim,) = claims_of(pipeline).values()
    assert (claim.gang.key, claim.held, claim.beside) == (scope.run_key, held, None)


def test_checks_of_an_urgent_run_have_another_make_room_before_they_are_launched(pipeline, checks) -> None:
    checks()
    pipeline.spec["queue"] = {"priority": "urgent"}
    pipeline.prepare()
    holds_all = Claim(
        gang=QueuedGang(key=OTHER, team="default", priority_class="low", layout=ParallelLayout(dp=6)),
        num_records=1,
        since_s=0.0,
        held={NodeId(f"n{number}"): (0, 1) for number in range(3)},
    )
    ground_of(pipeline).claim(holds_all)
    waiting = pipeline.defer("preflight")
    assert waiting.trigger.watch["handle"] is None
    assert waiting.trigger.watch["ground"]
    assert claims_of(pipeline)[OTHER].yields_to == pipeline.scope.checks_key
    ground_of(pipeline).free(OTHER, num_records=1)
    waiting.again(waiting.resume, handed_over(Woke(at_s=0.0)))
    assert waiting.finish()["unfit"] == {}
    assert len(claims_of(pipeline)[pipeline.scope.checks_key].held) == 2


@pytest.mark.torch
def test_a_bad_node_is_replaced_checked_and_left_out_of_the_training(pipeline, links) -> None:
    pytest.importorskip("torch")
    pipeline.prepare()
    told = pipeline.run("preflight", nccl_tests=links("n1"))
    assert told["rounds"] == 2
    assert told["unfit"] == {"n1": "nccl_tests: 7 values are wrong"}
    pipeline.run("run_gang")
    chosen = [event.plan for event in pipeline.journal() if isinstance(event, PlanChosen)]
    assert [set(plan.placement.nodes) for plan in chosen] == [{"n0", "n2"}]


@pytest.fixture
def spread(pipeline):
    """The pipeline, with a group that goes over both of its nodes."""
    traffic = {"group": "trainer", "group_size": 4, "collective": "all_reduce", "bytes_per_step": "1MiB"}
    pipeline.spec["communication"] = {"version": 1, "traffic": [traffic]}
    return pipeline


def planned(pipeline, dag_id: str) -> tuple[float, str]:
    """Return the seconds of a step of another run of the same spec, as it is planned now, and the plan's words."""
    other = Pipeline(pipeline.folder, spec=pipeline.spec, dag_id=dag_id)
    other.options = pipeline.options
    with pytest.MonkeyPatch.context() as patch:
        told: list[str] = []
        task = other.task("plan_training")
        patch.setattr(task.log, "info", lambda _form, *words: told.extend(map(str, words)))
        for name in ("open_run", "stage_dataset"):
            other.run(name)
        task.execute(other.context(task))
    return run_files.read_plan(other.scope).plans[0].prediction.step_s, "\n".join(told)


def test_what_checks_measured_of_links_is_what_later_runs_there_are_planned_with(spread, checks, caplog) -> None:
    claimed_s, words = planned(spread, "before")
    assert "measured" not in words
    checks(rate=SLOW_LINK)
    spread.prepare()
    spread.run("preflight")
    measured_s, words = planned(spread, "after")
    # Each of a node's two accelerators has half of the collective's rate, and sends the other node half of the bytes.
    assert measured_s == pytest.approx(2**19 / (SLOW_LINK / 2), rel=0.05)
    assert claimed_s < measured_s / 10
    assert "between all nodes: 0.001 GB/s of each accelerator" in words
    assert "on n0 and n1" in words
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW__LLMSCHED__MEASURED_LINKS_LIMIT", "0")
        assert planned(spread, "never")[0] == claimed_s
    (kept,) = (spread.state_root / "measured-links").iterdir()
    kept.write_bytes(b"{damaged")
    caplog.clear()
    assert planned(spread, "damaged")[0] == claimed_s
    assert "1 x damaged object of measured links" in caplog.text
    spread.clear()
    spread.prepare()
    spread.run("preflight")
    assert planned(spread, "repaired")[0] == measured_s


def test_a_run_keeps_the_plan_that_was_checked_and_plans_anew_with_what_the_checks_measured(spread, checks) -> None:
    checks(rate=SLOW_LINK)
    spread.prepare()
    spread.run("preflight")
    first = run_files.read_plan(spread.scope).plans[0]
    spread.defer("run_gang")
    assert [event.plan for event in spread.journal() if isinstance(event, PlanChosen)] == [first]
    spread.run("release")
    spread.clear()
    spread.lose(run_files.PLAN_FILE)  # planning ahead is optional
    spread.run("run_gang")
    anew = [event.plan for event in spread.journal() if isinstance(event, PlanChosen)][-1]
    assert anew.prediction.step_s > 10 * first.prediction.step_s


def test_a_round_with_an_unfit_node_says_nothing_of_links(spread, checks) -> None:
    checks("n1", rate=SLOW_LINK)
    spread.prepare()
    assert spread.run("preflight")["rounds"] == 2
    (record,) = PlacementHook(engine_options=spread.options).measured_links().counted()
    assert (record.nodes, record.bytes_per_s, record.level) == (("n0", "n2"), SLOW_LINK / 2, None)


def test_what_was_measured_beside_another_gang_on_the_same_links_does_not_count(spread, checks, caplog) -> None:
    checks(rate=SLOW_LINK)
    spread.options["num_nodes"] = 4
    spread.prepare()
    beside = Claim(
        gang=QueuedGang(key=OTHER, team="default", priority_class="low", layout=ParallelLayout(dp=4)),
        num_records=1,
        since_s=0.0,
        held={NodeId("n2"): (0, 1), NodeId("n3"): (0, 1)},
    )
    ground_of(spread).claim(beside)
    with caplog.at_level("INFO", logger=preflight_run.__name__):
        assert spread.run("preflight")["unfit"] == {}
    assert f"others were on the same links meanwhile ({OTHER})" in caplog.text
    assert PlacementHook(engine_options=spread.options).measured_links().counted() == ()


def test_checks_pass_though_what_they_measured_of_links_cannot_be_kept(spread, checks, caplog) -> None:
    checks(rate=SLOW_LINK)
    spread.prepare()
    (spread.state_root / "measured-links").touch()
    assert spread.run("preflight")["unfit"] == {}
    assert "what the checks measured of links is not kept" in caplog.text


def test_too_few_sound_nodes_fail_the_task_and_name_them(pipeline, checks) -> None:
    checks("n0", "n1")
    pipeline.prepare()
    with pytest.raises(AirflowFailException, match="n0: disk: worn out"):
        pipeline.run("preflight")
    assert claims_of(pipeline) == {}


def test_a_worker_that_died_finds_the_gang_of_checks_again(pipeline, checks) -> None:
    checks()
    pipeline.prepare()
    pipeline.defer("preflight")
    again = pipeline.defer("preflight")
    assert len(pipeline.engine.find(pipeline.scope.preflight_key(0))) == 1
    assert again.finish()["unfit"] == {}


def test_release_ends_checks_that_still_run(pipeline, checks) -> None:
    checks(slow=True)
    pipeline.prepare()
    pipeline.defer("preflight")
    (gang,) = pipeline.engine.find(pipeline.scope.preflight_key(0))
    assert gang.key.name in pipeline.run("release")["stopped"]
    assert pipeline.engine.poll([gang])[gang].phase.ended
    assert claims_of(pipeline) == {}


def test_ending_the_task_ends_its_checks(pipeline, checks) -> None:
    checks(slow=True)
    pipeline.prepare()
    waiting = pipeline.defer("preflight")
    cancel("preflight", waiting.deferral.trigger.settings)
    (gang,) = pipeline.engine.find(pipeline.scope.preflight_key(0))
    assert pipeline.engine.poll([gang])[gang].phase.ended


def test_a_node_that_kills_its_ranks_is_unfit(pipeline, checks, tmp_path) -> None:
    checks()
    with (tmp_path / "checks.py").open("a") as script:
        script.write('if node == "n1": os.kill(os.getpid(), 11)\n')
    pipeline.prepare()
    told = pipeline.run("preflight")
    assert list(told["unfit"]) == ["n1"]
    assert "SIGSEGV" in told["unfit"]["n1"]


def test_where_the_platform_chooses_the_nodes_those_that_ran_the_checks_are_judged(
    pipeline, checks, monkeypatch
) -> None:
    def render_elsewhere(engine, gang):
        """Do what a scheduler of its own does: take the last nodes that it may, whatever the plan says."""
        chosen = [node for node in map(NodeId, ("n2", "n1", "n0")) if node not in gang.excluded]
        there = dict(zip(gang.placement.nodes, chosen, strict=False))
        slots = tuple(replace(slot, node=there[slot.node]) for slot in gang.placement.slots)
        return rendered(engine, replace(gang, placement=replace(gang.placement, slots=slots)))

    rendered = LocalEngine.render
    monkeypatch.setattr(LocalEngine, "render", render_elsewhere)
    checks("n2")
    pipeline.prepare()
    told = pipeline.run("preflight")
    assert (told["rounds"], told["unfit"]) == (2, {"n2": "disk: worn out"})
    last = preflight_record(pipeline.scope, generation=0).rounds[-1]
    assert {each.node for each in last.nodes} == {"n0", "n1"}


def test_checks_that_cannot_be_run_are_no_nodes_fault(pipeline, checks, tmp_path) -> None:
    checks()
    (tmp_path / "checks.py").write_text("import no_such_package")
    pipeline.prepare()
    with pytest.raises(GangFailedError, match="No module named 'no_such_package'"):
        pipeline.run("preflight")
    assert preflight_record(pipeline.scope, generation=0).unfit == {}


def test_a_clear_checks_the_nodes_anew(pipeline, checks) -> None:
    checks("n1")
    pipeline.prepare()
    assert pipeline.run("preflight")["unfit"]
    checks()
    pipeline.clear()
    pipeline.prepare()
    assert pipeline.run("preflight")["unfit"] == {}


@pytest.mark.parametrize(
    ("arguments", "name"),
    [({"max_rounds": 0}, "max_rounds"), ({"min_share": 1.0}, "min_share"), ({"limit": "x"}, "limit")],
)
def test_an_argument_that_makes_no_sense_is_named(pipeline, arguments, name) -> None:
    pipeline.prepare()
    with pytest.raises(AirflowFailException, match=name):
        pipeline.run("preflight", **arguments)


def test_too_many_rounds_end_the_task(pipeline, checks) -> None:
    checks("n1")
    pipeline.prepare()
    with pytest.raises(GangFailedError, match="after 1 rounds some nodes are still unfit: n1"):
        pipeline.run("preflight", max_rounds=1)
