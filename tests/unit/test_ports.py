from __future__ import annotations

import inspect
import typing

import pytest

from airflow_llmsched import ports, registry
from airflow_llmsched.registry import AdapterGroup

PORT_OF = {
    AdapterGroup.ENGINES: ports.Engine,
    AdapterGroup.CLOUDS: ports.Cloud,
    AdapterGroup.CHECKPOINT_FORMATS: ports.CheckpointFormat,
    AdapterGroup.PLACEMENT_SOLVERS: ports.PlacementSolver,
}
BUILT_IN = [(group, name) for group in AdapterGroup for name in registry.names(group)]


def _is_port(member: object) -> bool:
    return getattr(member, "_is_protocol", False) and getattr(member, "__module__", "") == ports.__name__


def _methods(port: type) -> dict[str, inspect.Signature]:
    return {
        name: inspect.signature(member)
        for name, member in inspect.getmembers(port, inspect.isfunction)
        if not name.startswith("_")
    }


@pytest.mark.parametrize(("group", "name"), BUILT_IN)
def test_every_registered_adapter_has_the_methods_of_its_port_with_their_parameters(group, name):
    adapter = registry.load(group, name)
    if inspect.isfunction(adapter):  # one that chooses among ways to open what it says it returns
        adapter = typing.get_type_hints(adapter)["return"]
    for method, expected in _methods(PORT_OF[group]).items():
        parameters = inspect.signature(getattr(adapter, method)).parameters
        kinds = {each.name: each.kind for each in parameters.values()}
        for wanted in expected.parameters.values():
            assert kinds.get(wanted.name) == wanted.kind, f"{name}.{method}({wanted.name})"


@pytest.mark.parametrize("port", [each for _, each in inspect.getmembers(ports, _is_port)])
def test_every_method_of_a_port_is_synchronous_and_says_what_it_promises(port):
    for name in _methods(port):
        method = getattr(port, name)
        assert not inspect.iscoroutinefunction(method), f"{port.__name__}.{name}"
        assert method.__doc__, f"{port.__name__}.{name} has no docstring"


def test_the_values_of_a_port_carry_names_that_are_stored():
    assert {feature.value for feature in ports.EngineFeature} == {
        "preempt_node",
        "free_capacity",
        "nodes_are_fixed",
        "nodes_are_rented",
        "own_queue",
    }
    assert {guard.value for guard in ports.LateDuplicateGuard} == {
        "atomic_directory",
        "name",
        "client_token",
        "request_id",
        "unique_name_and_singleton",
        "table",
        "record",
    }
    assert ports.ObjectInfo(key="a/b", num_bytes=3, modified_s=1.0).key == "a/b"
