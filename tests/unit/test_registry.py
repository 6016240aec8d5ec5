from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

from airflow_llmsched import registry
from airflow_llmsched.errors import SpecError
from airflow_llmsched.registry import AdapterGroup


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch):
    """Replace what is installed by the given (name, target) pairs."""

    def register(*pairs: tuple[str, str]) -> None:
        found = [EntryPoint(name=name, value=value, group=AdapterGroup.ENGINES) for name, value in pairs]
        monkeypatch.setattr(registry, "entry_points", lambda *, group: found)
        registry._entry_points.cache_clear()

    yield register
    registry._entry_points.cache_clear()


def test_the_built_in_adapters_are_registered_like_anyone_elses():
    assert "local" in registry.names(AdapterGroup.ENGINES)
    assert {"dcp", "hf_trainer"} <= set(registry.names(AdapterGroup.CHECKPOINT_FORMATS))
    assert {"balanced", "bestfit", "exact", "fleet"} <= set(registry.names(AdapterGroup.PLACEMENT_SOLVERS))


@pytest.mark.parametrize(
    ("group", "name", "type_name"),
    [
        (AdapterGroup.ENGINES, "local", "LocalEngine"),
        (AdapterGroup.CHECKPOINT_FORMATS, "dcp", "DcpFormat"),
        (AdapterGroup.CHECKPOINT_FORMATS, "hf_trainer", "HfTrainerFormat"),
        (AdapterGroup.PLACEMENT_SOLVERS, "bestfit", "BestFitSolver"),
        (AdapterGroup.PLACEMENT_SOLVERS, "exact", "ExactSolver"),
        (AdapterGroup.PLACEMENT_SOLVERS, "fleet", "FleetSolver"),
    ],
)
def test_each_built_in_adapter_loads(group, name, type_name):
    assert registry.load(group, name).__name__ == type_name


def test_an_adapter_loads_by_name(registered):
    registered(("decoder", "json:JSONDecoder"))
    assert registry.load(AdapterGroup.ENGINES, "decoder").__name__ == "JSONDecoder"


def test_an_unknown_name_lists_the_known_ones_and_the_nearest(registered):
    registered(("slurm", "a:B"), ("local", "c:D"))
    with pytest.raises(SpecError) as caught:
        registry.load(AdapterGroup.ENGINES, "slurn")
    assert str(caught.value) == "engine = 'slurn': unknown; did you mean 'slurm'? known: local, slurm"


def test_a_name_like_no_other_gets_no_guess(registered):
    registered(("local", "c:D"))
    with pytest.raises(SpecError, match=r"unknown; known: local$"):
        registry.load(AdapterGroup.ENGINES, "xyzzy")


def test_an_empty_group_says_that_the_package_is_not_installed(registered):
    registered()
    with pytest.raises(SpecError, match="is airflow-provider-llmsched installed"):
        registry.load(AdapterGroup.ENGINES, "local")


def test_two_packages_that_claim_one_name_are_a_conflict_and_not_a_lottery(registered):
    registered(("local", "one:A"), ("local", "two:B"))
    with pytest.raises(SpecError, match="more than once: one:A, two:B"):
        registry.load(AdapterGroup.ENGINES, "local")


def test_one_package_found_twice_on_the_path_is_no_conflict(registered):
    registered(("decoder", "json:JSONDecoder"), ("decoder", "json:JSONDecoder"))
    assert registry.load(AdapterGroup.ENGINES, "decoder").__name__ == "JSONDecoder"


@pytest.mark.parametrize("target", ["no_such_module_of_anyone:X", "json:NoSuchName"])
def test_a_broken_adapter_names_its_target_and_the_next_step(registered, target):
    registered(("broken", target))
    with pytest.raises(SpecError, match=f"registered as {target}.*Install the extra"):
        registry.load(AdapterGroup.ENGINES, "broken")


def test_listing_names_imports_no_adapter():
    code = (
        "import sys; from airflow_llmsched import registry; registry.names(registry.AdapterGroup.ENGINES);"
        "print([m for m in sys.modules if m.startswith('airflow_llmsched.engines')])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_options_that_an_adapter_does_not_take_or_lacks_are_told_in_words_of_options():
    def adapter(*, user: str, key: str) -> None: ...

    def told(**options: object) -> str:
        with pytest.raises(TypeError) as caught:
            adapter(**options)
        return registry.misfit(caught.value)

    assert told(user="a", key="b", kye="b") == "there is no option 'kye'"
    assert told(user="a") == "needs 'key' as well"
    assert told() == "needs 'user' and 'key' as well"
    assert registry.misfit(TypeError("must be text")) == "must be text"
