from __future__ import annotations

import pytest

from airflow_llmsched.planner.contention import slowdown
from airflow_llmsched.planner.contention.loads import GangLoad, LinkId, LinkUse
from airflow_llmsched.planner.contention.slowdown import fair_rate, slowdowns

UP = LinkId(depth=0, domain=0)
OTHER = LinkId(depth=0, domain=1)


def gang(name: str, *, step_s: float, active_s: float, rate: float = 10.0, link: LinkId = UP) -> GangLoad:
    return GangLoad(
        name=name, step_s=step_s, uses={link: LinkUse(bytes_per_step=active_s * rate, alone_bytes_per_s=rate)}
    )


@pytest.mark.parametrize(
    ("own", "others", "rate"),
    [
        (10.0, [], 10.0),
        (10.0, [10.0], 5.0),
        (2.0, [10.0], 2.0),
        (10.0, [2.0], 8.0),
        (10.0, [2.0, 10.0], 4.0),
        (10.0, [10.0, 10.0, 10.0], 2.5),
        (3.0, [1.0, 2.0], 3.0),
    ],
)
def test_a_link_of_ten_is_shared_fairly(own, others, rate) -> None:
    assert fair_rate(own, others, 10.0) == pytest.approx(rate)


def test_who_shares_nothing_is_not_slowed() -> None:
    found = slowdowns([gang("a", step_s=4, active_s=1), gang("b", step_s=4, active_s=1, link=OTHER)], {})
    assert [(each.ratio, each.link, each.culprits) for each in found] == [(1.0, None, ())] * 2


def test_beside_one_that_always_sends_sending_takes_twice_as_long() -> None:
    busy = gang("b", step_s=1, active_s=1)
    slowed = slowdowns([gang("a", step_s=4, active_s=1), busy], {UP: 10.0})[0]
    assert slowed.step_s == pytest.approx(5.0)
    assert (slowed.link, slowed.culprits) == (UP, ("b",))


def test_two_alike_find_each_other_sending_for_its_share_of_the_longer_step() -> None:
    # With d the share of the longer step in which the other sends, sending takes 1 / (1 - d / 2) as long.
    one, two = slowdowns([gang("a", step_s=4, active_s=1), gang("b", step_s=4, active_s=1)], {UP: 10.0})
    active_s = 1 + one.step_s - 4
    duty = active_s / one.step_s
    assert active_s == pytest.approx(1 / (1 - duty / 2), rel=1e-4)
    assert one.step_s == pytest.approx(two.step_s)
    assert 1.03 < one.ratio < 1.05


def test_a_link_that_carries_both_at_once_slows_nobody() -> None:
    found = slowdowns([gang("a", step_s=4, active_s=1), gang("b", step_s=4, active_s=1)], {UP: 20.0})
    assert [each.ratio for each in found] == [1.0, 1.0]


def test_culprits_are_named_by_what_they_send() -> None:
    gangs = [gang("a", step_s=4, active_s=2), gang("b", step_s=4, active_s=1), gang("c", step_s=4, active_s=3)]
    found = {each.name: each.culprits for each in slowdowns(gangs, {UP: 10.0})}
    assert found == {"a": ("c", "b"), "b": ("c", "a"), "c": ("a", "b")}


def test_a_gang_waits_for_its_slowest_link_only() -> None:
    uses = {link: LinkUse(bytes_per_step=10, alone_bytes_per_s=10) for link in (UP, OTHER)}
    both = GangLoad(name="a", step_s=4, uses=uses)
    busy = [gang("b", step_s=1, active_s=1), gang("c", step_s=1, active_s=1, link=OTHER)]
    assert slowdowns([both, *busy], {UP: 10.0, OTHER: 10.0})[0].step_s == pytest.approx(5.0)


def test_a_link_that_is_full_all_the_time_gives_each_of_many_its_turn() -> None:
    gangs = [gang(f"g{number}", step_s=4, active_s=0.5) for number in range(40)]
    found = slowdowns(gangs, {UP: 10.0})
    assert len({round(each.step_s, 6) for each in found}) == 1
    assert found[0].step_s == pytest.approx(40 * 0.5, rel=0.05)


def test_counting_senders_agrees_with_looking_at_each_case_where_rates_are_alike(monkeypatch) -> None:
    gangs = [gang(f"g{number}", step_s=4, active_s=0.3 + number / 10) for number in range(6)]
    by_case = slowdowns(gangs, {UP: 10.0})
    monkeypatch.setattr(slowdown, "MAX_ENUMERATED", 0)
    by_number = slowdowns(gangs, {UP: 10.0})
    assert [each.step_s for each in by_number] == pytest.approx([each.step_s for each in by_case])
