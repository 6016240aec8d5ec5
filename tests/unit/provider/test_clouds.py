from __future__ import annotations

import sys
import types

import pytest

from airflow_llmsched.clock import SystemClock
from airflow_llmsched.clouds.onprem.cloud import OnPremCloud
from airflow_llmsched.control import open_clouds
from airflow_llmsched.domain.capacity import Requirement, ShapeNeed
from airflow_llmsched.errors import CouldNotLookError, SpecError
from airflow_llmsched.provider.clouds import open_cloud, options_of

CONNECTION = '{"conn_type": "generic", "login": "me", "password": "pw"}'


@pytest.fixture
def opened(state_root, monkeypatch):
    """What adapters were opened with. Every name is a cloud."""
    seen = []

    def adapter(*, clock, credentials=None, region="", store=None):
        seen.append({"clock": clock, "credentials": credentials, "region": region, "store": store})
        return "cloud"

    monkeypatch.setattr(open_clouds, "load", lambda group, name: adapter)
    return seen


def test_options_go_to_the_adapter_with_the_machines_clock(opened):
    assert open_cloud("aws", {"region": "eu-west-1"}) == "cloud"
    assert opened[0]["region"] == "eu-west-1"
    assert isinstance(opened[0]["clock"], SystemClock)
    assert opened[0]["credentials"] is None


def test_an_option_that_the_cloud_does_not_take_is_named(opened):
    with pytest.raises(SpecError, match=r"options of cloud 'aws'.*regoin"):
        open_cloud("aws", {"regoin": "eu-west-1"})


def test_an_option_that_a_trigger_could_not_carry_is_refused(opened):
    with pytest.raises(SpecError, match=r"cloud options\.region"):
        open_cloud("aws", {"region": object()})


def test_an_unknown_cloud_is_a_spec_error(state_root):
    with pytest.raises(SpecError, match="nimbus"):
        open_cloud("nimbus", {})


def test_a_cloud_that_keeps_records_gets_the_deployments_store(opened, state_root, monkeypatch):
    adapter = open_clouds.load(None, "x")
    adapter.needs_store = True
    open_cloud("onprem", {})
    assert str(state_root) in opened[0]["store"].uri


def test_ones_own_machines_are_an_engines_nodes_reserved_in_the_deployments_store(state_root, monkeypatch):
    monkeypatch.setattr(open_clouds, "load", lambda _group, _name: OnPremCloud)
    engine_options = {"num_nodes": 3, "slots_per_node": 1, "node_shape": "local-cpu"}
    cloud = open_cloud("onprem", {"engine": "local", "engine_options": engine_options})
    assert isinstance(cloud, OnPremCloud)
    (offer,) = cloud.offers(Requirement(by_shape={"local-cpu": ShapeNeed(num_nodes=1, work_s=1.0)}))
    assert offer.num_nodes == 3


def test_a_connection_that_is_not_defined_is_no_leave_to_use_whatever_credentials_lie_about(opened):
    with pytest.raises(CouldNotLookError, match="'nobody' is not defined, or could not be read"):
        open_cloud("aws", {"conn_id": "nobody"})
    assert not opened


def test_a_cloud_without_a_kind_of_connection_says_to_leave_it_out(opened):
    with pytest.raises(SpecError, match="takes no Airflow connection"):
        open_cloud("onprem", {"conn_id": "aws_default"})


def test_an_aws_connection_becomes_a_session_of_its_keys(opened, monkeypatch):
    held = '{"conn_type": "aws", "login": "AKIAX", "password": "pw", "extra": {"region_name": "eu-west-3"}}'
    monkeypatch.setenv("AIRFLOW_CONN_PARIS", held)
    open_cloud("aws", {"conn_id": "paris", "region": "eu-west-3"})
    session = opened[0]["credentials"]
    assert session.get_credentials().access_key == "AKIAX"
    assert session.region_name == "eu-west-3"
    assert "conn_id" not in opened[0]


@pytest.mark.parametrize(
    ("cloud", "hook", "argument"),
    [
        ("gcp", "airflow.providers.google.common.hooks.base_google.GoogleBaseHook", "gcp_conn_id"),
        ("azure", "airflow.providers.microsoft.azure.hooks.base_azure.AzureBaseHook", "conn_id"),
    ],
)
def test_other_clouds_sign_in_by_their_providers_hooks(opened, monkeypatch, cloud, hook, argument):
    """Their providers are extras that are not installed here: the call's shape is what is checked."""

    class Hook:
        def __init__(self, **arguments):
            self.arguments = arguments

        def get_credentials(self):
            return self

        get_credential = get_credentials

        def get_token(self, *_scopes):
            raise NotImplementedError

    put_hook(monkeypatch, hook, Hook)
    open_cloud(cloud, {"conn_id": "mine"})
    assert opened[0]["credentials"].arguments == {argument: "mine"}


def test_azures_old_kind_of_credential_is_refused_with_the_next_step(opened, monkeypatch):
    """What its hook returns unless the connection says otherwise has no ``get_token`` (provider 15.2.1)."""

    class Hook:
        def __init__(self, *, conn_id):
            pass

        def get_credential(self):
            return object()

    put_hook(monkeypatch, "airflow.providers.microsoft.azure.hooks.base_azure.AzureBaseHook", Hook)
    with pytest.raises(SpecError, match="use_azure_identity_object"):
        open_cloud("azure", {"conn_id": "mine"})
    assert opened == []


def put_hook(monkeypatch, hook, kind):
    """Have ``kind`` be imported as the hook, and a connection ``mine`` be there."""
    module, _, name = hook.rpartition(".")
    parts = module.split(".")
    for depth in range(3, len(parts) + 1):
        monkeypatch.setitem(sys.modules, ".".join(parts[:depth]), types.ModuleType(parts[depth - 1]))
    setattr(sys.modules[module], name, kind)
    monkeypatch.setenv("AIRFLOW_CONN_MINE", CONNECTION)


@pytest.mark.parametrize(
    ("cloud", "module"),
    [
        ("aws", "airflow.providers.amazon.aws.hooks.base_aws"),
        ("gcp", "airflow.providers.google.common.hooks.base_google"),
        ("azure", "airflow.providers.microsoft.azure.hooks.base_azure"),
    ],
)
def test_without_the_extra_a_connection_cannot_be_read_and_the_error_names_it(opened, monkeypatch, cloud, module):
    monkeypatch.setenv("AIRFLOW_CONN_MINE", CONNECTION)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SpecError, match=rf"airflow-provider-llmsched\[{cloud}\]"):
        open_cloud(cloud, {"conn_id": "mine"})


@pytest.fixture
def fleet_file(tmp_path, state_root, monkeypatch):
    path = tmp_path / "fleet.yaml"
    path.write_text(
        "version: 1\nclouds:\n"
        "  - {cloud: aws, options: {regions: [eu-west-1]}, connection: aws_default}\n"
        "  - {cloud: onprem, options: {inventory: /etc/nodes.yaml}}\n"
    )
    monkeypatch.setenv("AIRFLOW__LLMSCHED__FLEET_FILE", str(path))


def test_clouds_are_named_as_the_fleet_file_names_them(fleet_file):
    aws = {"regions": ["eu-west-1"], "conn_id": "aws_default"}
    onprem = {"inventory": "/etc/nodes.yaml"}
    assert options_of("fleet") == {"aws": aws, "onprem": onprem}
    assert options_of(["onprem"]) == options_of("onprem") == {"onprem": onprem}
    assert options_of({"aws": {}}) == {"aws": {}}, "what a DAG says itself is not looked up"


def test_a_cloud_that_the_fleet_file_does_not_list_is_told_with_those_it_does(fleet_file):
    with pytest.raises(SpecError, match="it has aws, onprem"):
        options_of(["gcp"])


def test_without_a_fleet_file_names_of_clouds_mean_nothing(state_root):
    with pytest.raises(SpecError, match="it has none"):
        options_of(["aws"])
