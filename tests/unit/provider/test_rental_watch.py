from __future__ import annotations

import pytest

from airflow_llmsched import codec
from airflow_llmsched.provider.rental_watch import RentalWatch, best_quote
from airflow_llmsched.provider.rentals import RentalSettings


def _pending(pipeline, sim_cloud):
    sim_cloud.pools[1].start_up_s = 3600.0
    return pipeline.defer("provision").trigger.settings


def _set_running(sim_cloud):
    for request in sim_cloud.cloud._requests.values():
        for machine in request.machines:
            machine.runs_at_s = 0.0


def test_a_pending_lease_is_no_answer_and_an_active_one_is(pipeline, sim_cloud):
    watch = RentalWatch(_pending(pipeline, sim_cloud))
    assert watch.look() is None
    _set_running(sim_cloud)
    assert watch.look() == {"seen": "active"}


def test_a_lease_that_broke_is_one_too(pipeline, sim_cloud):
    watch = RentalWatch(_pending(pipeline, sim_cloud))
    sim_cloud.preempt(next(iter(sim_cloud.billed())))
    assert watch.look() == {"seen": "broken"}


def test_so_is_one_that_was_given_back(pipeline, sim_cloud):
    watch = RentalWatch(_pending(pipeline, sim_cloud))
    pipeline.run("release")
    assert watch.look() == {"seen": "nothing"}


def test_a_cloud_that_does_not_answer_is_asked_again(pipeline, sim_cloud, caplog):
    watch = RentalWatch(_pending(pipeline, sim_cloud))
    sim_cloud.go_dark(is_dark=True)
    assert watch.look() is None
    assert "does not answer" in caplog.text
    sim_cloud.go_dark(is_dark=False)
    _set_running(sim_cloud)
    assert watch.look() == {"seen": "active"}


def test_a_lease_that_is_too_new_to_be_listed_is_no_answer(pipeline, sim_cloud):
    settings = _pending(pipeline, sim_cloud)
    sim_cloud.cloud.consistency_s = 30.0
    (machine, _) = next(iter(sim_cloud.cloud._requests.values())).machines
    machine.listed_at_s = sim_cloud.now_s() + 30.0
    assert RentalWatch(settings).look() is None


def test_the_runs_leases_are_kept_meanwhile(pipeline, sim_cloud):
    watched = RentalWatch(_pending(pipeline, sim_cloud)).watched
    assert (watched.scope, watched.channel_root) == (pipeline.scope, "")


def test_the_best_quote_comes_with_the_market_in_words(pipeline, sim_cloud):
    request = _request(pipeline, sim_cloud)
    sim_cloud.pools[1].num_free = 2
    quote, words = best_quote(request)
    assert quote["offer"]["pool"]["zone"] == "sim-east-b"
    assert words == "1 of 2 offers serve: 1 with too few nodes"


@pytest.mark.parametrize("is_dark", [True, False])
def test_a_market_without_an_offer_says_why(pipeline, sim_cloud, is_dark):
    request = _request(pipeline, sim_cloud)
    sim_cloud.go_dark(is_dark=is_dark)
    quote, words = best_quote(request)
    assert quote is None
    assert ("does not answer" if is_dark else "2 with too few nodes") in words


def _request(pipeline, sim_cloud):
    for pool in sim_cloud.pools:
        pool.num_free = 1
    return pipeline.defer("provision").trigger.request


def test_arguments_are_settings_in_codec_form(pipeline, sim_cloud):
    settings = codec.from_plain(RentalSettings, _pending(pipeline, sim_cloud))
    assert (settings.scope, settings.hold_s) == (pipeline.scope, 3600.0)
    assert settings.request.need.by_shape["sim.8x"].num_nodes == 2
