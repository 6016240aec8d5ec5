"""What counts once an attempt that was taken for dead may save late."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched import codec
from airflow_llmsched.control.checkpoint_line import MAX_TAKEOVERS, CheckpointLine
from airflow_llmsched.domain.checkpoint import CheckpointRef, SavedBy

ROOT = "/c"


def by(attempt: int, generation: int = 1) -> SavedBy:
    return SavedBy(generation=generation, attempt=attempt)


def ref(step: int, saved_by: SavedBy | None) -> CheckpointRef:
    folder = f"{ROOT}/{saved_by.folder}" if saved_by else ROOT
    return CheckpointRef(step=step, path=f"{folder}/step-{step}", format="sim", saved_by=saved_by)


def line_of(*resumed: int, own_folder: bool = True) -> CheckpointLine:
    """Attempts 1, 2, ... went on from these steps."""
    line = CheckpointLine()
    for number, step in enumerate(resumed, start=1):
        line = line.launched(by(number), step=step, own_folder=own_folder)
    return line


def test_what_the_newest_attempt_saves_counts() -> None:
    assert line_of(0, 30).why_not(ref(50, by(2))) is None


def test_what_an_earlier_attempt_saved_up_to_the_takeover_counts_and_what_it_saves_above_does_not() -> None:
    line = line_of(0, 30)
    assert line.why_not(ref(30, by(1))) is None
    assert line.why_not(ref(31, by(1))) == "not in the run's line: g0001-a0002 took over from g0001-a0001 at step 30"


def test_fallback_gives_up_all_that_was_saved_above_it_by_anyone_before() -> None:
    line = line_of(0, 30, 10)
    assert line.why_not(ref(20, by(1))) is not None
    assert line.why_not(ref(40, by(2))) is not None
    assert line.why_not(ref(10, by(1))) is None
    assert line.why_not(ref(20, by(3))) is None


def test_takeovers_of_a_cleared_generation_still_count() -> None:
    line = line_of(0, 30).launched(by(1, generation=2), step=40, own_folder=True)
    assert line.why_not(ref(35, by(1))) is not None
    assert line.why_not(ref(35, by(2))) is None
    assert line.why_not(ref(45, by(2))) is not None
    assert line.why_not(ref(45, by(1, generation=2))) is None


def test_what_someone_put_into_the_root_counts_however_far_it_is() -> None:
    assert line_of(0, 30).why_not(ref(500, None)) is None


def test_what_lies_in_the_root_is_that_of_the_last_attempt_that_saved_there() -> None:
    shared = line_of(0, 20, own_folder=False)
    assert shared.why_not(ref(90, None)) is None
    moved = shared.launched(by(3), step=60, own_folder=True)
    assert moved.why_not(ref(60, None)) is None
    assert moved.why_not(ref(70, None)) is not None
    back = moved.launched(by(4), step=80, own_folder=False)
    assert back.why_not(ref(90, None)) is None
    assert back.why_not(ref(90, by(3))) is not None


LAUNCHES = st.lists(st.tuples(st.integers(0, 60), st.booleans()), min_size=1, max_size=12)


@given(launches=LAUNCHES, step=st.integers(0, 70), saver=st.integers(0, 13))
def test_bound_is_the_lowest_step_from_which_anyone_later_went_on(
    launches: list[tuple[int, bool]], step: int, saver: int
) -> None:
    """The definition, over all launches; the line keeps only those that can matter."""
    line = CheckpointLine()
    for number, (resumed, own_folder) in enumerate(launches, start=1):
        line = line.launched(by(number), step=resumed, own_folder=own_folder)
    shared = max((number for number, (_, own) in enumerate(launches, start=1) if not own), default=None)
    since = saver or shared
    later = [] if since is None else [resumed for number, (resumed, _) in enumerate(launches, 1) if number > since]
    assert (line.why_not(ref(step, by(saver) if saver else None)) is None) == (step <= min(later, default=step))
    assert codec.from_json(CheckpointLine, codec.to_json(line)) == line


def test_line_of_a_run_with_any_number_of_launches_stays_small() -> None:
    line = line_of(*range(0, 20_000, 10))
    assert len(line.takeovers) == MAX_TAKEOVERS
    assert line.why_not(ref(19_985, by(1_999))) is None
    assert line.why_not(ref(19_995, by(1_999))) is not None
    assert line.why_not(ref(19_995, by(1))) is not None
