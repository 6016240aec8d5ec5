from __future__ import annotations

import math

import pytest

from airflow_llmsched.domain.network_load import LinkLoad, NetworkLoad, is_plausible

DOMAINS = (("b0", "r0"),)


@pytest.mark.parametrize("amount", [0.0, -1.0, 1e19, 1e-12, math.inf, math.nan])
def test_amounts_that_no_gang_can_send_are_refused(amount: float) -> None:
    with pytest.raises(ValueError, match="bytes_per_step"):
        LinkLoad(domains=DOMAINS, bytes_per_step=amount, alone_bytes_per_s=1e9)
    with pytest.raises(ValueError, match="alone_bytes_per_s"):
        LinkLoad(domains=DOMAINS, bytes_per_step=1e9, alone_bytes_per_s=amount)
    with pytest.raises(ValueError, match="step_s"):
        NetworkLoad(shape="p5.48xlarge", step_s=amount)


def test_a_gang_that_stays_to_itself_has_no_links() -> None:
    assert NetworkLoad(shape="p5.48xlarge", step_s=1.5).links == ()


def test_whoever_may_have_such_an_amount_can_ask_first() -> None:
    assert is_plausible(1e9)
    assert not any(map(is_plausible, (0.0, -1.0, 1e19, math.inf, math.nan)))
