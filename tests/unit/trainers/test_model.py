from __future__ import annotations

import pytest
import torch

from airflow_llmsched.trainers.model import ByteGpt, rotary_angles, rotate
from tests.support.trainer import small_settings

pytestmark = pytest.mark.torch

TOKENS = torch.randint(0, 256, (2, 16), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("changes", [{}, {"num_kv_heads": 1}, {"gated_mlp": False}, {"tied_embeddings": True}])
def test_a_position_sees_only_itself_and_those_before_it(changes: dict[str, object]) -> None:
    model = ByteGpt(small_settings(**changes))
    changed = TOKENS.clone()
    changed[:, 9] = (changed[:, 9] + 1) % 256

    before, after = model(TOKENS), model(changed)

    assert torch.equal(before[:, :9], after[:, :9])
    assert not torch.allclose(before[:, 9:], after[:, 9:])


def test_parameters_follow_from_the_seed_alone() -> None:
    torch.manual_seed(1)
    first = ByteGpt(small_settings(seed=5)).state_dict()
    torch.manual_seed(2)
    second = ByteGpt(small_settings(seed=5)).state_dict()
    other = ByteGpt(small_settings(seed=6)).state_dict()

    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["embedding.weight"], other["embedding.weight"])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 2 * 256 * 32 + 2 * (4 * 32 * 32 + 3 * 32 * 48 + 2 * 32) + 32),
        ({"gated_mlp": False}, 2 * 256 * 32 + 2 * (4 * 32 * 32 + 2 * 32 * 48 + 2 * 32) + 32),
        ({"tied_embeddings": True}, 256 * 32 + 2 * (4 * 32 * 32 + 3 * 32 * 48 + 2 * 32) + 32),
        ({"num_kv_heads": 1}, 2 * 256 * 32 + 2 * (3 * 32 * 32 + 3 * 32 * 48 + 2 * 32) + 32),
    ],
)
def test_the_parameters_are_those_of_the_shape(changes: dict[str, object], expected: int) -> None:
    model = ByteGpt(small_settings(**changes))

    assert sum(parameter.numel() for parameter in model.parameters()) == expected


def test_rotation_keeps_lengths_and_makes_products_depend_on_distance_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, 8, generator=generator)
    rotation = rotary_angles(num_positions=12, head_size=8)
    queries, keys = rotate(query.expand(12, 8), rotation), rotate(key.expand(12, 8), rotation)

    assert torch.allclose(queries.norm(dim=-1), query.norm().expand(12))
    products = queries @ keys.T
    assert torch.allclose(products[3, 1], products[11, 9], atol=1e-5)
    assert not torch.allclose(products[3, 1], products[3, 2], atol=1e-3)


def test_an_untrained_model_guesses_evenly() -> None:
    logits = ByteGpt(small_settings())(TOKENS)

    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), TOKENS.flatten())

    assert loss.item() == pytest.approx(5.545, abs=0.1)
