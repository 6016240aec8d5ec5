from __future__ import annotations

from pathlib import Path

import pytest

from airflow_llmsched.domain.fleet import Cluster, ClusterLimits, Fleet, Storage
from airflow_llmsched.domain.queue import Limits, PriorityClass, QueueOrder, QueuePolicy, Reclaim, TeamQuota
from airflow_llmsched.domain.queue_rules import QueueRules, QueueWeights
from airflow_llmsched.errors import SpecError
from airflow_llmsched.specs import fleet_file

WHOLE = """\
version: 1
storages:
  - {name: disk, mounted_at: /mnt/disk/}
clusters:
  - name: campus
    engine: local
    options: {num_nodes: 4}
    connection: campus_login
    limits: {max_nodes: 3, max_slots: 20, max_runs: 2}
    usd_per_hour: {local-cpu: $1.50}
    region: eu-campus
    jurisdiction: EU
    preference: 10
    silent_after: 90s
    level_names: {host: machine}
    shared_storage: disk
    checkpoint_root: /disk
  - {name: other, engine: local}
clouds:
  - {cloud: aws, options: {regions: [eu-west-1]}, connection: aws_default}
"""


def test_a_whole_file_is_read() -> None:
    assert fleet_file.loads(WHOLE) == Fleet(
        clusters=(
            Cluster(
                name="campus",
                engine="local",
                options={"num_nodes": 4, "conn_id": "campus_login"},
                limits=ClusterLimits(max_nodes=3, max_slots=20, max_runs=2),
                usd_per_hour={"local-cpu": 1.5},
                region="eu-campus",
                jurisdiction="EU",
                preference=10,
                silent_after_s=90.0,
                level_names={"host": "machine"},
                shared_storage="disk",
                checkpoint_root="/disk",
            ),
            Cluster(name="other", engine="local"),
        ),
        clouds={"aws": {"regions": ["eu-west-1"], "conn_id": "aws_default"}},
        storages=(Storage(name="disk", mounted_at="/mnt/disk"),),
    )


def test_every_mistake_is_listed_with_its_line_and_what_would_be_right() -> None:
    text = """\
version: 1
clusters:
  - {name: a, engine: locl}
  - {name: a, engine: local, optons: {}}
  - {name: fleet, engine: local, shared_storage: dsk}
  - {name: local, engine: local, checkpoint_root: /x}
  - {name: b, engine: local, level_names: {rack: block, pod: block}}
clouds:
  - {cloud: asw}
"""
    with pytest.raises(SpecError) as caught:
        fleet_file.loads(text, file="fleet.yaml")
    told = [str(error) for error in caught.value.errors]
    expected = [
        ("fleet.yaml:3: clusters[0].engine", "did you mean 'local'"),
        ("fleet.yaml:4: clusters[1].optons", "did you mean 'options'"),
        ("fleet.yaml:4: clusters[1].name", "there twice"),
        ("fleet.yaml:5: clusters[2].name", "a name of its own"),
        ("fleet.yaml:5: clusters[2].shared_storage", "no entry of storages"),
        ("fleet.yaml:6: clusters[3].name", "a name of its own"),
        ("fleet.yaml:6: clusters[3].checkpoint_root", "name that in shared_storage"),
        ("fleet.yaml:7: clusters[4].level_names", "two levels one name"),
        ("fleet.yaml:9: clouds[0].cloud", "did you mean 'aws'"),
    ]
    assert len(told) == len(expected)
    for where, hint in expected:
        assert any(line.startswith(where) and hint in line for line in told), (where, told)


def test_values_of_a_wrong_kind_are_named() -> None:
    with pytest.raises(SpecError, match=r"clusters\[0\]\.limits\.max_nodes") as caught:
        fleet_file.loads("version: 1\nclusters:\n  - {name: a, engine: local, limits: {max_nodes: many}}\n")
    assert caught.value.line == 3


@pytest.mark.parametrize("text", ["version: 1\n", "- a\n", "", "version: 1\nclusters: !!python/object:os.system {}\n"])
def test_what_is_no_fleet_is_refused(text: str) -> None:
    with pytest.raises(SpecError):
        fleet_file.loads(text)


def test_a_secret_in_options_is_refused_without_showing_it() -> None:
    text = "version: 1\nclusters:\n  - {name: a, engine: local, options: {api_token: hunter2, token_file: /x}}\n"
    with pytest.raises(SpecError, match="looks like a secret") as caught:
        fleet_file.loads(text)
    assert "hunter2" not in str(caught.value)
    assert len(caught.value.errors) == 1


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"nowhere\.yaml.*cannot be read"):
        fleet_file.load(tmp_path / "nowhere.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"version: \xe9")
    with pytest.raises(SpecError, match="cannot be read"):
        fleet_file.load(tmp_path / "latin.yaml")


QUEUE = """\
version: 1
queue:
  classes:
    - {name: normal, priority: 0, protected: 10min}
    - {name: calm, priority: 5, may_preempt: false}
  teams:
    - {name: speech, accelerators: 64, cohort: lab, may_borrow: 16, may_lend: 8, reclaim: any, weight: 2.0}
    - {name: vision}
  order: first_come
  half_life: 3d
  starving_after: 12h
  backfill: false
  preemption: false
  objective: {latency: 2, reliability: 0.5}
"""


def test_how_runs_share_nodes_is_read_also_without_a_cluster() -> None:
    rules = fleet_file.loads(QUEUE).queue
    assert rules == QueueRules(
        classes=(
            PriorityClass(name="normal", priority=0, protected_s=600.0),
            PriorityClass(name="calm", priority=5, may_preempt=False),
        ),
        quotas=(
            TeamQuota(
                team="speech",
                nominal=Limits(num_accelerators=64),
                cohort="lab",
                borrowing=Limits(num_accelerators=16),
                lending=Limits(num_accelerators=8),
                reclaim=Reclaim.ANY,
                weight=2.0,
            ),
            TeamQuota(team="vision", nominal=Limits()),
        ),
        policy=QueuePolicy(
            half_life_s=3 * 86_400.0,
            starving_after_s=43_200.0,
            order=QueueOrder.FIRST_COME,
            may_backfill=False,
            may_preempt=False,
        ),
        objective=QueueWeights(latency=2.0, reliability=0.5),
    )
    assert fleet_file.loads(WHOLE).queue == QueueRules()


@pytest.mark.parametrize(
    ("queue", "complaint"),
    [
        ("{classes: [{name: gold, priority: 1}]}", "must have a class 'normal'"),
        ("{classes: [{name: normal, priority: 1}, {name: normal, priority: 2}]}", "is there twice"),
        ("{teams: [{name: a}, {name: a}]}", "is there twice"),
        ("{teams: [{name: a, may_lend: 4}]}", "name the cohort"),
        ("{teams: [{name: a, reclaim: always}]}", "reclaim"),
        ("{objective: {latency: 0}}", "has no weight above 0"),
        ("{objective: {energy: 1}}", "energy"),
    ],
)
def test_rules_that_make_no_sense_are_refused_with_their_line(queue: str, complaint: str) -> None:
    with pytest.raises(SpecError, match=complaint) as caught:
        fleet_file.loads(f"version: 1\nqueue: {queue}\n")
    assert "<fleet>:2" in str(caught.value)
