from __future__ import annotations

import pytest

from airflow_llmsched.domain.queue import PriorityClass
from airflow_llmsched.domain.queue_rules import DEFAULT_PRIORITY, QueueRules, QueueWish


def test_without_a_file_there_are_four_classes_and_no_quotas() -> None:
    rules = QueueRules()
    assert [each.name for each in rules.classes] == ["low", "normal", "high", "urgent"]
    assert [each.priority for each in rules.classes] == sorted(each.priority for each in rules.classes)
    assert rules.quotas == ()
    assert QueueWish().priority == DEFAULT_PRIORITY


def test_rules_have_a_class_for_runs_that_name_none() -> None:
    with pytest.raises(ValueError, match="'normal'"):
        QueueRules(classes=(PriorityClass(name="gold", priority=1),))
