"""Opens cloud adapters by name, with the credentials of an Airflow connection where one is named."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from airflow_llmsched.clock import SystemClock
from airflow_llmsched.control.open_clouds import open_adapter
from airflow_llmsched.domain.fleet import FLEET
from airflow_llmsched.errors import SpecError
from airflow_llmsched.objects.open import open_store
from airflow_llmsched.ports import Cloud
from airflow_llmsched.provider.config import state_root
from airflow_llmsched.provider.engine import check_plain, deployment_fleet, open_engine
from airflow_llmsched.provider.engine_access import CONNECTION, connection_of

ENGINE, ENGINE_OPTIONS = "engine", "engine_options"
"""Options that name an engine whose own nodes a cloud lends, as in ``RunGangOperator``."""


Clouds = Mapping[str, Mapping[str, Any]] | Sequence[str] | str
"""Options of each cloud adapter by its name; or names of clouds in the deployment's fleet file, or ``fleet``: all."""


def options_of(clouds: Clouds) -> Mapping[str, Mapping[str, Any]]:
    """Return options of each cloud adapter by its name, from the fleet file where only names are given.

    Raises ``SpecError`` for a name that is not in it.
    """
    if isinstance(clouds, Mapping):
        return clouds
    fleet = deployment_fleet()
    known = {} if fleet is None else fleet.clouds
    names = list(known) if clouds == FLEET else [clouds] if isinstance(clouds, str) else list(clouds)
    for name in names:
        if name not in known:
            hint = f"is no cloud of the fleet file ([llmsched] fleet_file); it has {', '.join(known) or 'none'}"
            raise SpecError(path="clouds", value=name, hint=hint)
    return {name: known[name] for name in names}


def open_cloud(name: str, options: Mapping[str, Any]) -> Cloud:
    """Return the cloud ``name`` with ``options``, of which ``conn_id`` names the Airflow connection to sign in with.

    Without one, the cloud's SDK finds credentials its own way. ``engine`` and ``engine_options`` name an engine whose
    nodes the cloud is to lend.

    Raises:
        SpecError: an option is not plain JSON, or not one of the cloud's; the cloud is unknown, takes no connection, or
            the extra that reads its connections is not installed.
        CouldNotLookError: the connection is not defined, or could not be read: Airflow does not tell the two apart.
    """
    check_plain(options, path="cloud options")
    given = {key: value for key, value in options.items() if key not in (CONNECTION, ENGINE, ENGINE_OPTIONS)}
    if options.get(ENGINE):
        given[ENGINE] = open_engine(str(options[ENGINE]), options.get(ENGINE_OPTIONS) or {})
    credentials = _credentials(name, str(options[CONNECTION])) if options.get(CONNECTION) else None
    return open_adapter(name, given, store=open_store(state_root()), clock=SystemClock(), credentials=credentials)


def _credentials(cloud: str, conn_id: str) -> Any:
    if cloud not in _SIGN_IN:
        hint = f"cloud {cloud!r} takes no Airflow connection; leave {CONNECTION} out"
        raise SpecError(path=CONNECTION, value=conn_id, hint=hint)
    connection_of(conn_id)  # a hook might go on with whatever credentials lie about instead
    try:
        return _SIGN_IN[cloud](conn_id)
    except ImportError as error:
        hint = f"install the extra that brings its provider: airflow-provider-llmsched[{cloud}] ({error})"
        raise SpecError(path=CONNECTION, value=conn_id, hint=hint) from error


def _aws_session(conn_id: str) -> Any:
    from airflow.providers.amazon.aws.hooks.base_aws import AwsBaseHook  # noqa: PLC0415 - an extra, and slow

    return AwsBaseHook(aws_conn_id=conn_id, client_type="ec2").get_session()


def _gcp_credentials(conn_id: str) -> Any:
    from airflow.providers.google.common.hooks.base_google import GoogleBaseHook  # noqa: PLC0415 - an extra, and slow

    return GoogleBaseHook(gcp_conn_id=conn_id).get_credentials()


def _azure_credential(conn_id: str) -> Any:
    from airflow.providers.microsoft.azure.hooks.base_azure import AzureBaseHook  # noqa: PLC0415 - an extra, and slow

    credential = AzureBaseHook(conn_id=conn_id).get_credential()
    if not hasattr(credential, "get_token"):  # the hook's default is an old kind that azure-core cannot use
        hint = 'put "use_azure_identity_object": true into the connection\'s extra'
        raise SpecError(path=CONNECTION, value=conn_id, hint=hint)
    return credential


_SIGN_IN: Mapping[str, Callable[[str], Any]] = {
    "aws": _aws_session,
    "gcp": _gcp_credentials,
    "azure": _azure_credential,
}
