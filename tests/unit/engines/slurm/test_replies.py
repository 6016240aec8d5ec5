from __future__ import annotations

import pytest

from airflow_llmsched.engines.slurm.replies import Job, job_of_submit


@pytest.mark.parametrize(
    ("text", "job"),
    [
        ("15786755", Job(id="15786755")),
        ("15786755\n", Job(id="15786755")),
        ("Submitted batch job 60060368 on cluster slaking", Job(id="60060368", cluster="slaking")),
        ("Submitted batch job 7\n", Job(id="7")),
        ("481417;mpp2", Job(id="481417", cluster="mpp2")),
        ("*** Welcome to site 7 ***\nsbatch: Checking your quota\n481417;mpp2\n", Job(id="481417", cluster="mpp2")),
    ],
)
def test_c19_the_job_is_found_in_every_sites_words(text: str, job: Job) -> None:
    assert job_of_submit(text) == job


@pytest.mark.parametrize("text", ["", "sbatch: error: invalid partition", "Submitted batch job", "7 8", "-7", "7;a b"])
def test_no_job_is_not_guessed(text: str) -> None:
    with pytest.raises(ValueError, match="no job"):
        job_of_submit(text)


def test_two_jobs_are_not_chosen_between() -> None:
    with pytest.raises(ValueError, match="several jobs"):
        job_of_submit("7\n8\n")


def test_c21_what_scancel_is_given_is_the_number_alone() -> None:
    assert job_of_submit("Submitted batch job 60060368 on cluster slaking").id == "60060368"
