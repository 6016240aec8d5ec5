from __future__ import annotations

import pytest

from airflow_llmsched.checkpoints.hf_deepspeed import DeepSpeedState
from airflow_llmsched.checkpoints.hf_ranks import RankGroup, check_rank_files, rank_groups, saved_world_size
from airflow_llmsched.checkpoints.scan import Torn
from airflow_llmsched.domain.layout import ParallelLayout


def zero(num_ranks: int, *, convertible: bool = False) -> DeepSpeedState:
    sizes = {f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt": 1 for rank in range(num_ranks)}
    return DeepSpeedState(folder="global_step5", sizes=sizes, convertible=convertible)


def test_a_checkpoint_of_one_process_has_no_rank_files() -> None:
    groups = rank_groups(["model.safetensors", "optimizer.pt", "rng_state.pth"], None)
    assert groups == ()
    check_rank_files(groups)
    assert saved_world_size(groups, {"rng_state.pth": 1}) == 1
    assert saved_world_size(groups, {}) is None


def test_random_states_tell_the_world_size_and_bind_nobody() -> None:
    names = {f"rng_state_{rank}.pth": 1 for rank in range(12)}
    (group,) = groups = rank_groups(names, None)
    assert saved_world_size(groups, names) == 12
    assert group.problem_under(ParallelLayout(dp=5)) is None


@pytest.mark.parametrize("prefix", ["", "bf16_", "fp16_"])
def test_zero_state_binds_the_data_parallel_degree_only(prefix: str) -> None:
    sizes = {f"{prefix}zero_pp_rank_{rank}_mp_rank_00_optim_states.pt": 1 for rank in range(4)}
    (group,) = groups = rank_groups([], DeepSpeedState(folder="g", sizes=sizes, convertible=False))
    assert group.holds_optimizer
    assert group.problem_under(ParallelLayout(dp=4, pp=2)) is None
    assert "4 data-parallel ranks and 8 are offered" in str(group.problem_under(ParallelLayout(dp=8)))
    assert saved_world_size(groups, {}) is None  # tensor or pipeline ranks are not counted in it


def test_a_gap_tears_and_a_larger_kind_of_file_tells_of_ranks_at_the_end() -> None:
    names = [f"rng_state_{rank}.pth" for rank in (0, 1, 3)]
    with pytest.raises(Torn, match="3 of 4 ranks"):
        check_rank_files(rank_groups(names, None))
    with pytest.raises(Torn, match="3 of 4 ranks have their part of the random state"):
        check_rank_files(rank_groups([f"rng_state_{rank}.pth" for rank in range(3)], zero(4)))
    check_rank_files(rank_groups([f"rng_state_{rank}.pth" for rank in range(8)], zero(4)))


def test_a_convertible_state_binds_nobody() -> None:
    (group,) = rank_groups([], zero(4, convertible=True))
    assert group.problem_under(ParallelLayout(dp=7)) is None


def test_the_reason_says_both_numbers_and_the_way_out() -> None:
    group = RankGroup(what="it", ranks=frozenset(range(8)), over="world", holds_optimizer=True)
    assert group.problem_under(ParallelLayout(dp=4, tp=2)) is None
    assert str(group.problem_under(ParallelLayout(dp=16))).startswith(
        "it was saved by 8 ranks and 16 are offered: keep 8, or convert"
    )
