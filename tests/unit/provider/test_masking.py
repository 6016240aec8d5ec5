"""Field case B3, as far as it needs no Airflow around it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from airflow.sdk._shared.secrets_masker import _secrets_masker, redact
from airflow.sdk.log import mask_secret

from airflow_llmsched.domain.roles import RoleKind, RoleSpec
from airflow_llmsched.domain.workload import EvaluationSpec
from airflow_llmsched.errors import SpecError
from airflow_llmsched.provider.masking import mask_settings, refuse_secret_arguments

SECRET = "hf_TESTsecret123"


@pytest.fixture(autouse=True)
def masker():
    """Forget what a test had masked."""
    yield
    _secrets_masker().reset_masker()


def with_launcher(spec, **changes):
    return replace(spec, launcher=replace(spec.launcher, **changes))


def test_settings_whose_names_say_secret_are_hidden_from_logs(demo_spec):
    mask_settings(with_launcher(demo_spec, environment={"HF_TOKEN": SECRET, "SHARD": "plain-value"}))
    assert redact(f"token {SECRET} of plain-value") == "token *** of plain-value"


def test_a_command_without_secrets_is_taken(demo_spec):
    refuse_secret_arguments(with_launcher(demo_spec, command=("train", "--lr", "1e-3")))


@pytest.mark.parametrize("argument", [SECRET, f"--token={SECRET}"])
def test_a_secret_in_a_command_is_refused_and_not_shown(demo_spec, argument):
    mask_secret(SECRET, "token")
    with pytest.raises(SpecError, match=r"launcher\.command\[1\]") as refused:
        refuse_secret_arguments(with_launcher(demo_spec, command=("train", argument)))
    assert SECRET not in str(refused.value)
    loader = RoleSpec(kind=RoleKind.DATA_LOADER, num_ranks=1, command=("load", argument))
    with pytest.raises(SpecError, match=r"roles\[0\]\.command\[1\]"):
        refuse_secret_arguments(replace(demo_spec, roles=(loader,)))
    with pytest.raises(SpecError, match=r"evaluation\.command\[0\]"):
        refuse_secret_arguments(replace(demo_spec, evaluation=EvaluationSpec(command=(argument,))))
