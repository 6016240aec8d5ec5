"""What a running gang puts on links of a network that others may use, too: small enough to be kept beside its claim."""

from __future__ import annotations

from dataclasses import dataclass

_LEAST = 1e-9
_MOST = 1e18
"""Numbers beyond these are no machine's: somebody else wrote them, or they are damaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkLoad:
    """What a gang sends alike over each link above one of some ``domains``, one way, in a step.

    A domain is its path in the topology, outermost level first; that of a node ends with the node's id.
    ``alone_bytes_per_s`` is how fast the gang sends there if it has the link to itself.
    """

    domains: tuple[tuple[str, ...], ...]
    bytes_per_step: float
    alone_bytes_per_s: float

    def __post_init__(self) -> None:
        """Refuse amounts that no gang can send. Raises ``ValueError``."""
        _refuse_beyond("bytes_per_step", self.bytes_per_step)
        _refuse_beyond("alone_bytes_per_s", self.alone_bytes_per_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkLoad:
    """A gang in its steps, on nodes of one ``shape``. ``step_s`` is of a gang that has its links to itself.

    Links that nobody else can use are left out: those above domains of which the gang holds every accelerator.
    """

    shape: str
    step_s: float
    links: tuple[LinkLoad, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a step that no gang can take. Raises ``ValueError``."""
        _refuse_beyond("step_s", self.step_s)


def is_plausible(value: float) -> bool:
    """Whether some machine can take, send or have so much of anything that loads say."""
    return _LEAST <= value <= _MOST  # also not what is no number


def _refuse_beyond(name: str, value: float) -> None:
    if not is_plausible(value):
        raise ValueError(f"{name} is {value}: must be from {_LEAST} to {_MOST}")
