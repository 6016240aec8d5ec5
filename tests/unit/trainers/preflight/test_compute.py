from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from airflow_llmsched.trainers.preflight.compute import check_compute, is_product  # noqa: E402  (needs torch)


def test_a_sound_processor_multiplies_right() -> None:
    found = check_compute(torch.device("cpu"), seed=3)
    assert found["outcome"] == "ok"
    assert found["value"] > 0


def test_one_wrong_number_in_a_million_is_found() -> None:
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randint(-8, 9, (256, 256), generator=generator).float() for _ in range(2))
    product = left @ right
    assert is_product(product, left, right, generator=generator)
    product[17, 200] += 1
    assert not is_product(product, left, right, generator=generator)
