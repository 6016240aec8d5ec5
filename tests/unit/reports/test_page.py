from __future__ import annotations

import json
import re

import plotly.graph_objects as go

from airflow_llmsched.reports.page import render_page

VALUES = {
    "name": "a <b>bold</b> name", "model": None, "cards": [], "paragraphs": [], "plans": [], "rejections": {},
    "num_candidates": 0,
}  # fmt: skip


def page(figures: dict[str, go.Figure]) -> str:
    from airflow_llmsched.reports import words

    return render_page("plan.html.j2", figures, words=words, **VALUES)


def test_text_is_escaped() -> None:
    assert "a &lt;b&gt;bold&lt;/b&gt; name" in page({})
    assert "<b>bold</b>" not in page({})


def test_a_page_without_figures_carries_no_script() -> None:
    assert "<script" not in page({})


def test_a_figure_cannot_end_the_script_that_holds_it() -> None:
    text = page({"step": go.Figure(layout={"title": "</script><script>alert(1)</script>"})})
    held = re.search(r'<script type="application/json" id="figures">(.*?)</script>', text, re.DOTALL)
    assert held is not None
    assert json.loads(held[1])["step"]["layout"]["title"]["text"].startswith("</script>")


def test_nothing_is_fetched_from_anywhere() -> None:
    text = page({"step": go.Figure()})
    own = re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
    assert not re.search(r'(src|href)="?http', own)
    assert "default-src 'none'" in own
