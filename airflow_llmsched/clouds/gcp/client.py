"""The calls to Compute Engine that renting takes, by name. Only I/O: what to make of an answer is decided elsewhere.

Each change is an effect point. Each may be repeated: it goes by a name that can be taken once, or by a request id.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from google.auth.credentials import Credentials

from airflow_llmsched.clouds.gcp import render, states
from airflow_llmsched.clouds.gcp.record import Place
from airflow_llmsched.clouds.gcp.transport import Transport
from airflow_llmsched.effect_points import EffectPoint
from airflow_llmsched.ports import Clock

_POLICY_CREATE = EffectPoint("gcp.policy.create")
_POLICY_DELETE = EffectPoint("gcp.policy.delete")
_MACHINES_CREATE = EffectPoint("gcp.machines.create")
_MACHINE_DELETE = EffectPoint("gcp.machine.delete")
_MACHINE_LABEL = EffectPoint("gcp.machine.label")
_DISK_DELETE = EffectPoint("gcp.disk.delete")
_TEMPLATE_CREATE = EffectPoint("gcp.template.create")
_TEMPLATE_DELETE = EffectPoint("gcp.template.delete")
_GROUP_CREATE = EffectPoint("gcp.group.create")
_GROUP_LABEL = EffectPoint("gcp.group.label")
_GROUP_DELETE = EffectPoint("gcp.group.delete")
_REQUEST_CREATE = EffectPoint("gcp.request.create")
_REQUEST_CANCEL = EffectPoint("gcp.request.cancel")

PUBLIC_ROOT = "https://compute.googleapis.com/compute/v1"
MAX_FILTERED = 20
"""More values than this are not put into a filter: then everything is listed, and the rest left aside."""

Json = dict[str, Any]


class ComputeClient:
    """One project at Compute Engine. Every method raises as ``Transport.call``."""

    def __init__(self, *, project: str, endpoint_url: str, credentials: Credentials | None, clock: Clock) -> None:
        root = f"{endpoint_url.rstrip('/')}/compute/v1" if endpoint_url else PUBLIC_ROOT
        self._transport = Transport(root=f"{root}/projects/{project}", credentials=credentials, clock=clock)

    # Looking

    # Lists of everywhere are refused where a zone or region cannot be reached, unless the caller gives an ``unreached``
    # to collect those in.

    def machines(
        self, *, label: str, values: Sequence[str] = (), zone: str = "", unreached: set[str] | None = None
    ) -> list[Json]:
        """Return the machines that carry a label, one of ``values`` if any are named, in a zone or anywhere."""
        return self._rows("instances", zone=zone, filter_=_labelled(label, values), unreached=unreached)

    def machine(self, place: Place, name: str) -> Json | None:
        """Return a machine by its name, listed or not; None: there is none."""
        return self._transport.look_for(f"zones/{place.zone}/instances/{name}")

    def disks(
        self, *, label: str, values: Sequence[str] = (), zone: str = "", unreached: set[str] | None = None
    ) -> list[Json]:
        """Return the disks that carry a label, as ``machines``."""
        return self._rows("disks", zone=zone, filter_=_labelled(label, values), unreached=unreached)

    def policies(self, *, names: str, region: str = "", unreached: set[str] | None = None) -> list[Json]:
        """Return the placement policies whose whole name matches a regular expression, in a region or anywhere."""
        return self._rows("resourcePolicies", region=region, filter_=f'name eq "{names}"', unreached=unreached)

    def groups(self, *, names: str, zone: str = "", unreached: set[str] | None = None) -> list[Json]:
        """Return the managed instance groups whose whole name matches a regular expression, in a zone or anywhere."""
        return self._rows("instanceGroupManagers", zone=zone, filter_=f'name eq "{names}"', unreached=unreached)

    def templates(self, *, names: str, region: str = "", unreached: set[str] | None = None) -> list[Json]:
        """Return the instance templates whose whole name matches a regular expression, in a region or anywhere."""
        return self._rows("instanceTemplates", region=region, filter_=f'name eq "{names}"', unreached=unreached)

    def requests(self, zone: str, group: str) -> list[Json]:
        """Return the resize requests of a group."""
        return self._list(f"zones/{zone}/instanceGroupManagers/{group}/resizeRequests")

    def machine_types(self, names: Sequence[str], *, unreached: set[str] | None = None) -> list[Json]:
        """Return the machine types of these names, one for each zone that has it."""
        return self._rows("machineTypes", filter_=render.any_of("name", names), unreached=unreached)

    def reservations(self, *, zone: str = "", unreached: set[str] | None = None) -> list[Json]:
        """Return what is reserved for this project."""
        return self._rows("reservations", zone=zone, unreached=unreached)

    def future_reservations(self, *, unreached: set[str] | None = None) -> list[Json]:
        """Return what will be reserved for this project."""
        return self._rows("futureReservations", unreached=unreached)

    def regions(self) -> list[Json]:
        """Return all regions, with what of their quotas is used."""
        return self._list("regions")

    def operation(self, operation: Json) -> Json:
        """Return an operation as it stands now."""
        return self._transport.look(_operation_path(operation))

    def operations_of(self, zone: str, request_id: str) -> list[Json]:
        """Return the operations that a request of this id has begun."""
        return self._list(f"zones/{zone}/operations", filter_=f'clientOperationId = "{request_id}"')

    def operations_in(self, zone: str, group_id: str) -> list[Json]:
        """Return the operations of which one is made up."""
        return self._list(f"zones/{zone}/operations", filter_=f'operationGroupId = "{group_id}"')

    def preemptions(self, zone: str) -> list[Json]:
        """Return the operations by which Google took machines, as far back as it tells."""
        return self._list(f"zones/{zone}/operations", filter_=f'operationType = "{states.PREEMPTED_OPERATION}"')

    # Changing

    @_POLICY_CREATE
    def create_policy(self, place: Place, body: Json) -> Json:
        """Create a placement policy."""
        return self._transport.call("POST", f"regions/{place.region}/resourcePolicies", body=body)

    @_POLICY_DELETE
    def delete_policy(self, place: Place, name: str) -> Json:
        """Delete a placement policy."""
        return self._transport.call("DELETE", f"regions/{place.region}/resourcePolicies/{name}")

    @_MACHINES_CREATE
    def create_machines(self, place: Place, body: Json) -> Json:
        """Ask for all machines of a lease: asked again, Google returns what it did the first time."""
        params = {"requestId": place.request_id("machines")}
        return self._transport.call("POST", f"zones/{place.zone}/instances/bulkInsert", params=params, body=body)

    @_MACHINE_DELETE
    def delete_machine(self, place: Place, name: str) -> Json:
        """Delete a machine, and its disk with it."""
        return self._transport.call("DELETE", f"zones/{place.zone}/instances/{name}")

    @_MACHINE_LABEL
    def label_machine(self, place: Place, name: str, body: Json) -> Json:
        """Replace a machine's labels."""
        return self._transport.call("POST", f"zones/{place.zone}/instances/{name}/setLabels", body=body)

    @_DISK_DELETE
    def delete_disk(self, place: Place, name: str) -> Json:
        """Delete a disk."""
        return self._transport.call("DELETE", f"zones/{place.zone}/disks/{name}")

    @_TEMPLATE_CREATE
    def create_template(self, place: Place, body: Json) -> Json:
        """Create an instance template."""
        return self._transport.call("POST", f"regions/{place.region}/instanceTemplates", body=body)

    @_TEMPLATE_DELETE
    def delete_template(self, place: Place, name: str) -> Json:
        """Delete an instance template."""
        return self._transport.call("DELETE", f"regions/{place.region}/instanceTemplates/{name}")

    @_GROUP_CREATE
    def create_group(self, place: Place, body: Json) -> Json:
        """Create a managed instance group."""
        return self._transport.call("POST", f"zones/{place.zone}/instanceGroupManagers", body=body)

    @_GROUP_LABEL
    def label_group(self, place: Place, body: Json) -> Json:
        """Change what a group's machines have in common."""
        return self._transport.call("PATCH", f"zones/{place.zone}/instanceGroupManagers/{place.name}", body=body)

    @_GROUP_DELETE
    def delete_group(self, place: Place, name: str) -> Json:
        """Delete a group and all of its machines."""
        return self._transport.call("DELETE", f"zones/{place.zone}/instanceGroupManagers/{name}")

    @_REQUEST_CREATE
    def create_request(self, place: Place, body: Json) -> Json:
        """Ask for machines of a group when there are some."""
        path = f"zones/{place.zone}/instanceGroupManagers/{place.name}/resizeRequests"
        return self._transport.call("POST", path, params={"requestId": place.request_id("request")}, body=body)

    @_REQUEST_CANCEL
    def cancel_request(self, place: Place, name: str) -> Json:
        """Ask no longer."""
        path = f"zones/{place.zone}/instanceGroupManagers/{place.name}/resizeRequests/{name}/cancel"
        return self._transport.call("POST", path)

    # Below

    def _rows(
        self,
        collection: str,
        *,
        zone: str = "",
        region: str = "",
        filter_: str = "",
        unreached: set[str] | None = None,
    ) -> list[Json]:
        """Return a collection's rows of one zone or region, or of everywhere by one call.

        That one call is not whole where any zone of Google's cannot be reached: who knows where to look is not kept by
        it, and who has an ``unreached`` is told what was left out.
        """
        if zone:
            return self._list(f"zones/{zone}/{collection}", filter_=filter_)
        if region:
            return self._list(f"regions/{region}/{collection}", filter_=filter_)
        return list(self._scoped(collection, filter_, unreached))

    def _scoped(self, collection: str, filter_: str, unreached: set[str] | None) -> Iterator[Json]:
        params = {"filter": filter_} if filter_ else {}
        for page in self._transport.pages(f"aggregated/{collection}", params=params, unreached=unreached):
            for scope in page.get("items", {}).values():
                yield from scope.get(collection, [])

    def _list(self, path: str, *, filter_: str = "") -> list[Json]:
        params = {"filter": filter_} if filter_ else {}
        return [row for page in self._transport.pages(path, params=params) for row in page.get("items", [])]


def _labelled(label: str, values: Sequence[str]) -> str:
    if 0 < len(values) <= MAX_FILTERED:
        return render.any_of(f"labels.{label}", values)
    return f"labels.{label}:*"


def _operation_path(operation: Json) -> str:
    for scope in ("zone", "region"):
        if scope in operation:
            place = operation[scope].rpartition("/")[2]
            return f"{scope}s/{place}/operations/{operation['name']}"
    return f"global/operations/{operation['name']}"
