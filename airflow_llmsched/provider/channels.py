"""Where the channels of this deployment's runs are, and control's end of one. A folder, or a bucket if one is set."""

from __future__ import annotations

from pathlib import Path

from airflow_llmsched.ports import RunChannel
from airflow_llmsched.provider.config import channel_uri, state_root
from airflow_llmsched.provider.run_scope import RunScope
from airflow_llmsched.telemetry.channel import DirectoryChannel

FOLDER_FLUSH_LIMIT_S = 1.0
BUCKET_FLUSH_S = 10.0
"""How often a node reports into a bucket, where each report is a request that is paid for."""


def channel_dir(scope: RunScope) -> str:
    """Return below what the run's channels are: its own folder, or the same below ``[llmsched] channel_uri``."""
    uri = channel_uri()
    return f"{uri}/runs/{scope.run_key}" if uri else str(scope.directory)


def flush_interval_s(poll_interval_s: float) -> float:
    """Return how often nodes report."""
    return BUCKET_FLUSH_S if channel_uri() else min(FOLDER_FLUSH_LIMIT_S, poll_interval_s)


def open_channel(channel_root: str) -> RunChannel:
    """Open control's end of an attempt's channel, a folder or a bucket's URI.

    A bucket's credentials are those of the environment (``AWS_...``, ``GOOGLE_...``, ``AZURE_...``); agents get none.
    """
    if "://" not in channel_root:
        return DirectoryChannel(channel_root)
    from airflow_llmsched.objects.remote import RemoteStore  # noqa: PLC0415  # loads obstore: not for folders
    from airflow_llmsched.telemetry.http_channel import ObjectChannel  # noqa: PLC0415  # the same

    store = RemoteStore(channel_root)
    links = Path(state_root()) / "links" / channel_root.rstrip("/").rpartition("/")[2]
    return ObjectChannel(store, "", presigner=store, links=links)
