from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred

from airflow_llmsched import codec
from airflow_llmsched.clock import SystemClock
from airflow_llmsched.control.lease_book import RentalEnding
from airflow_llmsched.domain.capacity import Purchase
from airflow_llmsched.domain.lease import Lease, LeaseId, LeaseState
from airflow_llmsched.domain.ledger import Bucket
from airflow_llmsched.domain.workload import CapacityType
from airflow_llmsched.errors import CapacityError, CouldNotLookError
from airflow_llmsched.provider import run_files
from airflow_llmsched.provider.triggers.lease import CapacityTrigger, LeaseTrigger
from tests.support.pipeline import TRAINER, Deferred, plain_spec
from tests.support.provider_cloud import opened_by_the_provider
from tests.support.sim_cloud import SimCloudHarness, sim_pool
from tests.support.waiting import wait_until

SPOT = "sim-east-b"
ON_DEMAND = "sim-east-a"
LIMIT_S = 30
RANKS = {"min_ranks": 2, "max_ranks": 2}


def _open(make_pipeline, **changes):
    pipeline = make_pipeline(**changes)
    pipeline.run("open_run", rents_capacity=True)
    return pipeline


def test_the_cheapest_offer_is_rented_whole(pipeline, sim_cloud):
    result = pipeline.run("provision")
    assert (result["zone"], result["capacity_type"], result["num_nodes"]) == (SPOT, "spot", 2)
    assert len(sim_cloud.billed()) == 2
    (rental,) = pipeline.book().open()
    assert rental.intent.origin == pipeline.scope.origin
    assert result["expires_at_s"] == pytest.approx(time.time() + 3600.0, abs=60.0)


def test_a_block_that_would_be_cheaper_is_asked_for_with_the_command_that_buys_it(pipeline, sim_cloud):
    """A run buys nothing by itself: it rents the cheapest of the rest meanwhile."""
    on_demand = next(pool for pool in sim_cloud.pools if pool.offer.pool.zone == ON_DEMAND)
    purchase = Purchase(what="block cb-1", usd=48.0, command="buy cb-1")
    reserved = replace(on_demand.offer.pool, capacity_type=CapacityType.RESERVED)
    on_demand.offer = replace(on_demand.offer, pool=reserved, usd_per_hour=1.0, purchase=purchase)
    task = pipeline.task("provision")
    context = pipeline.context(task)
    assert task.execute(context)["zone"] == SPOT
    told = context["ti"].pushed["asks"]
    assert told["run_key"] == pipeline.scope.run_key
    assert "block cb-1 costs $48.00 at once" in told["asks"]
    assert told["asks"].endswith("buy cb-1")


def test_the_lease_with_its_nodes_is_in_the_runs_folder_and_xcom_names_it(pipeline, sim_cloud):
    result = pipeline.run("provision")
    name = result["uri"].rpartition("/")[2]
    lease = run_files.read(pipeline.scope, name, Lease, made_by="provision")
    assert lease.state is LeaseState.ACTIVE
    assert {str(node.id) for node in lease.nodes} == sim_cloud.billed()
    assert result["lease_id"] == lease.id


def test_xcom_stays_small_with_a_thousand_nodes(pipeline, sim_cloud):
    sim_cloud.pools[0].num_free = 1000
    result = pipeline.run("provision", shapes={"sim.8x": {"num_nodes": 1000, "work": "1h"}})
    assert result["num_nodes"] == 1000
    assert len(json.dumps(result)) < 1000


def test_a_retry_takes_up_what_the_try_before_rented(pipeline, sim_cloud):
    first = pipeline.run("provision")
    again = pipeline.run("provision", context={"try_number": 2, "ti_id": "another"})
    assert again["lease_id"] == first["lease_id"]
    assert len(sim_cloud.billed()) == 2


def test_a_reply_that_was_lost_fails_the_try_and_the_next_one_takes_up_what_had_come(pipeline, sim_cloud):
    sim_cloud.lose_reply()
    with pytest.raises(CouldNotLookError, match="lost"):
        pipeline.run("provision")
    assert len(sim_cloud.billed()) == 2
    pipeline.run("provision")
    assert len(sim_cloud.billed()) == 2
    assert len(pipeline.book().rentals()) == 1


def test_a_new_generation_gives_back_what_the_one_before_rented(pipeline, sim_cloud):
    first = pipeline.run("provision")
    before = sim_cloud.billed()
    pipeline.clear()
    second = pipeline.run("provision")
    assert second["lease_id"] != first["lease_id"]
    assert len(sim_cloud.billed()) == 2
    assert not sim_cloud.billed() & before


def test_a_worker_that_wakes_up_after_the_teardown_rents_nothing(pipeline, sim_cloud):
    task = pipeline.task("provision")
    context = pipeline.context(task)
    pipeline.run("release")
    with pytest.raises(AirflowFailException, match="torn down"):
        task.execute(context)
    assert not sim_cloud.billed()


def test_a_lease_on_its_way_is_watched_by_a_trigger_until_it_is_whole(pipeline, sim_cloud):
    sim_cloud.pools[1].start_up_s = 0.5
    deferred = pipeline.defer("provision")
    assert isinstance(deferred.trigger, LeaseTrigger)
    assert len(sim_cloud.billed()) == 2
    result = deferred.finish()
    assert result["zone"] == SPOT
    assert len(pipeline.book().rentals()) == 1


def test_a_market_without_capacity_is_watched_by_a_trigger_until_it_has_some(pipeline, sim_cloud):
    for pool in sim_cloud.pools:
        pool.num_free = 1
    deferred = pipeline.defer("provision")
    assert isinstance(deferred.trigger, CapacityTrigger)
    sim_cloud.pools[0].num_free = 2
    assert deferred.finish()["zone"] == ON_DEMAND


def test_a_trigger_that_broke_is_no_end(pipeline, sim_cloud):
    sim_cloud.pools[1].start_up_s = 3600.0
    deferred = pipeline.defer("provision")
    deferred.again(deferred.resume, {"broken": "ImportError: x"})
    assert isinstance(deferred.trigger, LeaseTrigger)
    assert len(pipeline.book().rentals()) == 1


@pytest.mark.parametrize("deferrable", [True, False])
def test_too_late_says_what_the_market_was_like(pipeline, sim_cloud, deferrable):
    for pool in sim_cloud.pools:
        pool.num_free = 1
    with pytest.raises(CapacityError, match=r"within 0s: .*no offer serves: 2 with too few nodes"):
        pipeline.run("provision", wait="0s", deferrable=deferrable)
    assert not sim_cloud.billed()


@pytest.mark.parametrize("deferrable", [True, False])
def test_what_is_not_whole_in_time_is_given_back(pipeline, sim_cloud, deferrable):
    sim_cloud.pools[1].start_up_s = 3600.0
    with pytest.raises(CapacityError, match=r"lease \S+ is pending"):
        _to_the_end(pipeline, deferrable=deferrable, wait="1s")
    assert not sim_cloud.billed()
    (rental,) = pipeline.book().rentals()
    assert rental.end.ending is RentalEnding.RELEASED


def test_quota_that_stays_used_up_fails_for_good_because_waiting_mends_nothing(pipeline, sim_cloud):
    sim_cloud.limit_quota(sim_cloud.offer(), num_nodes=1)
    with pytest.raises(AirflowFailException, match=r"within 0s: the quota is used up in sim-east"):
        pipeline.run("provision", wait="0s")


def test_a_first_look_that_nobody_answers_fails_the_try_and_later_ones_are_waited_for(pipeline, sim_cloud):
    sim_cloud.go_dark(is_dark=True)
    with pytest.raises(CouldNotLookError, match="does not answer"):
        pipeline.run("provision")
    sim_cloud.go_dark(is_dark=False)
    sim_cloud.pools[1].start_up_s = 3600.0
    deferred = pipeline.defer("provision")
    sim_cloud.go_dark(is_dark=True)
    deferred.again(deferred.resume, {"seen": "active"})
    sim_cloud.go_dark(is_dark=False)
    sim_cloud.pools[1].start_up_s = 0.0
    assert isinstance(deferred.trigger, CapacityTrigger)
    for machine in sim_cloud.cloud._requests[_lease_id(pipeline)].machines:
        machine.runs_at_s = 0.0
    assert deferred.finish()["zone"] == SPOT


@pytest.mark.parametrize("scenario", ["at once", "on its way", "no room", "too late"])
def test_deferrable_and_blocking_end_alike(make_pipeline, sim_cloud, scenario):
    ends = []
    for deferrable in (True, False):
        pipeline = make_pipeline(dag_id=f"plain_{deferrable}")
        sim_cloud.pools[0].num_free, sim_cloud.pools[1].num_free = 0, 0 if scenario in ("no room", "too late") else 2
        sim_cloud.pools[1].start_up_s = 0.3 if scenario == "on its way" else 0.0
        if scenario == "no room":
            sim_cloud.world.after(0.4 + sim_cloud.now_s() - sim_cloud.world.time_s, _frees(sim_cloud.pools[1]))
        try:
            result = _to_the_end(pipeline, deferrable=deferrable, wait="1s" if scenario == "too late" else "60s")
            own = ("uri", "digest", "lease_id", "expires_at_s")
            ends.append({name: value for name, value in result.items() if name not in own})
        except CapacityError as error:
            ends.append(str(error))
        pipeline.run("release")
        assert not sim_cloud.billed()
    assert ends[0] == ends[1]


def _frees(pool):
    def free():
        pool.num_free = 2

    return free


def test_a_blocking_wait_keeps_its_pending_lease(pipeline, sim_cloud):
    sim_cloud.pools[1].start_up_s = 1.0
    rent = sim_cloud.cloud.acquire

    def rent_long_ago(*arguments, **named):
        lease = rent(*arguments, **named)
        sim_cloud.shorten(lease.id, until_s=sim_cloud.now_s() + 100.0)
        return replace(lease, expires_at_s=sim_cloud.now_s() + 100.0)

    sim_cloud.cloud.acquire = rent_long_ago
    assert pipeline.run("provision")["expires_at_s"] > time.time() + 1800.0


def test_the_specs_own_wish_may_be_narrowed(make_pipeline, sim_cloud):
    pipeline = _open(make_pipeline, capacity={**RANKS, "capacity_types": ["on_demand", "spot"]})
    assert pipeline.run("provision", capacity_types=["on_demand"])["zone"] == ON_DEMAND


def test_the_specs_own_wish_holds_where_the_task_says_nothing(make_pipeline, sim_cloud):
    pipeline = _open(make_pipeline, capacity={**RANKS, "capacity_types": ["on_demand"]})
    assert pipeline.run("provision")["zone"] == ON_DEMAND


@pytest.mark.parametrize(
    ("spec", "arguments"),
    [
        ({"regions": ["sim-west"]}, {"regions": ["sim-east"]}),
        ({"capacity_types": ["on_demand"]}, {"capacity_types": ["spot"]}),
        ({"clouds": ["aws"]}, {}),
        ({"vendors": ["nvidia"]}, {"vendors": ["amd"]}),
        ({"jurisdictions": ["EU"]}, {"jurisdictions": ["US"]}),
    ],
    ids="-".join,
)
def test_the_specs_own_wish_is_never_widened(make_pipeline, sim_cloud, spec, arguments):
    pipeline = _open(make_pipeline, capacity={**RANKS, **spec})
    with pytest.raises(AirflowFailException, match="the spec's capacity"):
        pipeline.run("provision", **arguments)
    assert not sim_cloud.billed()


def test_a_damaged_spec_might_forbid_what_is_asked_and_so_nothing_is_rented(make_pipeline, sim_cloud):
    pipeline = _open(make_pipeline)
    (spec,) = pipeline.scope.directory.rglob(run_files.SPEC_FILE)
    spec.write_text("{}")
    with pytest.raises(AirflowFailException, match="damaged"):
        pipeline.run("provision")
    assert not sim_cloud.billed()


def test_a_run_that_would_cost_more_than_its_budget_is_denied_in_words(make_pipeline, sim_cloud):
    pipeline = _open(make_pipeline, budget={"steps": 6, "max_usd": "20 USD"})
    with pytest.raises(AirflowFailException, match=r"\$24.00 in all, \$4.00 too much.*raise budget\.max_usd"):
        pipeline.run("provision")
    assert not sim_cloud.billed()
    assert not pipeline.book().rentals()


def test_a_run_within_its_budget_is_rented_and_taken_up_though_money_has_been_spent_since(make_pipeline, sim_cloud):
    pipeline = _open(make_pipeline, budget={"steps": 6, "max_usd": "24.0001 USD"})
    first = pipeline.run("provision")
    wait_until(lambda: _spent_usd(pipeline) > 0.0001, limit_s=LIMIT_S)
    assert pipeline.run("provision")["lease_id"] == first["lease_id"]


def test_what_was_rented_before_counts_against_the_budget(make_pipeline, sim_cloud):
    pipeline = _open(make_pipeline, budget={"steps": 6, "max_usd": "24.0001 USD"})
    pipeline.run("provision")
    wait_until(lambda: _spent_usd(pipeline) > 0.0001, limit_s=LIMIT_S)
    pipeline.clear()
    with pytest.raises(AirflowFailException, match="nothing was rented"):
        pipeline.run("provision")
    assert not sim_cloud.billed()


def test_a_hold_that_a_hand_over_may_outlast_is_refused(pipeline, sim_cloud):
    with pytest.raises(AirflowFailException, match=r"hold = '59min': must be .* twice .*handoff_limit \(1800 s\)"):
        pipeline.run("provision", hold="59min")
    assert not sim_cloud.billed()


def test_the_journal_tells_the_wait_from_the_provisioning(pipeline, sim_cloud):
    sim_cloud.pools[1].start_up_s = 0.6
    pipeline.run("provision")
    spans = [event.span for event in pipeline.journal()]
    assert [span.bucket for span in spans] == [Bucket.QUEUE, Bucket.PROVISION]
    assert spans[0].end_s - spans[0].start_s >= 0.5
    assert spans[0].end_s == spans[1].start_s


def test_a_price_above_the_highest_is_not_paid(pipeline, sim_cloud):
    with pytest.raises(CapacityError, match="2 above the highest price allowed"):
        pipeline.run("provision", wait="0s", max_usd_per_hour="11.5")  # as a template renders it


def test_on_demand_is_rented_where_spot_is_too_dear_for_the_wish(pipeline, sim_cloud):
    result = pipeline.run("provision", capacity_types=[CapacityType.ON_DEMAND], max_usd_per_hour=40.0)
    assert result["capacity_type"] == "on_demand"


def test_the_trigger_gets_the_name_of_a_connection_and_nothing_of_what_it_holds(pipeline, sim_cloud, monkeypatch):
    monkeypatch.setenv("AIRFLOW_CONN_CLOUDY", '{"conn_type": "aws", "login": "AKIA", "password": "s3cr3t-key"}')
    monkeypatch.setattr("airflow_llmsched.provider.clouds._SIGN_IN", {"sim": lambda conn_id: "s3cr3t-key"})

    def adapter(*, clock, credentials):
        assert credentials == "s3cr3t-key"
        return sim_cloud.cloud

    monkeypatch.setattr("airflow_llmsched.control.open_clouds.load", lambda group, name: adapter)
    sim_cloud.pools[1].start_up_s = 0.3
    deferred = pipeline.defer("provision", clouds={"sim": {"conn_id": "cloudy"}})
    carried = json.dumps(codec.to_plain(deferred.trigger.serialize()))
    assert "cloudy" in carried
    result = deferred.finish()
    assert "s3cr3t" not in carried + json.dumps(result)
    for record in pipeline.scope.directory.rglob("*.json"):
        assert "s3cr3t" not in record.read_text()


def test_opening_refuses_a_wish_that_nobody_heeds(make_pipeline):
    pipeline = make_pipeline(capacity={**RANKS, "regions": ["eu-west-1"]})
    with pytest.raises(AirflowFailException, match="rents_capacity"):
        pipeline.run("open_run")
    pipeline.run("open_run", rents_capacity=True)
    assert run_files.read_spec(pipeline.scope).capacity.regions == ("eu-west-1",)


def _to_the_end(pipeline, *, deferrable, **arguments):
    if not deferrable:
        return pipeline.run("provision", **arguments)
    task = pipeline.task("provision", **{**arguments, "deferrable": True})
    context = pipeline.context(task)
    try:
        return task.execute(context)
    except TaskDeferred as deferral:
        return Deferred(task, context, deferral).finish()


def _spent_usd(pipeline) -> float:
    return sum(rental.cost_usd(time.time()) for rental in pipeline.book().rentals())


def _lease_id(pipeline) -> LeaseId:
    (rental,) = pipeline.book().open()
    return rental.intent.lease_id


# A run with a model: what it takes of each shape is planned

A100, H100, OTHER = "p4d.24xlarge", "p5.48xlarge", "z9.metal"


def _model_spec(model: str, **changes):
    spec = plain_spec(
        model={"preset": model},
        batch={"sequence_length": 4096, "global_batch": "64 sequences"},
        budget={"steps": 1000},
        launcher={"kind": "plain", "command": list(TRAINER)},
        **{"capacity": {}, **changes},
    )
    return {name: block for name, block in spec.items() if name not in ("communication", "memory")}


@pytest.fixture
def market():
    """Two shapes on demand, of which a node of the first costs less by the hour."""
    pools = [
        sim_pool(zone, shape=shape, usd_per_hour=usd_per_hour, start_up_s=0.0, num_free=64)
        for zone, shape, usd_per_hour in (("a", A100, 22.0), ("b", H100, 44.0), ("c", OTHER, 0.01))
    ]
    harness = SimCloudHarness(*pools, clock=SystemClock(), consistency_s=0.0)
    with opened_by_the_provider(harness):
        yield harness


def _with_model(make_pipeline, model: str, **changes):
    pipeline = make_pipeline()
    pipeline.spec = _model_spec(model, **changes)
    pipeline.run("open_run", rents_capacity=True)
    pipeline.run("stage_dataset")
    return pipeline


def test_a_dearer_shape_that_is_cheaper_to_the_end_is_rented_and_planned_on(make_pipeline, market):
    pipeline = _with_model(make_pipeline, "llama-2-7b")
    rented = pipeline.run("provision", shapes=())
    assert rented["shape"] == H100
    assert len(market.billed()) == rented["num_nodes"]
    pipeline.run("plan_training")
    best = run_files.read_plan(pipeline.scope).plans[0]
    assert best.node_shape == H100
    assert set(best.placement.nodes) <= market.billed()
    assert len(best.placement.nodes) == rented["num_nodes"]


def test_the_cheapest_shape_by_the_hour_cannot_hold_the_model_and_another_is_rented(make_pipeline, market):
    market.pools[0].offer = replace(market.pools[0].offer, usd_per_hour=0.01)
    pipeline = _with_model(make_pipeline, "llama-3.1-70b", capacity={"max_ranks": 32})
    assert pipeline.run("provision", shapes=())["shape"] == H100
    fits_a100 = _with_model(make_pipeline, "llama-3.1-70b", capacity={"max_ranks": 64})
    fits_a100.clear()
    assert fits_a100.run("provision", shapes=())["shape"] == A100


def test_a_shape_the_planner_does_not_know_is_named_where_nothing_could_be_had(make_pipeline, market):
    for pool in market.pools:
        pool.num_free = 0
    pipeline = _with_model(make_pipeline, "llama-2-7b")
    with pytest.raises(CapacityError, match=r"1 node shape z9\.metal, whose hardware the planner does not know"):
        pipeline.run("provision", shapes=[A100, H100, OTHER], wait="0s")
    assert not market.billed()


def test_a_run_that_no_shape_can_hold_is_told_so_at_once_and_not_after_the_wait(make_pipeline, market):
    pipeline = _with_model(make_pipeline, "llama-3.1-70b")
    with pytest.raises(AirflowFailException, match=r"p4d\.24xlarge, on which the run cannot be planned"):
        pipeline.run("provision", shapes={A100: {"num_nodes": 1}}, wait="9h")
    assert not market.billed()


def test_a_deadline_is_worth_more_nodes(make_pipeline, market):
    at_leisure = _with_model(make_pipeline, "llama-2-7b")
    few = at_leisure.run("provision", shapes=[H100])["num_nodes"]
    at_leisure.run("release")
    hurried = make_pipeline(dag_id="hurried")
    hurried.spec = _model_spec("llama-2-7b")
    hurried.spec["budget"] = {"steps": 1000, "deadline": "40min"}
    hurried.run("open_run", rents_capacity=True)
    assert hurried.run("provision", shapes=[H100])["num_nodes"] > few
