"""``llmsched market``: what the snapshots of a deployment say that capacity costs, and will."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from airflow_llmsched.cli.state_root import state_root_option
from airflow_llmsched.codec import to_json
from airflow_llmsched.errors import DataError, SpecError, StoreError
from airflow_llmsched.objects.open import open_store
from airflow_llmsched.planner.market.price_outlook import PoolOutlook, Sighting, price_outlook
from airflow_llmsched.prices.snapshots import SnapshotPrices
from airflow_llmsched.specs.quantities import format_duration_s, parse_duration_s

EXIT_NOTHING = 1
MAX_SNAPSHOTS = 2000


def market(
    state_root: Annotated[str, state_root_option()],
    shape: Annotated[list[str] | None, typer.Option(help="Only nodes of this shape. Repeatable.")] = None,
    after: Annotated[str, typer.Option(help="How far ahead to look, such as 6h or 2d.")] = "24h",
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Show what capacity costs by the market snapshots, and within which band its price will be."""
    try:
        after_s = _after_s(after)
        found = _outlook(state_root, after_s=after_s, shapes=shape or ())
    except (SpecError, StoreError, DataError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(EXIT_NOTHING) from None
    if as_json:
        typer.echo(to_json(found))
    elif found:
        Console().print(_table(found, after_s=after_s))
    if not found:
        what = f"an offer of {', '.join(shape)}" if shape else "any offer"
        typer.echo(f"error: no snapshot below {state_root} has {what}: schedule dags/refresh_market.py", err=True)
        raise typer.Exit(EXIT_NOTHING)


def _after_s(text: str) -> float:
    try:
        after_s = parse_duration_s(text)
    except ValueError as error:
        raise SpecError(path="--after", value=text, hint=str(error)) from None
    if after_s <= 0:
        raise SpecError(path="--after", value=text, hint="must be above 0")
    return after_s


def _outlook(state_root: str, *, after_s: float, shapes: Sequence[str]) -> list[PoolOutlook]:
    snapshots = SnapshotPrices(open_store(state_root)).history(now_s=time.time(), limit=MAX_SNAPSHOTS)
    sightings = [
        Sighting(
            at_s=each.taken_at_s,
            offers=tuple(offer for offer in each.offers if not shapes or offer.pool.shape in shapes),
        )
        for each in snapshots
    ]
    return price_outlook(sightings, after_s=after_s)


def _table(found: Sequence[PoolOutlook], *, after_s: float) -> Table:
    seen = datetime.fromtimestamp(found[0].seen_at_s, UTC)
    table = Table(title=f"Offers of {seen:%Y-%m-%d %H:%M} UTC, USD for a node and hour", title_justify="left")
    for heading in ("cloud", "zone", "shape", "type"):
        table.add_column(heading, overflow="fold")
    for heading in ("nodes", "price", f"in {format_duration_s(after_s)}", "9 in 10 within", "seen"):
        table.add_column(heading, justify="right")
    for each in found:
        offer, forecast = each.offer, each.forecast
        ahead = ("", "") if forecast is None else (
            f"{forecast.usd_per_hour:,.2f}",
            f"{forecast.low_usd_per_hour:,.2f} to {forecast.high_usd_per_hour:,.2f}",
        )  # fmt: skip
        cells = [
            offer.pool.cloud,
            offer.pool.zone or offer.pool.region,
            offer.pool.shape,
            offer.pool.capacity_type.value,
            "" if offer.num_nodes is None else str(offer.num_nodes),
            f"{offer.usd_per_hour:,.2f}",
            *ahead,
            str(each.num_seen),
        ]
        table.add_row(*map(Text, cells))
    return table
