from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.agent.redact import HIDDEN, is_sensitive, redact, secrets_of


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "WANDB_API_KEY", "aws_secret_access_key", "DB_PASSWORD", "PGPASSPHRASE", "GOOGLE_CREDENTIALS"]
)
def test_names_that_say_secret_are_sensitive(name: str) -> None:
    assert is_sensitive(name)


@pytest.mark.parametrize(
    "name", ["PATH", "TOKENIZERS_PARALLELISM", "MAX_TOKENS", "tokenizer_path", "LLMSCHED_TRAIN", "RANK", "NCCL_KEY"]
)
def test_names_of_the_trade_are_not(name: str) -> None:
    assert not is_sensitive(name)


def test_a_secret_within_another_leaves_nothing_of_it() -> None:
    secrets = secrets_of({"A_TOKEN": "abcdef"}, {"B_TOKEN": "abcdef-ghi", "PATH": "/bin"})
    assert secrets == ("abcdef-ghi", "abcdef")
    assert redact("x abcdef-ghi y abcdef z", secrets) == f"x {HIDDEN} y {HIDDEN} z"


def test_values_too_short_to_be_secrets_are_left() -> None:
    assert secrets_of({"USE_TOKEN": "1", "SECRET": ""}) == ()


@given(st.text(), st.dictionaries(st.sampled_from(["A_TOKEN", "PASSWORD"]), st.text(min_size=5)))
def test_no_secret_survives_but_as_part_of_the_word_that_hides_it(text: str, environment: dict[str, str]) -> None:
    secrets = secrets_of(environment)
    hidden = redact(text, secrets)
    assert all(secret not in part for secret in secrets for part in hidden.split(HIDDEN))
    assert redact(text, ()) == text
