from __future__ import annotations

import json
import time
from typing import Any, cast

from airflow_llmsched import codec
from airflow_llmsched.control import events as ev
from airflow_llmsched.provider.handover import handed_over


def test_payload_is_json_and_gives_the_event_back():
    before_s = time.time()
    payload = json.loads(json.dumps(handed_over(ev.Woke(at_s=5.0))))
    assert codec.from_plain(cast("Any", ev.Handover), payload["handover"]) == ev.Woke(at_s=5.0)
    assert before_s <= payload["yielded_at_s"] <= time.time()
