"""The flow simulator that judges placements: cases worked out by hand, and what must hold of any."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest

from tests.bench.placement_judge import fairness
from tests.bench.placement_judge.exchanges import Exchange, Pattern, groups_of, load_of, rail_pairs
from tests.bench.placement_judge.fabric import DOWN, UP, Fabric
from tests.bench.placement_judge.fairness import Crossings, fair_rates
from tests.bench.placement_judge.fleet import Seats
from tests.bench.placement_judge.simulate import Stepping, step_s_J

JUDGE = Path(fairness.__file__).parent
INF = float("inf")
LEVELS = ("pod", "group")
CARD, INSIDE = 10.0, 100.0


def crossings(*pairs: tuple[int, int, float]) -> Crossings:
    bundle, link, weight = (np.array(column) for column in zip(*pairs, strict=True))
    return Crossings(bundle_E=bundle.astype(np.int64), link_E=link.astype(np.int64), weight_E=weight.astype(np.float64))


def rates(uses: Crossings, capacity: list[float], ceiling: list[float]) -> list[float]:
    return fair_rates(uses, np.array(capacity), np.array(ceiling)).tolist()


def fabric(groups: list[int], pods: list[int], **oversubscription: float) -> Fabric:
    """Nodes by the group and pod they are in, cards of 10 bytes/s, two rails."""
    return Fabric.of(
        np.array([pods, groups]),
        levels=LEVELS,
        oversubscription={"pod": 1.0, "group": 1.0} | oversubscription,
        num_rails=2,
        card_bytes_per_s=CARD,
        scale_up_bytes_per_s=INSIDE,
    )


def whole(*nodes: int, num_slots: int = 2) -> Seats:
    return Seats(np.repeat(nodes, num_slots), np.tile(np.arange(num_slots), len(nodes)))


def ring(ranks: np.ndarray, num_bytes: float = 10.0) -> Exchange:
    return Exchange(name="dp", pattern=Pattern.RING, ranks_GM=ranks, bytes_per_flow=num_bytes)


@pytest.mark.parametrize("path", sorted(JUDGE.glob("*.py")), ids=lambda path: path.name)
def test_the_judge_shares_no_code_with_what_it_judges(path):
    imports = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [alias.name for node in imports for alias in node.names]
    names += [f"{node.module}" for node in imports if isinstance(node, ast.ImportFrom)]
    assert [name for name in names if name.startswith("airflow_llmsched.planner")] == []


def test_two_flows_over_one_link_share_it_and_one_of_them_shares_a_scarcer_one():
    # links of 10 and 4: the flow over both gets half of 4, the first what is left of 10 (the textbook's example)
    uses = crossings((0, 0, 1), (1, 0, 1), (1, 1, 1), (2, 1, 1))
    assert rates(uses, [10, 4], [INF] * 3) == pytest.approx([8, 2, 2])


def test_a_bundle_with_two_flows_over_a_link_takes_twice_what_another_does():
    assert rates(crossings((0, 0, 2), (1, 0, 1)), [9], [INF, INF]) == pytest.approx([3, 3])


def test_who_has_a_ceiling_leaves_the_rest_to_others():
    assert rates(crossings((0, 0, 1), (1, 0, 1)), [10], [3, INF]) == pytest.approx([3, 7])


def test_shares_grow_along_a_chain_of_ever_wider_links():
    # 0 and 1 share 4, 1 and 2 share 10, 2 and 3 share 30: 2, 2, 8, 22
    uses = crossings((0, 0, 1), (1, 0, 1), (1, 1, 1), (2, 1, 1), (2, 2, 1), (3, 2, 1))
    assert rates(uses, [4, 10, 30], [INF] * 4) == pytest.approx([2, 2, 8, 22])


def random_case(rng: np.random.Generator) -> tuple[Crossings, np.ndarray, np.ndarray]:
    num_bundles, num_links = int(rng.integers(1, 30)), int(rng.integers(1, 20))
    uses = rng.random((num_bundles, num_links)) < rng.uniform(0.05, 0.6)
    bundle, link = np.nonzero(uses)
    weight = rng.integers(1, 5, size=len(bundle)).astype(float)
    ceiling = np.where(rng.random(num_bundles) < 0.5, rng.uniform(0.1, 20, num_bundles), 50.0)
    return Crossings(bundle_E=bundle, link_E=link, weight_E=weight), rng.uniform(1, 100, num_links), ceiling


@pytest.mark.parametrize("seed", range(100))
def test_rates_are_max_min_fair_and_keep_to_every_capacity(seed):
    uses, capacity, ceiling = random_case(np.random.default_rng(seed))
    rate = fair_rates(uses, capacity, ceiling)
    carried = np.bincount(uses.link_E, uses.weight_E * rate[uses.bundle_E], minlength=len(capacity))
    assert (carried <= capacity * (1 + 1e-6)).all()
    assert (rate <= ceiling * (1 + 1e-9)).all()
    assert (rate > 0).all()
    # what certifies it: each bundle is at its ceiling, or crosses a full link on which none is faster
    full = carried >= capacity * (1 - 1e-6)
    for bundle in range(len(rate)):
        mine = uses.link_E[uses.bundle_E == bundle]
        held = [
            link
            for link in mine
            if full[link] and rate[uses.bundle_E[uses.link_E == link]].max() <= rate[bundle] * (1 + 1e-6)
        ]
        assert held or rate[bundle] == pytest.approx(ceiling[bundle])


@pytest.mark.parametrize("seed", range(20))
def test_more_capacity_of_the_only_bottleneck_never_carries_less(seed):
    rng = np.random.default_rng(seed)
    num_bundles = int(rng.integers(2, 10))
    uses = crossings(*[(bundle, 0, float(rng.integers(1, 4))) for bundle in range(num_bundles)])
    ceiling = rng.uniform(0.5, 5, num_bundles)
    totals = [fair_rates(uses, np.array([capacity]), ceiling).sum() for capacity in np.linspace(1, 60, 30)]
    assert (np.diff(totals) >= -1e-9).all()


@pytest.mark.parametrize("seed", range(20))
def test_bundles_that_cross_the_same_links_alike_get_equal_shares(seed):
    uses, capacity, ceiling = random_case(np.random.default_rng(seed))
    twin = len(ceiling)
    of_first = uses.bundle_E == 0
    both = Crossings(
        bundle_E=np.concatenate([uses.bundle_E, np.full(of_first.sum(), twin)]),
        link_E=np.concatenate([uses.link_E, uses.link_E[of_first]]),
        weight_E=np.concatenate([uses.weight_E, uses.weight_E[of_first]]),
    )
    rate = fair_rates(both, capacity, np.append(ceiling, ceiling[0]))
    assert rate[0] == pytest.approx(rate[twin])


def test_a_domain_has_as_many_links_upwards_as_nodes_over_the_oversubscription():
    made = fabric([0, 0, 0, 0, 1], [0, 0, 0, 0, 0], group=2.0, pod=5.0)
    assert [level.num_links_D.tolist() for level in made.levels] == [[1], [2, 1]]
    assert made.num_links == (1 + 3) * 2 * 2
    assert (made.capacity_K == CARD).all()


def test_every_link_has_a_number_of_its_own():
    made = fabric([0, 0, 0, 1, 1, 1, 2], [0, 0, 0, 0, 0, 0, 1])
    numbers = [
        int(level.link(np.array([domain]), np.array([rail]), way, np.array([which]))[0])
        for level in made.levels
        for domain, num_links in enumerate(level.num_links_D)
        for rail in range(2)
        for way in (UP, DOWN)
        for which in range(num_links)
    ]
    assert sorted(numbers) == list(range(made.num_links))


def test_flows_between_two_domains_spread_over_the_links_by_chance_and_always_alike():
    made = fabric([0] * 8 + [1] * 8, [0] * 16)
    ends = np.meshgrid(np.arange(8), np.arange(8, 16))
    to_node, from_node = ends[1].ravel(), ends[0].ravel()
    rail = np.zeros(64, dtype=np.int64)
    _, links = made.crossings(from_node, rail, to_node, rail)
    used = np.bincount(links)
    assert np.count_nonzero(used) == 16
    assert used.max() < 2.5 * 8
    assert (made.crossings(from_node, rail, to_node, rail)[1] == links).all()


def test_a_flow_climbs_only_as_far_as_it_must_and_above_the_access_switch_to_change_rails():
    made = fabric([0, 0, 1, 2], [0, 0, 0, 1])

    def crossed(*ends: int) -> int:
        return len(made.crossings(*(np.array([end]) for end in ends))[1])

    assert crossed(0, 0, 1, 0) == 0
    assert crossed(0, 0, 1, 1) == 2
    assert crossed(0, 0, 2, 0) == 2
    assert crossed(0, 0, 3, 0) == 4


def test_another_salt_spreads_flows_otherwise():
    paths = (np.array([[0] * 16, [0] * 8 + [1] * 8]), LEVELS, {"pod": 1.0, "group": 1.0})
    plain, salted = (Fabric.of(paths[0], levels=paths[1], oversubscription=paths[2], salt=salt) for salt in (0, 1))
    ends = (np.arange(8), np.zeros(8, dtype=np.int64), np.arange(8, 16), np.zeros(8, dtype=np.int64))
    assert plain.crossings(*ends)[1].tolist() != salted.crossings(*ends)[1].tolist()


def test_groups_are_numbered_as_megatron_numbers_them():
    # tp=2, dp=2, pp=2
    assert groups_of(stride=1, size=2, world_size=8).tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert groups_of(stride=2, size=2, world_size=8).tolist() == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert groups_of(stride=4, size=2, world_size=8).tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_rings_of_single_ranks_stay_on_their_rails_and_fill_their_cards():
    # tp=2 inside each node: two rings of two, one to a rail, 10 bytes each way over cards of 10 bytes/s
    load = load_of(ring(groups_of(stride=2, size=2, world_size=4)), whole(0, 1), fabric([0, 1], [0, 0]))
    assert load.num_bytes == 10
    assert load.alone_s == pytest.approx(1.0)
    assert load.weight_K.tolist() == [1.0] * 8  # two groups, two rails, up and down
    same_group = load_of(ring(groups_of(stride=2, size=2, world_size=4)), whole(0, 1), fabric([0, 0], [0, 0]))
    assert same_group.link_K.size == 0


def test_a_ring_with_several_ranks_on_a_node_leaves_over_all_of_their_cards():
    # one ring over two nodes of two: each hop's 10 bytes go half over either rail
    load = load_of(ring(groups_of(stride=1, size=4, world_size=4)), whole(0, 1), fabric([0, 1], [0, 0]))
    assert load.num_bytes == 5
    assert load.alone_s == pytest.approx(0.5)


def test_a_ring_whose_ranks_jump_between_groups_crosses_as_often_as_they_do():
    sorted_, jumping = whole(0, 1, 2, 3), whole(0, 2, 1, 3)
    made = fabric([0, 0, 1, 1], [0, 0, 0, 0], group=2.0)  # one link above each switch
    exchange = ring(groups_of(stride=2, size=4, world_size=8))
    assert load_of(exchange, sorted_, made).weight_K.max() == 1
    assert load_of(exchange, jumping, made).weight_K.max() == 2


def test_an_exchange_within_nodes_takes_the_links_within_them():
    load = load_of(ring(groups_of(stride=1, size=2, world_size=4)), whole(0, 1), fabric([0, 1], [0, 0]))
    assert load.link_K.size == 0
    assert load.alone_s == pytest.approx(10 / INSIDE)


def test_all_to_all_loads_each_card_with_what_all_others_send_it():
    exchange = Exchange(
        name="ep", pattern=Pattern.ALL_TO_ALL, ranks_GM=groups_of(stride=1, size=4, world_size=4), bytes_per_flow=10.0
    )
    # each of four ranks receives from two on the other node, over its own rail
    load = load_of(exchange, whole(0, 1), fabric([0, 1], [0, 0]))
    assert load.alone_s == pytest.approx(2.0)
    assert (load.weight_K * load.num_bytes).sum() == pytest.approx(8 * 10 * 2)  # eight flows, each up and down


def test_between_stages_what_goes_to_another_slot_takes_its_rail_from_the_start():
    # two stages of one rank each, on slot 0 of one node and slot 1 of another: without the receiver's slot at home it
    # changes rails above the access switch; with it, it does not
    exchange = Exchange(name="pp", pattern=Pattern.NEIGHBOURS, ranks_GM=np.array([[0, 1]]), bytes_per_flow=10.0)
    made = fabric([0, 0], [0, 0])
    assert load_of(exchange, Seats(np.array([0, 1]), np.array([0, 1])), made).link_K.size == 4
    seats = Seats(np.array([0, 1, 0, 1]), np.array([0, 1, 1, 0]))
    assert load_of(exchange, seats, made).link_K.size == 0


@pytest.mark.parametrize(("out", "into"), [((0,), (0,)), ((0, 1), (1, 2)), ((0, 1, 2), (1, 2)), ((0,), (1, 2, 3))])
def test_a_hop_is_split_evenly_over_the_cards_of_both_ends(out, into):
    pairs = rail_pairs(out, into)
    for rail in out:
        assert sum(share for one, _, share in pairs if one == rail) == pytest.approx(1 / len(out))
    for rail in into:
        assert sum(share for _, other, share in pairs if other == rail) == pytest.approx(1 / len(into))
    aligned = sum(share for one, other, share in pairs if one == other)
    assert aligned == pytest.approx(len(set(out) & set(into)) / max(len(out), len(into)))


def stepping(made: Fabric, seats: Seats, *, compute_s: float) -> Stepping:
    return Stepping(compute_s=compute_s, loads=(load_of(ring(groups_of(stride=2, size=2, world_size=4)), seats, made),))


def test_a_job_alone_computes_then_sends_at_the_pace_of_its_scarcest_link():
    # a ring of four over 0, 2, 1, 3 crosses between the groups four times, over one link each way
    made = fabric([0, 0, 1, 1], [0, 0, 0, 0], group=2.0)
    load = load_of(ring(groups_of(stride=2, size=4, world_size=8)), whole(0, 2, 1, 3), made)
    job = Stepping(compute_s=3.0, loads=(load,))
    assert job.alone_s == pytest.approx(4.0)
    assert step_s_J([job], made.capacity_K, seed=0).tolist() == pytest.approx([5.0])


def test_two_jobs_that_only_send_each_get_half_of_the_links_they_share():
    made = fabric([0, 0, 1, 1], [0, 0, 0, 0], group=2.0)  # one link above each switch
    jobs = [stepping(made, whole(0, 2), compute_s=1e-6), stepping(made, whole(1, 3), compute_s=1e-6)]
    assert step_s_J(jobs[:1], made.capacity_K, seed=0).tolist() == pytest.approx([1.0], rel=1e-3)
    assert step_s_J(jobs, made.capacity_K, seed=0).tolist() == pytest.approx([2.0, 2.0], rel=1e-3)


def test_two_jobs_in_groups_of_their_own_do_not_see_each_other():
    made = fabric([0, 0, 1, 1], [0, 0, 0, 0], group=2.0)
    jobs = [stepping(made, whole(0, 1), compute_s=1.0), stepping(made, whole(2, 3), compute_s=2.0)]
    assert step_s_J(jobs, made.capacity_K, seed=0).tolist() == pytest.approx([2.0, 3.0])


def test_who_computes_while_another_sends_takes_nothing_from_it():
    made = fabric([0, 0, 1, 1], [0, 0, 0, 0], group=2.0)
    jobs = [stepping(made, whole(0, 2), compute_s=100.0), stepping(made, whole(1, 3), compute_s=1.0)]
    slow, fast = step_s_J(jobs, made.capacity_K, seed=1, num_steps=5)
    assert 101.0 <= slow <= 102.0
    assert 2.0 <= fast <= 2.2


def test_step_times_are_the_same_for_the_same_seed():
    made = fabric([0, 0, 1, 1], [0, 0, 0, 0], group=2.0)
    jobs = [stepping(made, whole(0, 2), compute_s=1.3), stepping(made, whole(1, 3), compute_s=0.7)]
    first, again = (step_s_J(jobs, made.capacity_K, seed=4) for _ in range(2))
    assert first.tolist() == again.tolist()
