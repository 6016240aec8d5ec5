"""``llmsched hardware``: which node shapes the planner knows, and all it knows of one."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from airflow_llmsched.errors import SpecError
from airflow_llmsched.planner.perf import hardware, hardware_page

EXIT_UNKNOWN_SHAPE = 1


def show(
    name: Annotated[str | None, typer.Argument(help="A node shape, by its cloud's name.", show_default=False)] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the reference page instead.")] = False,
) -> None:
    """List the node shapes that plans can be made for, or say all that is known of NAME."""
    if markdown:
        typer.echo(hardware_page.markdown(), nl=False)
        return
    if name is None:
        Console().print(_list())
        return
    try:
        shape = hardware.node_shape(name)
    except SpecError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(EXIT_UNKNOWN_SHAPE) from None
    table = Table(title=shape.name, show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for label, text in hardware_page.describe(shape):
        # Text, not str: square brackets in a source are not markup
        table.add_row(label, Text(text))
    Console().print(table)


def _list() -> Table:
    table = Table(title="Node shapes", title_justify="left")
    for heading in ("shape", "cloud", "accelerators"):
        table.add_column(heading, no_wrap=True)
    table.add_column("USD/h", justify="right")
    for shape in hardware.node_shapes().values():
        accelerators = f"{shape.num_accelerators} x {shape.accelerator.name}"
        table.add_row(shape.name, shape.cloud, accelerators, f"{shape.usd_per_hour:,.2f}")
    return table
