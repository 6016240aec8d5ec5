"""The calls to Cloud TPU that renting takes. Only I/O; each change is an effect point, and may be repeated."""

from __future__ import annotations

from typing import Any

from google.auth.credentials import Credentials

from airflow_llmsched.clouds.gcp.record import Place
from airflow_llmsched.clouds.gcp.transport import Transport
from airflow_llmsched.effect_points import EffectPoint
from airflow_llmsched.ports import Clock

_QUEUED_CREATE = EffectPoint("gcp.queued.create")
_QUEUED_DELETE = EffectPoint("gcp.queued.delete")
_SLICE_LABEL = EffectPoint("gcp.slice.label")
_SLICE_DELETE = EffectPoint("gcp.slice.delete")

PUBLIC_ROOT = "https://tpu.googleapis.com/v2"

Json = dict[str, Any]


class TpuClient:
    """One project at Cloud TPU. Every method raises as ``Transport.call``."""

    def __init__(self, *, project: str, endpoint_url: str, credentials: Credentials | None, clock: Clock) -> None:
        self._project = project
        root = f"{endpoint_url.rstrip('/')}/v2" if endpoint_url else PUBLIC_ROOT
        self._transport = Transport(root=root, credentials=credentials, clock=clock)

    def parent(self, zone: str) -> str:
        """Return the name of a zone as Cloud TPU has it."""
        return f"projects/{self._project}/locations/{zone}"

    def queued(self, zone: str) -> list[Json]:
        """Return all queued resources of a zone."""
        return self._list(zone, "queuedResources")

    def queued_one(self, place: Place) -> Json | None:
        """Return a lease's queued resource; None: there is none."""
        return self._transport.look_for(f"{self.parent(place.zone)}/queuedResources/{place.name}")

    def slices(self, zone: str) -> list[Json]:
        """Return all slices of a zone."""
        return self._list(zone, "nodes")

    def slice_one(self, place: Place, name: str) -> Json | None:
        """Return a slice by its name, listed or not; None: there is none."""
        return self._transport.look_for(f"{self.parent(place.zone)}/nodes/{name}")

    def accelerator_types(self, zone: str) -> list[Json]:
        """Return the kinds of slices that a zone has."""
        return self._list(zone, "acceleratorTypes")

    def operation(self, operation: Json) -> Json:
        """Return an operation as it stands now."""
        return self._transport.look(str(operation["name"]))

    @_QUEUED_CREATE
    def create_queued(self, place: Place, body: Json) -> Json:
        """Ask for slices when there are some."""
        params = {"queuedResourceId": place.name, "requestId": place.request_id("queued")}
        return self._transport.call("POST", f"{self.parent(place.zone)}/queuedResources", params=params, body=body)

    @_QUEUED_DELETE
    def delete_queued(self, name: str) -> Json:
        """Ask no longer, and give back what has come."""
        return self._transport.call("DELETE", name, params={"force": "true"})

    @_SLICE_LABEL
    def label_slice(self, name: str, body: Json) -> Json:
        """Replace a slice's labels."""
        return self._transport.call("PATCH", name, params={"updateMask": "labels"}, body=body)

    @_SLICE_DELETE
    def delete_slice(self, name: str) -> Json:
        """Delete a slice."""
        return self._transport.call("DELETE", name)

    def _list(self, zone: str, collection: str) -> list[Json]:
        pages = self._transport.pages(f"{self.parent(zone)}/{collection}", params={})
        return [row for page in pages for row in page.get(collection, [])]
