from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import typer

from airflow_llmsched.cli.plan_settings import Target, read_target, read_wiring, settings_of, write_settings
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


MATRIX = "\tGPU0\tGPU1\tmlx5_4\tCPU Affinity\tNUMA Affinity\n" + "".join(
    f"{row}\n" for row in ("GPU0\t X \tNV4\tPIX\t0-3\t1", "GPU1\tNV4\t X \tSYS\t4-7\t0", "mlx5_4\tPIX\tSYS\t X \t\t")
)


def test_ranks_are_beside_the_cards_that_the_nodes_matrix_tells(staged: PlanSearch, tmp_path: Path) -> None:
    assert read_wiring(None) is None
    (tmp_path / "topo.txt").write_text(MATRIX)
    settings = settings_of("ranks", RUN, staged, number=1, wiring=read_wiring(tmp_path / "topo.txt"))
    assert "\t0\tmlx5_4\t1\n" in settings.text
    assert settings.notes == (
        "Cards and NUMA nodes are those of the matrix that was handed over, on every node alike.",
        "6 ranks have neither: the matrix has 2 accelerators, as other nodes have.",
    )


def test_what_is_no_matrix_is_refused(tmp_path: Path) -> None:
    (tmp_path / "topo.txt").write_text("GPU")
    with pytest.raises(SpecError, match=r"--wiring: .*no line of column names"):
        read_wiring(tmp_path / "topo.txt")


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
    write_settings([(settings, Target(tool="torchrun", path=path))])
    assert path.read_text() == settings.text
    assert capsys.readouterr().err.count("note: ") == len(settings.notes) > 0


def test_what_several_tools_note_is_said_once_and_the_rest_names_its_tool(
    staged: PlanSearch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tools = ("torchrun", "kueue", "volcano")
    targets = [Target(tool=tool, path=tmp_path / tool) for tool in tools]
    write_settings([(settings_of(each.tool, RUN, staged, number=1), each) for each in targets])
    notes = capsys.readouterr().err.splitlines()
    assert len(set(notes)) == len(notes) > 0
    assert [note for note in notes if note.startswith("note on torchrun: torchrun starts ranks and splits nothing")]
    assert [note for note in notes if note.startswith("note on kueue, volcano: The gang is ")]


def test_a_file_that_cannot_be_written_is_an_error(staged: PlanSearch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    settings = settings_of("torchrun", RUN, staged, number=1)
    with pytest.raises(SpecError, match="cannot be written"):
        write_settings([(settings, Target(tool="torchrun", path=tmp_path / "file" / "below"))])
