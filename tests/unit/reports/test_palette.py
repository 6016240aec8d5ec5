from __future__ import annotations

import re

from airflow_llmsched.domain.ledger import Bucket
from airflow_llmsched.reports.palette import ATTEMPT_COLOURS, BUCKET_COLOUR, BUCKET_MEANING


def test_every_bucket_has_a_colour_of_its_own_and_a_meaning():
    assert set(BUCKET_COLOUR) == set(BUCKET_MEANING) == set(Bucket)
    assert len(set(BUCKET_COLOUR.values())) == len(Bucket)


def luminance(colour: str) -> float:
    channels = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [each / 12.92 if each <= 0.03928 else ((each + 0.055) / 1.055) ** 2.4 for each in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_colours_stand_out_from_a_light_and_a_dark_page():
    for colour in (*BUCKET_COLOUR.values(), *ATTEMPT_COLOURS):
        assert re.fullmatch(r"#[0-9a-f]{6}", colour)
        on_white = 1.05 / (luminance(colour) + 0.05)
        on_dark = (luminance(colour) + 0.05) / (luminance("#1b212a") + 0.05)
        assert on_white > 2.1, colour
        assert on_dark > 2.1, colour
