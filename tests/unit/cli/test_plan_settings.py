from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import typer

from airflow_llmsched.cli.plan_settings import Target, read_target, settings_of, write_settings
from airflow_llmsched.domain.layout import Recompute
from airflow_llmsched.domain.plan import PlanSearch
from airflow_llmsched.domain.workload import ParallelismWish
from airflow_llmsched.errors import SpecError
from airflow_llmsched.planner.perf.hardware import node_shapes
from airflow_llmsched.planner.placement.bestfit import BestFitSolver
from airflow_llmsched.planner.search import search
from tests.support.fleets import fleet, workload
from tests.support.models import LLAMA31_8B

RUN = workload(LLAMA31_8B, num_sequences=64)


@pytest.fixture(scope="module")
def staged() -> PlanSearch:
    """A best plan with stages, which DeepSpeed cannot say, before one without."""
    one, other = (
        search(replace(RUN, parallelism=pins), fleet(1), node_shapes(), solver=BestFitSolver())
        for pins in (ParallelismWish(pp=pp, recompute=Recompute.FULL) for pp in (2, 1))
    )
    without = next(plan for plan in other.plans if plan.layout.cp == 1 and plan.layout.zero_stage)
    return PlanSearch(plans=(one.plans[0], without))


def test_a_target_is_a_tool_with_or_without_a_file() -> None:
    assert read_target("torchrun", needs_file=False) == Target(tool="torchrun", path=None)
    assert read_target("torchrun:a/b:c", needs_file=True) == Target(tool="torchrun", path=Path("a/b:c"))


def test_a_file_may_be_needed_and_the_tool_must_be_known() -> None:
    with pytest.raises(typer.BadParameter, match="torchrun:FILE"):
        read_target("torchrun", needs_file=True)
    with pytest.raises(SpecError, match="no such tool"):
        read_target("torchrum", needs_file=False)


def test_the_plan_asked_for_is_written_out(staged: PlanSearch) -> None:
    text = settings_of("deepspeed", RUN, staged, number=2).text
    assert f'"stage": {staged.plans[1].layout.zero_stage}' in text


def test_a_plan_that_the_tool_cannot_express_is_an_error(staged: PlanSearch) -> None:
    with pytest.raises(SpecError) as caught:
        settings_of("deepspeed", RUN, staged, number=1)
    assert "layout.pp" in {error.path for error in caught.value.errors}


def test_a_number_beyond_the_plans_is_an_error(staged: PlanSearch) -> None:
    with pytest.raises(SpecError, match="there are 2 plans"):
        settings_of("torchrun", RUN, staged, number=3)


def test_files_are_written_whole_and_notes_go_beside_them(
    staged: PlanSearch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = settings_of("torchrun", RUN, staged, number=1)
    path = tmp_path / "new" / "torchrun.args"
    write_settings(settings, Target(tool="torchrun", path=path))
    assert path.read_text() == settings.text
    assert capsys.readouterr().err.count("note: ") == len(settings.notes) > 0


def test_a_file_that_cannot_be_written_is_an_error(staged: PlanSearch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    settings = settings_of("torchrun", RUN, staged, number=1)
    with pytest.raises(SpecError, match="cannot be written"):
        write_settings(settings, Target(tool="torchrun", path=tmp_path / "file" / "below"))
