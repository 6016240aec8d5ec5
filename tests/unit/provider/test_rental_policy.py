"""Real gangs on real processes that their rental policy moves between pools of one's own machines."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import yaml
from airflow.sdk.exceptions import AirflowFailException

from airflow_llmsched.control import events as ev
from airflow_llmsched.control.allowances import Allowances
from airflow_llmsched.provider import rental_policy
from airflow_llmsched.provider.operators.gang_base import GangFailedError
from tests.support.pipeline import Pipeline, plain_spec
from tests.support.pools import model_of
from tests.support.waiting import wait_until

LIMIT_S = 120.0
LENT, OWNED = ("n0", "n1"), ("n2", "n3")
FOUR = ("n2", "n3", "n4", "n5")
BUDGET = {"steps": 20, "deadline": "1h"}


@pytest.fixture(autouse=True)
def small_tables(monkeypatch):
    """One kind of pool instead of sixteen: the tables are then solved in a moment."""
    monkeypatch.setattr(rental_policy, "default_hazards", lambda: model_of(loss_per_hour=0.5, return_per_hour=1e-3))


class Fleet:
    """Four machines of a local engine: two are lent as spot capacity, two are on demand."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        pipeline.options = {"num_nodes": 4, "slots_per_node": 1}
        self.file = pipeline.folder / "inventory.yaml"
        self.usd_per_hour = {LENT: 0.3, OWNED: 1.0}
        self.zone_of = {LENT: "lent", OWNED: "owned"}
        self.down: set[str] = set()
        self.write()

    def write(self) -> None:
        pools = [
            {
                "zone": self.zone_of.get(nodes, "lent"),
                "shape": "local-cpu",
                "capacity": "spot" if nodes is LENT else "on_demand",
                "num_slots": 1,
                "usd_per_hour": usd_per_hour,
                "nodes": [
                    {"name": name, **({"unusable": "taken back"} if name in self.down else {})} for name in nodes
                ],
            }
            for nodes, usd_per_hour in self.usd_per_hour.items()
        ]
        written = self.file.with_suffix(".new")
        written.write_text(yaml.safe_dump({"region": "home", "pools": pools}))
        written.replace(self.file)

    def price(self, nodes: tuple[str, ...], usd_per_hour: float) -> None:
        self.usd_per_hour[nodes] = usd_per_hour
        self.write()

    def take(self, nodes: tuple[str, ...]) -> None:
        self.down.update(nodes)
        self.write()

    def give_back(self, nodes: tuple[str, ...]) -> None:
        self.down.difference_update(nodes)
        self.write()

    def policy(self, **changes):
        return {
            "clouds": {"onprem": {"inventory": str(self.file)}},
            "shapes": {"local-cpu": {"num_nodes": 2, "work": "60s"}},
            "changeover": "1s",
            **changes,
        }

    def nodes(self) -> list[tuple[str, ...]]:
        """Return where each launch of the run went."""
        plans, found = [], []
        for event in self.pipeline.journal():
            if isinstance(event, ev.PlanChosen):
                plans.append(event.plan)
            if isinstance(event, ev.LaunchIntended):
                found.append(tuple(sorted(plans[-1].placement.nodes)))
        return found

    def has_launched(self, nodes: tuple[str, ...]) -> bool:
        return bool(self.pipeline.live()) and bool(self.nodes()) and self.nodes()[-1] == nodes

    def release(self) -> None:
        self.pipeline.run("release")
        assert not self.pipeline.book().open()


@pytest.fixture
def fleet(make_pipeline):
    def make(*, hold_at: int = 12, **changes) -> Fleet:
        pipeline = make_pipeline(budget=BUDGET, **changes)
        gate = pipeline.folder / "gate"
        spec = plain_spec(arguments=("--steps=20", f"--hold-at={hold_at}", f"--hold={gate}"), budget=BUDGET, **changes)
        pipeline.spec = spec
        made = Fleet(pipeline)
        pipeline.run("open_run", rents_capacity=True)
        pipeline.run("stage_dataset")
        return made

    return make


def _gate(fleet: Fleet) -> Path:
    return fleet.pipeline.folder / "gate"


def _begin(fleet: Fleet, **arguments):
    arguments = {"capacity": fleet.policy(), "review_interval": "2s", **arguments}
    return fleet.pipeline.defer("run_gang", **arguments)


def test_a_policy_that_is_told_of_its_own_pools_goes_by_nothing_else(fleet, monkeypatch):
    monkeypatch.delattr(rental_policy, "default_hazards")
    house = fleet()
    _gate(house).touch()
    traces = house.pipeline.folder / "traces.json"
    traces.write_text(json.dumps([{"tick_s": 600, "start_s": 1795986300, "up": ([1] * 40 + [0] * 3) * 12}]))
    assert _begin(house, capacity=house.policy(traces=str(traces))).finish()["step"] == 20
    house.release()


def test_a_gang_takes_the_cheaper_pool_and_trains_there_to_the_end(fleet):
    house = fleet()
    _gate(house).touch()
    assert _begin(house).finish()["step"] == 20
    assert house.nodes() == [LENT]
    house.release()


def test_a_gang_moves_with_a_checkpoint_when_the_price_changes_and_does_no_step_twice(fleet):
    house = fleet()
    house.price(LENT, 1.5)
    deferred = _begin(house)
    assert house.nodes() == [OWNED]
    house.price(LENT, 0.1)
    wait_until(lambda: _steps(house) >= 12, limit_s=LIMIT_S)
    while house.nodes()[-1] != LENT:
        payload = deferred.fire()
        assert payload["handover"]["kind"] in ("review_due", "woke")
        deferred.again(deferred.resume, payload)
    _gate(house).touch()
    assert deferred.finish()["step"] == 20
    assert house.nodes() == [OWNED, LENT]
    resumed = [event.checkpoint.step for event in house.pipeline.journal() if _resumes(event)]
    assert resumed == [12]
    assert not [event for event in house.pipeline.journal() if isinstance(event, ev.GangEnded) and event.fault]
    house.release()


def test_a_lease_that_breaks_calls_for_a_review_before_the_next_one_is_due(fleet, monkeypatch):
    """Nothing happens to the ranks: only the fleet's list says that its nodes are gone."""
    monkeypatch.setattr("airflow_llmsched.control.runs.ALARM_PAUSE_S", 0.0)
    house = fleet()
    deferred = _begin(house, review_interval="10min")
    wait_until(lambda: _steps(house) >= 12, limit_s=LIMIT_S)
    house.take(LENT)
    payload = deferred.fire()
    assert payload["handover"]["kind"] == "review_due"
    assert "has lost n0, n1" in payload["handover"]["cause"]
    deferred.again(deferred.resume, payload)
    assert house.nodes() == [LENT, OWNED]
    _gate(house).touch()
    assert deferred.finish()["step"] == 20
    house.release()


def test_a_gang_that_loses_its_nodes_goes_on_in_the_other_pool(fleet):
    house = fleet()
    deferred = _begin(house, review_interval="10min")
    wait_until(lambda: _steps(house) >= 12, limit_s=LIMIT_S)
    house.take(LENT)
    for name in LENT:
        house.pipeline.engine.preempt(name, grace_s=0.2)
    _gate(house).touch()
    assert deferred.finish()["step"] == 20
    assert house.nodes()[0] == LENT
    assert house.nodes()[-1] == OWNED
    house.release()


def test_the_blocking_path_moves_alike(fleet, monkeypatch):
    monkeypatch.setattr("airflow_llmsched.control.runs.ALARM_PAUSE_S", 0.0)
    house = fleet(hold_at=0)
    _gate(house).touch()
    house.price(LENT, 1.5)
    reviewed = []
    look = rental_policy.survey_market

    def survey(*arguments, **named):
        reviewed.append(time.time())
        if len(reviewed) == 2:  # at the first review of the gang
            house.price(LENT, 0.1)
        return look(*arguments, **named)

    monkeypatch.setattr(rental_policy, "survey_market", survey)
    spec = plain_spec(arguments=("--steps=20", "--step-s=1"), budget=BUDGET)
    house.pipeline.spec = spec
    house.pipeline.run("open_run", rents_capacity=True)
    result = house.pipeline.run("run_gang", capacity=house.policy(), review_interval="2s")
    assert result["step"] == 20
    assert house.nodes() == [OWNED, LENT]
    house.release()


def _sized(fleet: Fleet, *, whole_s: int = 60, deadline: str) -> dict:
    """Have the run train on two ranks or on four; on two it takes half as long again."""
    budget = {"steps": 20, "deadline": deadline}
    arguments = ("--steps=20", "--hold-at=12", f"--hold={_gate(fleet)}")
    fleet.pipeline.spec = plain_spec(arguments=arguments, budget=budget, capacity={"min_ranks": 2, "max_ranks": 4})
    fleet.pipeline.run("open_run", rents_capacity=True)
    sizes = [{"num_nodes": 2, "work": f"{1.5 * whole_s}s"}, {"num_nodes": 4, "work": f"{whole_s}s"}]
    return fleet.policy(shapes={"local-cpu": sizes})


@pytest.mark.long
def test_a_gang_is_made_of_what_is_kept_and_what_is_lent_and_loses_nothing_when_that_is_taken(fleet, monkeypatch):
    """Four are needed to be in time; two of them are lent, in the same hall."""
    monkeypatch.setattr("airflow_llmsched.control.runs.ALARM_PAUSE_S", 0.0)
    monkeypatch.setattr("airflow_llmsched.control.rented_capacity.WAIT_POLL_S", 1.0)
    house = fleet()
    house.zone_of = {LENT: "hall", OWNED: "hall"}
    house.write()
    deferred = _begin(house, capacity=_sized(house, whole_s=1800, deadline="35min"), review_interval="2min")
    assert house.nodes() == [LENT + OWNED]
    assert [rental.intent.num_nodes for rental in house.pipeline.book().open()] == [2, 2]
    wait_until(lambda: _steps(house) >= 12, limit_s=LIMIT_S)
    house.take(LENT)
    payload = deferred.fire()
    assert "has lost n0, n1" in payload["handover"]["cause"]
    deferred.again(deferred.resume, payload)
    (review,) = [event for event in house.pipeline.journal() if isinstance(event, ev.Reviewed)]
    assert review.reason.startswith("moves to 2 on_demand nodes of local-cpu in onprem hall")
    house.give_back(LENT)
    _gate(house).touch()
    assert deferred.finish()["step"] == 20
    assert [event.checkpoint.step for event in house.pipeline.journal() if _resumes(event)] == [12]
    house.release()


@pytest.mark.long
def test_a_gang_is_scaled_down_when_fewer_nodes_are_cheaper(fleet):
    house = fleet()
    house.usd_per_hour = {LENT: 1.5, FOUR: 1.0}
    house.pipeline.options = {"num_nodes": 6, "slots_per_node": 1}
    house.zone_of = {LENT: "lent", FOUR: "owned"}
    house.write()
    policy = _sized(house, deadline="1h")
    larger = {**policy, "shapes": {"local-cpu": policy["shapes"]["local-cpu"][1:]}}
    deferred = _begin(house, capacity=larger)
    assert house.nodes() == [FOUR]
    house.price(LENT, 0.1)
    wait_until(lambda: _steps(house) >= 12, limit_s=LIMIT_S)
    deferred.task.capacity = policy
    while house.nodes()[-1] != LENT:
        deferred.again(deferred.resume, deferred.fire())
    _gate(house).touch()
    assert deferred.finish()["step"] == 20
    assert house.nodes() == [FOUR, LENT]
    house.release()


def test_a_policy_without_a_date_or_a_sum_is_refused_before_anything_is_rented(fleet):
    house = fleet()
    house.pipeline.spec["budget"] = {"steps": 20}
    house.pipeline.run("open_run", rents_capacity=True)
    with pytest.raises(AirflowFailException, match="needs a date or a sum"):
        house.pipeline.run("run_gang", capacity=house.policy())
    assert not house.pipeline.book().rentals()


@pytest.mark.parametrize("wrong", [{"clouds": {}}, {"cheap": True}, {"changeover": "soon"}, {"hold": "1min"}], ids=str)
def test_what_is_wrong_with_a_policy_is_named(fleet, wrong):
    house = fleet()
    with pytest.raises(AirflowFailException, match=next(iter(wrong))):
        house.pipeline.run("run_gang", capacity=house.policy(**wrong))
    assert not house.pipeline.book().rentals()


def test_a_budget_that_is_projected_not_to_last_stops_the_gang_with_a_checkpoint_and_more_money_resumes_it(fleet):
    """At a cent an hour and a second's step nothing is too dear: the price goes up a millionfold in mid-run."""
    house = fleet(hold_at=0)
    house.pipeline.spec = plain_spec(
        arguments=("--steps=20", "--step-s=0.5"), budget={"steps": 20, "deadline": "1h", "max_usd": "1 USD"}
    )
    house.price(LENT, 1e5)
    house.price(OWNED, 400.0)
    house.pipeline.run("open_run", rents_capacity=True)
    with pytest.raises(GangFailedError, match="budget would not last, stopped at step"):
        _begin(house, review_interval="3s", capacity=house.policy(shapes=_work("1s"))).finish()
    steps = [event.checkpoint.step for event in house.pipeline.journal() if isinstance(event, ev.CheckpointSeen)]
    assert steps
    assert 0 < steps[-1] < 20
    house.pipeline.clear()
    Allowances(house.pipeline.scope.store(), house.pipeline.scope.run_key).allow(1e6, at_s=time.time())
    assert _begin(house, review_interval="3s", capacity=house.policy(shapes=_work("1s"))).finish()["step"] == 20
    resumed = [event.checkpoint.step for event in house.pipeline.journal() if _resumes(event)]
    assert resumed == [steps[-1]]
    house.release()


def test_a_budget_that_asks_is_asked_about_once_and_goes_on(fleet):
    house = fleet(hold_at=0)
    budget = {"steps": 20, "deadline": "1h", "max_usd": "2 USD", "on_overrun": "ask"}
    house.pipeline.spec = plain_spec(arguments=("--steps=20", "--step-s=0.5"), budget=budget)
    house.price(LENT, 1e5)
    house.price(OWNED, 400.0)
    house.pipeline.run("open_run", rents_capacity=True)
    called = []
    tellers = [lambda context: 1 / 0, lambda context: called.append(context["llmsched_ask"])]
    deferred = _begin(house, review_interval="3s", capacity=house.policy(shapes=_work("1s")), on_ask=tellers)
    payload = deferred.fire()
    deferred.again(deferred.resume, payload)
    (review,) = [event for event in house.pipeline.journal() if isinstance(event, ev.Reviewed)]
    assert "too much" in review.asks
    run = house.pipeline.scope.run_key
    told = {"run_key": run, "asks": review.asks, "answer": f"llmsched budget {run} --max-usd N"}
    pushed = deferred.context["ti"].pushed
    assert (called, pushed) == ([told], {"asks": told})
    assert f"Answer with: llmsched budget {run}" in house.pipeline.report().notes[0]
    Allowances(house.pipeline.scope.store(), house.pipeline.scope.run_key).allow(1e6, at_s=time.time())
    assert deferred.finish()["step"] == 20
    *_, last = [event for event in house.pipeline.journal() if isinstance(event, ev.Reviewed)]
    assert last.asks == ""
    assert (len(called), pushed["asks"]["asks"]) == (1, "")
    assert "Answer with" not in " ".join(house.pipeline.report().notes)
    house.release()


def _work(duration: str):
    return {"local-cpu": {"num_nodes": 2, "work": duration}}


def _resumes(event) -> bool:
    return isinstance(event, ev.CheckpointChosen) and event.checkpoint is not None


def _steps(house: Fleet) -> int:
    """Return the last step of the newest launch, as its agents reported it."""
    folders = sorted(house.pipeline.scope.directory.glob("channel/*"))
    lines = [line for path in folders[-1].glob("up/*.jsonl") for line in path.read_text().splitlines()]
    parsed = [yaml.safe_load(line) for line in lines]
    return max((step["step"] for each in parsed for step in each.get("steps", ())), default=0)
