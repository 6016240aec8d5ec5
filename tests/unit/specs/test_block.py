from __future__ import annotations

import pytest
from pydantic import ValidationError

from airflow_llmsched.specs.block import Block


class Side(Block):
    """Two sides."""

    width: float = 1.0


def test_a_block_has_no_other_keys_no_infinities_and_takes_text_for_no_number() -> None:
    assert Side.model_validate({"width": 2.0}).width == 2.0
    for wrong in ({"widht": 2.0}, {"width": float("inf")}, {"width": "2"}):
        with pytest.raises(ValidationError):
            Side.model_validate(wrong)
