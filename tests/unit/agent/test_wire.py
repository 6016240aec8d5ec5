from __future__ import annotations

import json
import re

import pytest

from airflow_llmsched import codec
from airflow_llmsched.agent import wire
from airflow_llmsched.domain.progress import AgentSpanKind, NodeReport


def test_node_report_reads_back_as_the_domain_value_even_with_a_loss_that_is_no_number() -> None:
    step = wire.step_record(step=3, start_s=1.0, end_s=2.0, loss=float("nan"), num_tokens=64)
    plain = wire.node_report(
        node="n0",
        seq=1,
        at_s=2.5,
        ranks=[{"rank": 0, "step": 3, "heartbeat_s": 2.0, "pid": 7}],
        steps=[{key: value for key, value in step.items() if key != "kind"}],
        spans=[{"kind": "save", "rank": 0, "start_s": 1.0, "end_s": 1.5, "step": 3}],
        marks=[{"step": 3, "path": "/c", "at_s": 1.5}],
    )
    report = codec.from_json(NodeReport, json.dumps(plain))
    assert report.steps[0].loss != report.steps[0].loss
    assert report.spans[0].kind is AgentSpanKind.SAVE
    assert report.marks[0].path == "/c"
    assert report.ranks[0].pid == 7


def test_span_kinds_of_the_agent_are_those_of_the_domain() -> None:
    assert {kind.value for kind in AgentSpanKind} == wire.SPANS


def test_files_are_named_by_rank() -> None:
    assert (wire.rank_spool_name(12), wire.rank_log_name(12)) == ("rank-12.jsonl", "rank-12.log")


@pytest.mark.parametrize(("generation", "attempt"), [(1, 1), (2, 13), (12_345, 67_890)])
def test_folder_of_an_attempt_is_read_back(generation: int, attempt: int) -> None:
    name = wire.attempt_folder(generation=generation, attempt=attempt)
    assert wire.attempt_of_folder(name) == (generation, attempt)
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name)  # legal wherever a name can be asked for


def test_folders_of_attempts_sort_by_age_as_text() -> None:
    names = [wire.attempt_folder(generation=g, attempt=a) for g, a in ((1, 9), (1, 10), (1, 999), (2, 1), (10, 1))]
    assert names == sorted(names)


@pytest.mark.parametrize(
    "name", ["", "g1", "step-00000001", "g0001-a0001.bak", "g-a", "g1-a\N{ARABIC-INDIC DIGIT ONE}"]
)
def test_other_names_are_no_attempts_folder(name: str) -> None:
    assert wire.attempt_of_folder(name) is None
