"""What all pages share: their templates, and figures as JSON in which no character can end the script that holds it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup


def render_page(template: str, figures: Mapping[str, Any], **values: Any) -> str:
    """Return a page of ``templates``. Text is escaped; Plotly's script is in it when there are figures."""
    environment = Environment(
        loader=PackageLoader("airflow_llmsched.reports", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(
        figures_json=_script_json({name: json.loads(figure.to_json()) for name, figure in figures.items()}),
        figure_names=tuple(figures),
        plotly_js=_plotly_script() if figures else "",
        **values,
    )


def _plotly_script() -> Markup:
    from plotly.offline import get_plotlyjs  # noqa: PLC0415 - Plotly is slow to load, and only this draws

    return Markup(get_plotlyjs())  # noqa: S704 - Plotly's own script, as installed


def _script_json(value: Any) -> Markup:
    """JSON that is safe inside a script element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)  # noqa: S704 - every character that HTML reads was just taken out
