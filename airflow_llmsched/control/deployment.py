"""The deployment's identity: made once below its state root, so that two deployments never touch each other's runs."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from pydantic import ValidationError

from airflow_llmsched import codec
from airflow_llmsched.effect_points import EffectPoint
from airflow_llmsched.errors import DataError, ObjectExistsError, ObjectMissingError
from airflow_llmsched.ports import ObjectStore

_CREATE = EffectPoint("deployment.create")

DEPLOYMENT_OBJECT = "deployment.json"
FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """One installation, told apart from all others by ``id`` (a UUID)."""

    id: str
    v: int = FORMAT_VERSION


def deployment_id(store: ObjectStore, *, propose: Callable[[], str] = lambda: str(uuid.uuid4())) -> str:
    """Return the id of the deployment whose state root ``store`` is, made on first use.

    Of several processes that make it at once exactly one wins and all return its id. Raises ``StoreError`` when the
    store could not be read or written (never a fresh id instead), ``DataError`` when the object is no such record.
    """
    try:
        return _read(store)
    except ObjectMissingError:
        pass
    with contextlib.suppress(ObjectExistsError), _CREATE:
        store.create(DEPLOYMENT_OBJECT, codec.to_json(Deployment(id=propose())))
    return _read(store)


def known_deployment_id(store: ObjectStore) -> str:
    """Return the id of the deployment whose state root ``store`` is, and make none.

    Raises ``StoreError``, and ``DataError`` when there is no deployment here, or its record is damaged.
    """
    try:
        return _read(store)
    except ObjectMissingError as error:
        raise DataError(f"{store.uri} is no state root: no run was ever opened there; give the right one") from error


def _read(store: ObjectStore) -> str:
    data = store.get(DEPLOYMENT_OBJECT)
    try:
        deployment = codec.from_json(Deployment, data)
    except ValidationError as error:
        hint = "restore it from a backup; a new one would orphan every run recorded below this state root"
        raise DataError(f"{store.uri}/{DEPLOYMENT_OBJECT} is damaged: {hint}") from error
    if deployment.v != FORMAT_VERSION:
        raise DataError(
            f"{store.uri}/{DEPLOYMENT_OBJECT} has format version {deployment.v}, this package reads {FORMAT_VERSION}: "
            "use the package version that wrote it, or a newer one"
        )
    return deployment.id
