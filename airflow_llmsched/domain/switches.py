"""What a gang would have programmable switches do for it."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_llmsched.domain.identity import AttemptKey


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchRequest:
    """One gang's wish. Asking for the same again changes nothing.

    Attributes:
        gang: for whom.
        domains: by path, where its groups go through switches; the empty path is the whole fleet.
        num_trees: aggregation trees in each of them, one for every group of ranks that is added up there; 0 where
            switches are not to add up.
        traffic_class: the class in which the gang sends, to be served first; None: no class of its own.
    """

    gang: AttemptKey
    domains: tuple[tuple[str, ...], ...]
    num_trees: int = 0
    traffic_class: int | None = None

    def __post_init__(self) -> None:
        """Refuse a request that asks for nothing, or for less than nothing."""
        if self.num_trees < 0 or not self.domains or not (self.num_trees or self.traffic_class is not None):
            raise ValueError(f"{self.gang.name} asks for nothing: {self.num_trees} trees in {self.domains}")
