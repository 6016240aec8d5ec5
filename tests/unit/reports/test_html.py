from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from airflow_llmsched.domain.gang import GangPhase
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.run_report import RunNames, RunOutcome, RunReport
from airflow_llmsched.reports.build import build_report
from airflow_llmsched.reports.html import render
from tests.support.history import RUN, T0, attempt, preempted_run, report, steps

EVIL = "x</script><script>alert(1)</script>\"'><img src=x onerror=alert(2)> $(touch /tmp/p) {{ 7*7 }} & é" + "n" * 200
VOID = {"meta", "link", "br", "img", "hr", "input"}


class Page(HTMLParser):
    """Collects elements, visible text and script bodies; complains about tags that do not match."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += data
        elif self.open and self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.fixture(scope="module")
def finished() -> RunReport:
    return build_report(**preempted_run())


@pytest.fixture(scope="module")
def page(finished) -> Page:
    return Page(render(finished))


def test_the_page_tells_the_story(page):
    for words in (
        "tiny-gpt",
        "succeeded",
        "pretrain_local",
        "48.6%",
        "2 min 20 s",
        "lost: 41-42; only these were trained twice",
        "node-1 was preempted",
        "step 40",
        "$0.0269",
        "AWS c7i.4xlarge on-demand",
        "llmsched-seal.json is missing",
        "2.3100",
        "passed",
        "steps thrown away",
    ):
        assert words in page.text


def test_the_page_says_what_went_to_launches_before_the_last_clear(finished, page):
    assert "before the last clear" not in page.text
    cleared = Page(render(replace(finished, num_earlier_attempts=2, earlier_usd=7.5)))
    assert "$7.50 of it for 2 launches before the last clear" in cleared.text
    assert "Earlier generations, 2 attempts $7.50" in cleared.text


def test_the_page_asks_the_network_for_nothing(page):
    for tag, attributes in page.tags:
        assert not {"src", "href", "srcset", "action", "data", "poster"} & set(attributes), (tag, attributes)
    policy = next(each["content"] for tag, each in page.tags if each.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy
    own = [script for script in page.scripts if len(script) < 1_000_000]
    assert len(own) == 2
    assert not any("http" in script for script in own)


def test_plotly_comes_from_the_installed_package_and_is_whole(page):
    from plotly.offline import get_plotlyjs

    assert page.scripts[0] == get_plotlyjs()


def test_the_figures_travel_as_json_with_a_place_each(page):
    drawn = json.loads(page.scripts[1])
    places = {each["data-figure"] for _, each in page.tags if "data-figure" in each}
    assert set(drawn) == places == {"ledger", "timeline", "loss", "step_time"}


def test_every_figure_has_a_label_and_every_table_a_caption(page):
    assert all(each.get("aria-label") for _, each in page.tags if "data-figure" in each)
    names = [tag for tag, _ in page.tags]
    assert names.count("table") == names.count("caption") > 0
    assert all("scope" in each for tag, each in page.tags if tag == "th")
    assert ("html", {"lang": "en"}) in page.tags


def test_both_themes_are_served(finished):
    assert "prefers-color-scheme: dark" in render(finished)


def test_names_and_texts_from_users_do_no_harm():
    parts = preempted_run()
    fault = replace(parts["attempts"][0].fault, summary=EVIL, log_tail=EVIL, node=NodeId(EVIL))
    parts["names"] = RunNames(run_key=RUN, generation=1, workload=EVIL, dag_id=EVIL, run_id=EVIL)
    parts["reason"] = EVIL
    parts["attempts"][0] = replace(parts["attempts"][0], fault=fault)
    parts["spans"] = [replace(span, label=EVIL) for span in parts["spans"]]
    parts["prices"] = replace(parts["prices"], source=EVIL)
    page = Page(render(build_report(**parts)))
    assert len(page.scripts) == 3
    assert not any("onerror" in attributes for _, attributes in page.tags)
    assert "img" not in [tag for tag, _ in page.tags]
    assert "{{ 7*7 }}" in page.text
    assert page.text.count("<script>alert(1)</script>") >= 6
    assert "</script" not in page.scripts[1]


def test_a_run_that_launched_nothing_still_has_a_page():
    empty = build_report(
        names=RunNames(run_key=RUN, generation=1, workload="w"),
        outcome=RunOutcome.FAILED,
        reason="cannot place 4 ranks",
        run_start_s=T0,
        run_end_s=T0,
        created_at_s=T0,
    )
    page = Page(render(empty))
    assert page.scripts == []
    for words in (
        "failed",
        "cannot place 4 ranks",
        "No gang was launched",
        "No training step is recorded",
        "not evaluated",
    ):
        assert words in page.text


def test_a_half_known_run_still_has_a_page():
    half = build_report(
        names=RunNames(run_key=RUN, generation=1, workload="w"),
        outcome=RunOutcome.UNFINISHED,
        run_start_s=T0,
        run_end_s=T0 + 30,
        created_at_s=T0 + 31,
        attempts=[attempt(1, phase=GangPhase.RUNNING), attempt(2, launched=None)],
        reports={1: [report(steps=steps(1, 1, start=2))]},
    )
    page = Page(render(half))
    assert "unfinished" in page.text
    assert "unknown" in page.text
    assert "The end of attempt 1 is not recorded" in page.text


def test_the_placement_is_shown_before_and_after(page):
    titles = [each["title"] for _, each in page.tags if re.match(r"slot \d", each.get("title") or "")]
    assert titles == [
        *("slot 0: rank 0", "slot 1: rank 1", "slot 0: rank 2", "slot 1: rank 3"),
        *("slot 0: rank 0", "slot 1: rank 1", "slot 0: no rank", "slot 1: no rank"),
    ]


def test_what_would_flood_the_page_is_folded_or_counted(finished):
    slots = tuple(
        replace(finished.attempts[0].placement.slots[0], node=NodeId(f"n{index:03}"), rank=index)
        for index in range(150)
    )
    wide = replace(finished.attempts[0], placement=replace(finished.attempts[0].placement, slots=slots))
    many = replace(
        finished,
        attempts=tuple(replace(wide, attempt=number) for number in range(1, 8)),
        checkpoints=tuple(replace(finished.checkpoints[0], step=step) for step in range(300)),
    )
    page = Page(render(many))
    assert "the other 3 attempts" in page.text
    assert "and 22 more nodes" in page.text
    assert "The newest 200 of 300." in page.text


def test_importing_reports_and_their_commands_does_not_load_plotly():
    code = (
        "import sys, airflow_llmsched.reports.files, airflow_llmsched.cli.report_commands;"
        "sys.exit('plotly' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_rented_capacity_has_a_card_of_its_own_where_there_was_some(finished, page):
    assert "rented" not in page.text
    shown = Page(render(replace(finished, rented_usd=12.5, num_rentals=2))).text
    assert "Cost of launches" in shown
    assert "Cost of rented capacity $12.50 2 rentals at their offers' prices, a gang on them or not" in shown
