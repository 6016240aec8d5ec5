from __future__ import annotations

import pytest
from pydantic import ValidationError

from airflow_llmsched.specs.topology_schema import LinkBlock, TopologyModel


def test_bandwidth_is_read_with_its_unit_and_bits_apart_from_bytes() -> None:
    assert LinkBlock(bandwidth="400 Gbit/s").bandwidth == LinkBlock(bandwidth="50 GB/s").bandwidth == 5e10
    with pytest.raises(ValidationError, match="bare number"):
        LinkBlock(bandwidth=50)


def test_a_topology_needs_levels_and_nodes() -> None:
    node = {"names": "n1", "path": ["r"], "shape": "dgx-h100"}
    assert TopologyModel.model_validate({"version": 1, "levels": ["rack"], "nodes": [node]}).links == []
    for missing in ({"levels": []}, {"nodes": []}):
        with pytest.raises(ValidationError):
            TopologyModel.model_validate({"version": 1, "levels": ["rack"], "nodes": [node], **missing})
