"""Numbers as people read them. What is not known reads as a dash."""

from __future__ import annotations

from datetime import UTC, datetime

from airflow_llmsched.domain.run_report import RunReport
from airflow_llmsched.units import GIB, KIB, MIB, MINUTE_S, TIB

UNKNOWN = "—"

_DURATION_UNITS = ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))
_BYTE_UNITS = ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"))
_COUNT_UNITS = ((1e12, "T"), (1e9, "B"), (1e6, "M"))


def duration(value_s: float | None) -> str:
    """Seconds in the two largest units that matter."""
    if value_s is None:
        return UNKNOWN
    if value_s < 0:
        return "-" + duration(-value_s)
    if value_s < MINUTE_S - 0.05:
        return f"{value_s * 1000:.0f} ms" if value_s < 0.9995 else f"{value_s:.1f} s"
    whole_s = round(value_s)
    unit_s, name, part_s, part_name = next(unit for unit in _DURATION_UNITS if whole_s >= unit[0])
    return f"{whole_s // unit_s} {name} {whole_s % unit_s // part_s:02d} {part_name}"


def moment(at_s: float | None) -> str:
    """Unix seconds as a UTC date and time."""
    if at_s is None:
        return UNKNOWN
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def size(num_bytes: int | None) -> str:
    """Bytes in binary units."""
    if num_bytes is None:
        return UNKNOWN
    for unit_bytes, name in _BYTE_UNITS:
        if num_bytes >= unit_bytes:
            return f"{num_bytes / unit_bytes:.1f} {name}"
    return f"{num_bytes} B"


def count(number: float | None) -> str:
    """A count: exact below a million, then three digits and a decimal unit."""
    if number is None:
        return UNKNOWN
    for unit, name in _COUNT_UNITS:
        if number >= unit:
            return f"{number / unit:.3g} {name}"
    return f"{number:,.0f}"


def money(usd: float | None) -> str:
    """US dollars; small sums keep digits that show them."""
    if usd is None:
        return UNKNOWN
    return f"${usd:,.2f}" if usd >= 1 or usd == 0 else f"${usd:.4f}"


def earlier(report: RunReport) -> str:
    """What of the cost went to generations before the last clear; empty when there were none."""
    if not report.num_earlier_attempts:
        return ""
    launches = "1 launch" if report.num_earlier_attempts == 1 else f"{report.num_earlier_attempts} launches"
    return f"{money(report.earlier_usd)} of it for {launches} before the last clear"


def rented(report: RunReport) -> str:
    """What the cost of rented capacity is."""
    rentals = "1 rental" if report.num_rentals == 1 else f"{report.num_rentals} rentals"
    return f"{rentals} at their offers' prices, a gang on them or not"


def percent(ratio: float | None) -> str:
    """A ratio from 0 to 1 as a percentage."""
    return UNKNOWN if ratio is None else f"{ratio:.1%}"


def loss(value: float | None) -> str:
    """A loss to four decimals."""
    return UNKNOWN if value is None else f"{value:.4f}"


def steps(numbers: tuple[int, ...], limit: int = 6) -> str:
    """Step numbers as ranges, e.g. ``5-8, 12``; beyond ``limit`` ranges only how many more steps there are."""
    if not numbers:
        return "none"
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    shown = ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in runs[:limit])
    left = sum(high - low + 1 for low, high in runs[limit:])
    return f"{shown} and {left} more" if left else shown
