"""The smallest DAG that shows a stack to work: a conf value in, an XCom between tasks, a log line and a wait."""

from __future__ import annotations

import logging

from airflow.sdk import dag, task


@dag(schedule=None, params={"number": 1, "wait": False})
def trivial():
    @task
    def double(params=None):
        logging.getLogger(__name__).info("doubling %s", params["number"])
        return {"number": 2 * params["number"]}

    @task(retries=0)
    def add_one(doubled, params=None):
        import time

        if params["wait"]:
            time.sleep(600)
        return doubled["number"] + 1

    add_one(double())


trivial()
