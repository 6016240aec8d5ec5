from __future__ import annotations

import pytest

from airflow_llmsched import codec
from airflow_llmsched.domain.decision import Abort, Decision, Migrate, Restart


@pytest.mark.parametrize("decision", [Restart(reason="r"), Migrate(reason="r"), Abort(reason="r")])
def test_a_stored_decision_is_read_back_as_the_one_it_was(decision):
    assert codec.from_json(Decision, codec.to_json(decision, Decision)) == decision
