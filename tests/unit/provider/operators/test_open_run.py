from __future__ import annotations

import datetime
from pathlib import Path

import pytest
import yaml
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException

from airflow_llmsched.domain.ledger import Bucket
from airflow_llmsched.provider import run_files
from airflow_llmsched.provider.operators.open_run import OpenRunOperator, form_overrides, refuse_dagrun_timeout
from airflow_llmsched.provider.params import AS_IN_SPEC
from tests.support.pipeline import plain_spec


def _open(pipeline, **arguments):
    pipeline.run("open_run", **arguments)
    return run_files.read_spec(pipeline.scope)


def test_the_spec_is_stored_and_the_result_names_the_run(pipeline, state_root):
    result = pipeline.run("open_run")
    assert result["run_key"] == pipeline.scope.run_key
    assert result["state_root"] == str(state_root)
    assert result["name"] == run_files.read_spec(pipeline.scope).name == "plain"
    assert Path(result["spec_uri"].removeprefix("file://")).is_file()


def test_opening_again_gives_the_same_run_and_digest(pipeline):
    assert pipeline.run("open_run") == pipeline.run("open_run")


def test_a_file_below_the_folder_is_read(pipeline):
    (pipeline.folder / "specs").mkdir()
    (pipeline.folder / "specs" / "my spec.yaml").write_text(yaml.safe_dump(plain_spec(name="from a file")))
    (pipeline.folder / "specs" / "corpus").symlink_to(pipeline.folder / "corpus")
    assert _open(pipeline, spec="specs/my spec.yaml").name == "from a file"


def test_relative_specs_start_at_the_dags_own_folder(state_root):
    with DAG("dag"):
        task = OpenRunOperator(task_id="open_run", spec="no-such-spec.yaml")
    with pytest.raises(Exception, match=r"no-such-spec\.yaml") as refused:
        task._load()
    assert str(Path(__file__).parent) in str(refused.value)


@pytest.mark.parametrize("name", ["../outside.yaml", "/etc/passwd", "specs/../../outside.yaml", "link.yaml"])
def test_a_spec_outside_the_folder_is_refused(pipeline, tmp_path_factory, name):
    outside = pipeline.folder.parent / "outside.yaml"
    outside.write_text(yaml.safe_dump(plain_spec()))
    (pipeline.folder / "link.yaml").symlink_to(outside)
    with pytest.raises(AirflowFailException, match="must be a file below"):
        pipeline.run("open_run", spec=name)


@pytest.mark.parametrize("name", ["absent.yaml", "", "a\0b", "x" * 300, "$(touch never).yaml"])
def test_a_name_that_is_no_file_fails_for_good(pipeline, name):
    with pytest.raises(AirflowFailException):
        pipeline.run("open_run", spec=name)


def test_a_specs_text_is_refused_unless_the_dags_author_permits_it(pipeline):
    text = yaml.safe_dump(plain_spec(name="from the form"))
    with pytest.raises(AirflowFailException, match="allow_inline=True"):
        pipeline.run("open_run", spec=text)
    assert _open(pipeline, spec=text, allow_inline=True).name == "from the form"


def test_every_mistake_in_a_spec_is_named_with_its_path(pipeline):
    with pytest.raises(AirflowFailException) as refused:
        pipeline.run("open_run", spec=plain_spec(budget={"steps": 0}, batsh={}))
    assert "budget.steps" in str(refused.value)
    assert "batsh" in str(refused.value)


def test_the_form_overrides_the_spec(pipeline):
    spec = _open(pipeline, objective="cost", deadline=" 90 min ", max_usd="12.5")
    assert spec.objective.cost > spec.objective.throughput
    assert spec.budget.deadline_s == 5400.0
    assert spec.budget.max_usd == 12.5


@pytest.mark.parametrize("empty", [None, "", " ", "None"])
def test_an_empty_field_of_the_form_changes_nothing(pipeline, empty):
    asked = plain_spec(budget={"steps": 6, "deadline": "2h", "max_usd": "3 USD"}, objective="latency")
    as_is = _open(pipeline, spec=asked)
    assert _open(pipeline, spec=asked, objective=empty, deadline=empty, max_usd=empty) == as_is
    assert form_overrides(objective=AS_IN_SPEC, deadline=empty, max_usd=empty) == {}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_usd", "nan"),
        ("max_usd", float("nan")),
        ("max_usd", float("inf")),
        ("max_usd", -5.0),
        ("max_usd", "-5"),
        ("max_usd", 0),
        ("max_usd", "5 USD; rm -rf /"),
        ("deadline", "36"),
        ("deadline", "-1h"),
        ("deadline", "nan h"),
        ("objective", "speed"),
    ],
)
def test_what_the_form_must_not_say_is_refused_by_its_name(pipeline, field, value):
    with pytest.raises(AirflowFailException, match=field):
        pipeline.run("open_run", **{field: value})


def test_a_dagrun_timeout_is_refused_before_anything_is_stored(pipeline, state_root):
    with DAG("dag", dagrun_timeout=datetime.timedelta(hours=1)) as dag:
        task = OpenRunOperator(task_id="open_run", spec=pipeline.spec, spec_folder=str(pipeline.folder))
    with pytest.raises(AirflowFailException, match=r"dagrun_timeout.*budget\.deadline"):
        task.execute(pipeline.context(task))
    assert not state_root.exists()
    with pytest.raises(ValueError, match="dag"):
        refuse_dagrun_timeout(dag)


def test_no_dag_and_a_dag_without_timeout_pass():
    refuse_dagrun_timeout(None)
    refuse_dagrun_timeout(DAG("dag"))


def test_the_wait_for_the_task_and_its_own_time_are_on_the_ledger(pipeline):
    pipeline.run("open_run")
    waited, opened = [event.span for event in pipeline.journal()]
    assert (waited.bucket, opened.bucket) == (Bucket.QUEUE, Bucket.PROVISION)
    assert waited.start_s == pipeline.scope.started_at_s
    assert waited.end_s == opened.start_s
