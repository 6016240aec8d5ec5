from __future__ import annotations

import subprocess
import sys

from airflow_llmsched.provider.plugin import URL_PREFIX, LlmschedPlugin


def test_plugin_serves_its_pages_under_one_prefix():
    (app,) = LlmschedPlugin.fastapi_apps
    assert app["url_prefix"] == URL_PREFIX
    assert all(view["href"].startswith(URL_PREFIX + "/") for view in LlmschedPlugin.external_views)


def test_importing_the_plugin_loads_neither_the_pages_nor_plotly():
    code = (
        "import sys, airflow_llmsched.provider.plugin; "
        "print([name for name in ('airflow_llmsched.provider.web', 'plotly', 'torch') if name in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip().splitlines()[-1] == "[]"
