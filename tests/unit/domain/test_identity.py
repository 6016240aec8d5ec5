from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.domain.identity import AttemptKey, RunKey, derive_run_key

WHO = {
    "deployment_id": "d",
    "dag_id": "pretrain",
    "run_id": "manual__2026",
    "run_after": "2026-01-01T00:00:00+00:00",
    "task_group_id": "g",
    "map_index": -1,
}
LABEL = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")


@given(st.text(), st.text(), st.text(), st.integers())
def test_whatever_the_names_hold_the_key_is_a_short_dns_label(dag_id, run_id, group, map_index):
    key = derive_run_key(**WHO | {"dag_id": dag_id, "run_id": run_id, "task_group_id": group, "map_index": map_index})
    assert LABEL.fullmatch(key)
    assert len(key) <= 32


def test_the_key_is_the_same_in_every_process_and_release():
    """A release that derived another would not find the runs of the one before."""
    assert derive_run_key(**WHO) == "ls-a3yonh3mht2pulkr4o4y"


@pytest.mark.parametrize("part", sorted(WHO))
def test_every_part_makes_a_difference(part):
    other = 3 if part == "map_index" else WHO[part] + "x"
    assert derive_run_key(**WHO | {part: other}) != derive_run_key(**WHO)


def test_text_that_moves_between_parts_makes_a_difference():
    one = derive_run_key(**WHO | {"dag_id": "ab", "run_id": "c"})
    assert one != derive_run_key(**WHO | {"dag_id": "a", "run_id": "bc"})


def test_an_attempt_is_named_by_run_generation_and_number():
    assert AttemptKey(run=RunKey("ls-x"), generation=2, attempt=11).name == "ls-x-g2-a11"
