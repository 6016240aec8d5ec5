"""Runs that rent from a cloud over HTTP, on a real Airflow: whatever happens to them, nothing is billed in the end."""

from __future__ import annotations

import json
import time

import pytest
from moto.ec2.models import ec2_backends

from airflow_llmsched.clouds.aws.tags import EXPIRES, RUN_ID
from airflow_llmsched.control.lease_book import LeaseBook, RentalEnding
from airflow_llmsched.domain.ledger import Bucket
from airflow_llmsched.objects.open import open_store
from airflow_llmsched.testing.airflow_stack import AirflowStack
from tests.support.aws_proxy import ACCOUNT, AwsProxy, aws_server
from tests.support.lifecycle import Run, task

pytestmark = [pytest.mark.stack, pytest.mark.long, pytest.mark.timeout(300)]

KEY = "AKIAOFTHECONNECTION"
PENDING = ("rent-whole", "rent-failed")
"""Runs whose machines do not come up until the test says so."""


class Account:
    """The cloud's own side: moto's state behind the proxy."""

    def __init__(self, proxy: AwsProxy, address: str) -> None:
        self.proxy = proxy
        self.address = address
        proxy.reset(now_s=time.time)
        proxy.world.on_launch = self._launched

    def _launched(self, _region: str, ids: list[str]) -> None:
        for instance in map(self._backend.get_instance, ids):
            if _run_id(instance) in PENDING:
                instance._state.name, instance._state.code = "pending", 0

    @property
    def _backend(self):
        return ec2_backends[ACCOUNT]["us-east-1"]

    def all(self, run_id: str) -> list:
        """Return every instance that the run ever had."""
        found = [each for one in self._backend.reservations.values() for each in one.instances]
        return [each for each in found if _run_id(each) == run_id]

    def billed(self, run_id: str) -> list:
        """Return those that cost money."""
        return [each for each in self.all(run_id) if each._state.name not in ("terminated", "shutting-down")]

    def come_up(self, run_id: str) -> None:
        for each in self.billed(run_id):
            each._state.name, each._state.code = "running", 16

    def expire_at(self, run_id: str, at_s: float) -> None:
        """Have everything of the run expire then, as if its hold had been running for longer: all that says so."""
        said = f"{at_s:.0f}"
        for tags in self._backend.tags.values():
            if tags.get(RUN_ID) == run_id:
                tags[EXPIRES] = said
        for template in self._backend.launch_templates.values():
            template.tags = [{**tag, "value": said} if tag["key"] == EXPIRES else tag for tag in template.tags]
        for group in self.proxy.world.groups.values():
            group.tags = [(key, said if key == EXPIRES else value) for key, value in group.tags]

    def expires_s(self, run_id: str) -> float:
        return min(float(_tags(each)[EXPIRES]) for each in self.billed(run_id))


def _tags(instance) -> dict[str, str]:
    return {tag["key"]: tag["value"] for tag in instance.get_tags()}


def _run_id(instance) -> str:
    return _tags(instance).get(RUN_ID, "")


@pytest.fixture(scope="module")
def account() -> Account:
    return Account(*aws_server())


@pytest.fixture(scope="module")
def runs(stack: AirflowStack, account: Account, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Three runs started at once, so that they share the waiting. The connection is in Airflow's database."""
    connection = {"connection_id": "rented", "conn_type": "aws", "login": KEY, "password": "s3cr3t-of-the-connection"}
    stack.client._call("POST", "/api/v2/connections", connection)
    trouble = stack.home / "llmsched" / "trouble" / "rent-killed+provision.json"
    trouble.parent.mkdir(parents=True, exist_ok=True)
    trouble.write_text(json.dumps({"at": ("aws.fleet.create", "after"), "what": "die"}))
    hold = tmp_path_factory.mktemp("hold")
    where = {"dag_id": "renting", "cloud_address": account.address}
    quick = '"--step-s=0.02"'
    return {
        "rent-killed": Run(stack, "rent-killed", hold, arguments=quick, **where),
        "rent-whole": Run(stack, "rent-whole", hold, **where),
        "rent-failed": Run(stack, "rent-failed", hold, **where),
    }


def book(stack: AirflowStack, run: Run) -> LeaseBook:
    return LeaseBook(open_store(str(stack.home / "llmsched")), run.key())


def pending(run: Run, account: Account) -> None:
    """Wait until the triggerer watches a lease whose machines are not up yet."""
    run.wait_for(lambda: run.tasks().get("provision") == "deferred" and len(account.billed(run.run_id)) == 2)


def test_a_task_that_is_failed_in_the_web_while_its_lease_is_pending_leaves_no_machine(
    stack: AirflowStack, runs: dict[str, Run], account: Account
) -> None:
    run = runs["rent-failed"]
    pending(run, account)
    stack.client.mark("renting", run.run_id, task("provision"), "failed")
    assert run.wait_for_end() == "failed"
    assert run.tasks()["release"] == "success"
    assert account.billed(run.run_id) == []
    (rental,) = book(stack, run).rentals()
    assert rental.end is not None
    assert rental.end.ending is RentalEnding.RELEASED


def test_a_lease_is_waited_for_renewed_by_the_triggerer_and_given_back(
    stack: AirflowStack, runs: dict[str, Run], account: Account
) -> None:
    run = runs["rent-whole"]
    pending(run, account)
    account.come_up(run.run_id)
    run.wait_until_held()
    assert {each._state.name for each in account.billed(run.run_id)} == {"running"}
    account.expire_at(run.run_id, time.time() + 600.0)
    run.wait_for(lambda: account.expires_s(run.run_id) > time.time() + 1800.0)
    run.let_go()
    assert run.wait_for_end() == "success"
    assert account.billed(run.run_id) == []
    assert len(account.all(run.run_id)) == 2
    rented = stack.client.xcom("renting", run.run_id, task("provision"))
    assert (rented["cloud"], rented["num_nodes"], rented["capacity_type"]) == ("aws", 2, "on_demand")
    spans = [event.span for event in run.events() if event.kind == "span_noted" and "provision" in event.span.label]
    assert {span.bucket for span in spans} == {Bucket.QUEUE, Bucket.PROVISION}
    assert stack.client.xcom("renting", run.run_id, task("report"))["rented_usd"] > 0.0


def test_a_worker_that_dies_with_the_clouds_answer_is_followed_by_one_that_takes_its_machines_up(
    stack: AirflowStack, runs: dict[str, Run], account: Account
) -> None:
    run = runs["rent-killed"]
    assert run.wait_for_end() == "success"
    assert not list((stack.home / "llmsched" / "trouble").glob("rent-killed+provision.json"))
    assert run.instance("provision")["try_number"] == 2
    assert len(account.all(run.run_id)) == 2
    assert account.billed(run.run_id) == []
    assert len(book(stack, run).rentals()) == 1


def test_every_call_was_signed_by_the_airflow_connection_and_nobody_wrote_its_secret_down(
    stack: AirflowStack, runs: dict[str, Run], account: Account
) -> None:
    for run in runs.values():
        run.wait_for_end()
    assert set(account.proxy.world.access_keys) == {KEY}
    written = [*(stack.home / "llmsched").rglob("*.json"), *(stack.home / "logs").rglob("*.log")]
    assert len(written) > 10
    assert [path for path in written if "s3cr3t-of-the-connection" in path.read_text(errors="replace")] == []
