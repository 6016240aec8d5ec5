from __future__ import annotations

from airflow_llmsched import codec
from airflow_llmsched.domain.prices import PricedOffers, PricePart, PriceRow, PriceUnit
from tests.support.market import offer_of
from tests.support.prices import row_of


def test_a_row_is_for_a_whole_node_unless_it_says_otherwise() -> None:
    row = row_of(3.0)
    assert (row.part, row.unit, row.num_accelerators) == (PricePart.WHOLE, PriceUnit.NODE, None)


def test_rows_and_offers_survive_being_stored() -> None:
    row = row_of(3.0, part=PricePart.HOST, unit=PriceUnit.ACCELERATOR, num_accelerators=8, ends_at_s=1e9)
    assert codec.from_json(PriceRow, codec.to_json(row)) == row
    priced = PricedOffers(offers=(offer_of(2.0),), rejections={"without a price": 3})
    assert codec.from_json(PricedOffers, codec.to_json(priced)) == priced
