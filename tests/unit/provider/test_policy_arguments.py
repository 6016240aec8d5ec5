from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_llmsched.errors import SpecError
from airflow_llmsched.provider.gang_run import GangSettings
from airflow_llmsched.provider.policy_arguments import LEAVE_S, policy_settings

TOLD = {"clouds": {"aws": {}}, "shapes": {"p5.48xlarge": {"num_nodes": 4, "work": "36h"}}}


@pytest.fixture
def gang(scope):
    return GangSettings(scope=scope, engine="local", generation=3, owner_since_s=50.0, deadline_s=1e6)


def test_text_with_units_becomes_numbers_and_the_gang_says_for_whom(gang, demo_spec, state_root):
    told = {**TOLD, "changeover": "5min", "wait": "2h", "regions": ["us-east-1"], "max_usd_per_hour": 50}
    settings = policy_settings(told, gang, demo_spec, purpose="run_gang", tick_s=600.0)
    assert (settings.tick_s, settings.changeover_s, settings.patience_s) == (600.0, 300.0, 7200.0)
    assert settings.slack_s == LEAVE_S + demo_spec.launcher.grace_s + gang.poll_interval_s
    rental = settings.rental
    assert (rental.purpose, rental.generation, rental.since_s, rental.hold_s) == ("run_gang", 3, 50.0, 3600.0)
    assert rental.request.need.wish.regions == ("us-east-1",)
    assert rental.request.max_usd_per_hour == 50.0


def test_a_sum_does_instead_of_a_date_and_one_of_them_must_be(gang, demo_spec, state_root):
    timeless = replace(gang, deadline_s=None)
    spec = replace(demo_spec, budget=replace(demo_spec.budget, max_usd=None))
    with pytest.raises(SpecError, match="needs a date or a sum"):
        policy_settings(TOLD, timeless, spec, purpose="x", tick_s=600.0)
    rich = replace(spec, budget=replace(spec.budget, max_usd=5.0))
    assert policy_settings(TOLD, timeless, rich, purpose="x", tick_s=600.0).rental.request.max_usd == 5.0


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"clouds": {}}, "clouds"),
        ({"cheap": True}, r"capacity\.cheap"),
        ({"changeover": "soon"}, r"capacity\.changeover"),
        ({"wait": 3}, r"capacity\.wait"),
        ({"hold": "1min"}, "hold"),
    ],
)
def test_what_is_wrong_is_named(gang, demo_spec, state_root, changes, path):
    with pytest.raises(SpecError, match=path):
        policy_settings({**TOLD, **changes}, gang, demo_spec, purpose="x", tick_s=600.0)
