from __future__ import annotations

import pytest

from airflow_llmsched.engines.slurm.gres import Gres, Slots, parse, slots_of


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("(null)", []),
        ("", []),
        ("gpu", [Gres(name="gpu", kind="", count=1)]),
        ("gpu:8", [Gres(name="gpu", kind="", count=8)]),
        ("gpu:h100", [Gres(name="gpu", kind="h100", count=1)]),
        ("gpu:h100:8", [Gres(name="gpu", kind="h100", count=8)]),
        ("gpu:h100:8(S:0-1)", [Gres(name="gpu", kind="h100", count=8)]),
        ("gpu:8(S:0,2)", [Gres(name="gpu", kind="", count=8)]),
        ("gpu:h100:3(IDX:0-1,5)", [Gres(name="gpu", kind="h100", count=3, indexes=(0, 1, 5))]),
        ("gpu:h100:0(IDX:N/A)", [Gres(name="gpu", kind="h100", count=0, indexes=())]),
        ("gpu:(null):2(IDX:0,3)", [Gres(name="gpu", kind="", count=2, indexes=(0, 3))]),
        ("gpu:a100:no_consume:4", [Gres(name="gpu", kind="a100", count=4)]),
        ("gpu:4,lustre:2T", [Gres(name="gpu", kind="", count=4), Gres(name="lustre", kind="", count=2 * 2**40)]),
        (
            "gpu:h100_80gb:2(IDX:0,1),gpu:a100-pcie:1(IDX:2)",
            [
                Gres(name="gpu", kind="h100_80gb", count=2, indexes=(0, 1)),
                Gres(name="gpu", kind="a100-pcie", count=1, indexes=(2,)),
            ],
        ),
        ("gpu:3g.20gb:2", [Gres(name="gpu", kind="3g.20gb", count=2)]),
        ("craynetwork:4K", [Gres(name="craynetwork", kind="", count=4096)]),
    ],
)
def test_every_form_is_read(text: str, found: list[Gres]) -> None:
    assert list(parse(text)) == found


@pytest.mark.parametrize("text", ["gpu:", "8", "gpu 8", "gpu:h100:8(", "gpu:h100:x", "gpu:4;x", "gpu:1(IDX:a)"])
def test_what_is_no_list_of_resources_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not understood|where a number"):
        parse(text)


@pytest.mark.parametrize(
    ("gres", "used", "wanted", "slots"),
    [
        ("gpu:h100:8(S:0-1)", "gpu:h100:3(IDX:0-2)", "gpu", Slots(num=8, num_free=5, free=(3, 4, 5, 6, 7))),
        ("gpu:h100:2", "gpu:h100:0(IDX:N/A)", "gpu:h100", Slots(num=2, num_free=2, free=(0, 1))),
        ("gpu:h100:2", "gpu:h100:1", "gpu", Slots(num=2, num_free=1, free=None)),
        ("gpu:2", "", "gpu", Slots(num=2, num_free=2, free=(0, 1))),
        ("gpu:2", "gpu:5(IDX:0-4)", "gpu", Slots(num=2, num_free=0, free=())),
        ("gpu:h100:2", "", "gpu:a100", Slots(num=0, num_free=0, free=None)),
        ("(null)", "(null)", "gpu", Slots(num=0, num_free=0, free=())),
        ("fpga:2", "fpga:1(IDX:0)", "gpu", Slots(num=0, num_free=0, free=())),
    ],
)
def test_free_slots_are_named_where_slurm_names_the_used_ones(gres: str, used: str, wanted: str, slots: Slots) -> None:
    assert slots_of(gres, used, wanted=wanted) == slots


def test_indexes_that_count_over_several_types_name_no_slot_of_one_of_them() -> None:
    gres, used = "gpu:h100:2,gpu:a100:2", "gpu:h100:1(IDX:0),gpu:a100:1(IDX:3)"
    assert slots_of(gres, used, wanted="gpu:a100") == Slots(num=2, num_free=1, free=None)
    assert slots_of(gres, used, wanted="gpu") == Slots(num=4, num_free=2, free=(1, 2))


def test_a_resource_that_is_no_accelerator_is_loud() -> None:
    with pytest.raises(ValueError, match="is lustre what ranks use"):
        slots_of("lustre:2T", "", wanted="lustre")
