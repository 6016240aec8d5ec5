from __future__ import annotations

import re

import pytest

from airflow_llmsched.provider.params import AS_IN_SPEC, OBJECTIVES, pretraining_params
from airflow_llmsched.specs.quantities import parse_duration_s


def test_form_defaults_change_nothing_in_the_spec():
    params = pretraining_params("a.yaml")
    assert params["spec"].resolve() == "a.yaml"
    assert params["objective"].resolve() == AS_IN_SPEC
    assert params["deadline"].resolve() is None
    assert params["max_usd"].resolve() is None


@pytest.mark.parametrize("deadline", ["36h", "90 min", "1.5 d", "20s"])
def test_every_deadline_the_form_takes_is_a_duration_the_spec_takes(deadline):
    assert re.search(pretraining_params("a.yaml")["deadline"].schema["pattern"], deadline)
    assert parse_duration_s(deadline) > 0


@pytest.mark.parametrize("deadline", ["36", "h", "-1h", "1h; rm -rf /", ""])
def test_form_refuses_what_is_no_duration(deadline):
    assert not re.search(pretraining_params("a.yaml")["deadline"].schema["pattern"], deadline)


def test_form_offers_every_objective_of_the_domain():
    from dataclasses import fields

    from airflow_llmsched.domain.workload import ObjectiveWeights

    assert {field.name for field in fields(ObjectiveWeights)} == set(OBJECTIVES)
