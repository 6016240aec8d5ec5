from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_llmsched import codec
from airflow_llmsched.domain.capacity import DEFAULT_CORRELATION
from airflow_llmsched.errors import SpecError
from airflow_llmsched.planner.market.checkpoint_way import SavedState, checkpoint_bytes
from airflow_llmsched.planner.market.stock import ALWAYS, StockModel
from airflow_llmsched.planner.perf.job import job_of
from airflow_llmsched.provider.gang_run import GangSettings
from airflow_llmsched.provider.policy_arguments import LEAVE_S, policy_settings
from airflow_llmsched.provider.rental_policy import PolicySettings

SAVES = {"storages": {"aws/us-west-2": "/mnt/west"}}
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


def test_regions_that_read_a_storage_of_their_own_are_named(gang, demo_spec, state_root):
    told = {**TOLD, "storages": {"aws/us-west-2": "/mnt/west/"}}
    assert policy_settings(told, gang, demo_spec, purpose="x", tick_s=600.0).storages == {"aws/us-west-2": "/mnt/west"}
    assert policy_settings(TOLD, gang, demo_spec, purpose="x", tick_s=600.0).storages == {}


def test_a_checkpoint_that_is_copied_between_storages_counts_as_large_as_it_is_told_or_planned(
    gang, demo_spec, state_root
):
    def settings(**told):
        return policy_settings({**TOLD, **told}, gang, demo_spec, purpose="x", tick_s=600.0)

    storages = {"aws/us-west-2": "/mnt/west"}
    assert settings(checkpoint={"size": "2TB"}).checkpoint is None  # which nobody copies
    planned = settings(storages=storages).checkpoint
    assert planned == SavedState(num_bytes=checkpoint_bytes(job_of(demo_spec)))
    told = settings(storages=storages, checkpoint={"size": "2TB", "egress_usd_per_gb": 0.05, "gb_per_s": 4})
    assert told.checkpoint == SavedState(num_bytes=2 * 10**12, egress_usd_per_gb=0.05, bytes_per_s=4e9)
    assert codec.from_plain(PolicySettings, codec.to_plain(told)) == told


def test_on_demand_capacity_that_runs_out_is_told_by_how_long_it_lasts_and_is_out(gang, demo_spec, state_root):
    stock = {"lasts": "5d", "out": "6h", "max_late": 0.02}
    settings = policy_settings({**TOLD, "stock": stock}, gang, demo_spec, purpose="x", tick_s=600.0)
    assert settings.stock == StockModel(out_per_hour=1 / 120, back_per_hour=1 / 6)
    assert settings.max_late_ratio == 0.02
    assert policy_settings(TOLD, gang, demo_spec, purpose="x", tick_s=600.0).stock == ALWAYS


def test_carbon_counts_for_a_policy_as_it_does_for_a_single_rental(gang, demo_spec, state_root):
    energy = {"usd_per_t_co2": 80, "grids": {"aws/us-east-1": {"g_co2_per_kwh": 380}}}
    told = policy_settings({**TOLD, "energy": energy}, gang, demo_spec, purpose="x", tick_s=600.0).rental.request.energy
    assert told.weights.usd_per_carbon_g == pytest.approx(8e-5)
    assert set(told.grids) == {"aws/us-east-1"}
    settings = policy_settings({**TOLD, "energy": energy}, gang, demo_spec, purpose="x", tick_s=600.0)
    assert codec.from_plain(PolicySettings, codec.to_plain(settings)) == settings


def test_how_much_of_what_is_lost_strikes_a_whole_pool_may_be_told(gang, demo_spec, state_root):
    def correlation(**told):
        settings = policy_settings({**TOLD, **told}, gang, demo_spec, purpose="x", tick_s=600.0)
        return settings.rental.request.need.shared_loss_ratio

    assert correlation() == DEFAULT_CORRELATION
    assert [correlation(correlation=value) for value in (0, 0.4, 1)] == [0.0, 0.4, 1.0]
    for wrong in (-0.1, 1.01, "0.9", True, float("nan")):
        with pytest.raises(SpecError, match="correlation"):
            correlation(correlation=wrong)


def test_traces_of_ones_own_are_named_by_a_file_that_can_be_fitted(gang, demo_spec, state_root, tmp_path):
    file = tmp_path / "traces.json"
    file.write_text('[{"tick_s": 600, "up": [1, 1, 0, 0, 1, 1, 1, 0]}]')
    told = policy_settings({**TOLD, "traces": str(file)}, gang, demo_spec, purpose="x", tick_s=600.0)
    assert told.traces == str(file)
    assert policy_settings(TOLD, gang, demo_spec, purpose="x", tick_s=600.0).traces == ""
    for wrong in ("traces.json", str(tmp_path / "none.json")):
        with pytest.raises(SpecError, match=r"capacity\.traces"):
            policy_settings({**TOLD, "traces": wrong}, gang, demo_spec, purpose="x", tick_s=600.0)


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
        ({"stock": "often out"}, r"capacity\.stock"),
        ({"stock": {"lasts": "5d"}}, r"capacity\.stock\.out"),
        ({"stock": {"lasts": "0s", "out": "6h"}}, r"capacity\.stock\.lasts"),
        ({"stock": {"last": "5d", "out": "6h"}}, r"capacity\.stock\.last"),
        ({"stock": {"max_late": 1.5}}, r"capacity\.stock\.max_late"),
        ({"storages": ["/mnt/west"]}, r"capacity\.storages"),
        ({**SAVES, "checkpoint": "2TB"}, r"capacity\.checkpoint"),
        ({**SAVES, "checkpoint": {"bytes": 3}}, r"capacity\.checkpoint\.bytes"),
        ({**SAVES, "checkpoint": {"size": 3}}, r"capacity\.checkpoint\.size"),
        ({**SAVES, "checkpoint": {"gb_per_s": 0}}, r"capacity\.checkpoint\.gb_per_s"),
        ({**SAVES, "checkpoint": {"egress_usd_per_gb": -1}}, r"capacity\.checkpoint\.egress_usd_per_gb"),
        ({"storages": {"aws/us-west-2": "mnt"}}, r"capacity\.storages\.aws/us-west-2"),
        ({"storages": {"us-west-2": "/mnt/west"}}, r"capacity\.storages\.us-west-2"),
        ({"storages": {"gcp/us-west1": "/mnt/west"}}, r"capacity\.storages\.gcp/us-west1"),
    ],
)
def test_what_is_wrong_is_named(gang, demo_spec, state_root, changes, path):
    with pytest.raises(SpecError, match=path):
        policy_settings({**TOLD, **changes}, gang, demo_spec, purpose="x", tick_s=600.0)
