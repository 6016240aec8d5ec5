from __future__ import annotations

import json

import pytest
import yaml

from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.planner.export import kueue
from airflow_llmsched.planner.export.cells import Cell, Cells
from tests.support.tool_options import planned

RACK, BLOCK, ZONE = (Cell(level=name, num_pods=num) for name, num in (("rack", 2), ("block", 8), ("zone", 16)))


def told(**cells: object) -> dict[str, str]:
    return kueue.pod_annotations(Cells(num_pods=64, ranks_per_pod=8, **cells))


def test_a_gang_that_may_be_anywhere_says_so_as_it_would_not_be_counted_otherwise() -> None:
    assert told() == {"kueue.x-k8s.io/podset-unconstrained-topology": "true"}


def test_one_layer_is_a_slice_inside_what_the_gang_requires() -> None:
    assert told(whole="zone", inner=(BLOCK,)) == {
        "kueue.x-k8s.io/podset-required-topology": "zone",
        "kueue.x-k8s.io/podset-slice-required-topology": "block",
        "kueue.x-k8s.io/podset-slice-size": "8",
    }


def test_two_layers_are_told_largest_first_and_instead_of_a_slice() -> None:
    found = told(preferred="zone", inner=(BLOCK, RACK))
    assert found.pop("kueue.x-k8s.io/podset-preferred-topology") == "zone"
    ((name, text),) = found.items()
    assert name == "kueue.x-k8s.io/podset-slice-required-topology-constraints"
    assert json.loads(text) == [{"topology": "block", "size": 8}, {"topology": "rack", "size": 2}]


@pytest.mark.parametrize(("inner", "gated"), [((BLOCK,), False), ((ZONE, BLOCK, RACK), True)])
def test_the_gate_of_several_layers_is_named(monkeypatch, inner, gated) -> None:
    monkeypatch.setattr(kueue, "cells_of", lambda _: Cells(num_pods=64, ranks_per_pod=8, inner=inner))
    assert any("TASMultiLayerTopology" in note for note in kueue.notes(planned(ParallelLayout(dp=8)))) == gated


def test_what_is_written_is_yaml() -> None:
    assert yaml.safe_load(kueue.render(planned(ParallelLayout(dp=8)))) == {"annotations": told()}
