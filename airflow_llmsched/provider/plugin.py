"""The Airflow plugin: report pages in the web UI. Every component imports this: the app behind it loads late."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from airflow.plugins_manager import AirflowPlugin

URL_PREFIX = "/llmsched"


class LazyApp:
    """An ASGI app that imports the real one when the first request arrives."""

    def __init__(self) -> None:
        self._app: Callable[..., Awaitable[None]] | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on."""
        if self._app is None:
            from airflow_llmsched.provider.web import build_app

            self._app = build_app()
        await self._app(scope, receive, send)


class LlmschedPlugin(AirflowPlugin):
    """Registers the report pages."""

    name = "llmsched"
    fastapi_apps = [{"app": LazyApp(), "url_prefix": URL_PREFIX, "name": "llmsched"}]
    external_views = [
        {
            "name": "Pretraining",
            "href": URL_PREFIX + "/runs",
            "destination": "nav",
            "url_route": "llmsched-runs",
        },
        {
            "name": "Pretraining report",
            "href": URL_PREFIX + "/dags/{DAG_ID}/runs/{RUN_ID}/report",
            "destination": "dag_run",
            "url_route": "llmsched-report",
        },
    ]
