"""What a team may still take: quotas, and what teams of a cohort lend one another. Pure.

The rules are those of Kueue's cluster queues and cohorts (its documentation, concepts "Cluster Queue" and "Cohort",
read on 2026-11-30), for flat cohorts: of a team's nominal quota, what it may not lend is guaranteed to it; the rest is
the cohort's, and whoever uses more than what is guaranteed to him takes of that.

Axes: Q = quantity, T = team, C = cohort.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from airflow_llmsched.domain.queue import Reclaim, TeamQuota
from airflow_llmsched.domain.queue_decision import WaitReason
from airflow_llmsched.planner.layout_table import BoolArray, FloatArray, IntArray
from airflow_llmsched.planner.queue.usage import UNLIMITED, limits_Q

_SLACK = 1.0 + 1e-9


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class QuotaTable:
    """Quotas of all teams. A team without one is not limited. ``cohort_T`` is -1 for a team without a cohort.

    ``most``, ``guaranteed`` and ``cohorts`` are the arrays of these names as lists: one team is asked about often.
    """

    nominal_TQ: FloatArray
    most_TQ: FloatArray
    guaranteed_TQ: FloatArray
    cohort_T: IntArray
    pool_CQ: FloatArray
    members_C: tuple[IntArray, ...]
    weight_T: FloatArray
    reclaims_any_T: BoolArray
    reclaims_T: BoolArray
    most: list[list[float]]
    guaranteed: list[list[float]]
    cohorts: list[int]

    @classmethod
    def of(cls, quotas: Sequence[TeamQuota], teams: Sequence[str]) -> QuotaTable:
        """Lay quotas out for ``teams``, which must name every team that has one."""
        by_team = {each.team: each for each in quotas}
        names = sorted({each.cohort for each in quotas if each.cohort})
        nominal_TQ = np.full((len(teams), 3), UNLIMITED)
        most_TQ = nominal_TQ.copy()
        guaranteed_TQ = np.zeros_like(nominal_TQ)
        cohort_T = np.full(len(teams), -1, dtype=np.int64)
        pool_CQ = np.zeros((len(names), 3))
        for number, team in enumerate(teams):
            quota = by_team.get(team)
            if quota is None:
                continue
            nominal_TQ[number] = most_TQ[number] = limits_Q(quota.nominal)
            if quota.cohort:
                cohort_T[number] = names.index(quota.cohort)
                most_TQ[number] = np.minimum(nominal_TQ[number] + limits_Q(quota.borrowing), UNLIMITED)
                lent_Q = np.minimum(limits_Q(quota.lending), nominal_TQ[number])
                guaranteed_TQ[number] = nominal_TQ[number] - lent_Q
                pool_CQ[cohort_T[number]] += lent_Q
        found = [by_team.get(team) for team in teams]
        return cls(
            nominal_TQ=nominal_TQ,
            most_TQ=most_TQ,
            guaranteed_TQ=guaranteed_TQ,
            cohort_T=cohort_T,
            pool_CQ=pool_CQ,
            members_C=tuple(np.flatnonzero(cohort_T == number) for number in range(len(names))),
            weight_T=np.array([each.weight if each else 1.0 for each in found]),
            reclaims_any_T=np.array(
                [each is not None and each.reclaim is Reclaim.ANY for each in found], dtype=np.bool_
            ),
            reclaims_T=np.array([each is None or each.reclaim is not Reclaim.NEVER for each in found], dtype=np.bool_),
            most=most_TQ.tolist(),
            guaranteed=guaranteed_TQ.tolist(),
            cohorts=cohort_T.tolist(),
        )

    def hinders(self, usage_TQ: FloatArray, *, team: int, asked_Q: FloatArray) -> WaitReason | None:
        """Say which quota keeps a team from using so much more. What is not asked for hinders nobody."""
        cohort, reason = self.cohorts[team], None
        used_Q, most_Q, guaranteed_Q = usage_TQ[team].tolist(), self.most[team], self.guaranteed[team]
        for quantity, asked in enumerate(asked_Q.tolist()):
            if asked <= 0:
                continue
            used, guaranteed = used_Q[quantity], guaranteed_Q[quantity]
            if used + asked > most_Q[quantity] * _SLACK:
                return WaitReason.TEAM_QUOTA
            if cohort < 0 or used + asked <= guaranteed:
                continue
            members_T = self.members_C[cohort]
            over_T = np.maximum(usage_TQ[members_T, quantity] - self.guaranteed_TQ[members_T, quantity], 0.0)
            taken = float(over_T.sum()) - max(used - guaranteed, 0.0) + used + asked - guaranteed
            if taken > float(self.pool_CQ[cohort, quantity]) * _SLACK:
                reason = WaitReason.COHORT_QUOTA
        return reason

    def never_allows(self, *, team: int, asked_Q: FloatArray) -> bool:
        """Whether a team could not have so much even if nobody used anything."""
        return self.hinders(np.zeros_like(self.nominal_TQ), team=team, asked_Q=asked_Q) is not None

    def is_within(self, usage_TQ: FloatArray, *, team: int, asked_Q: FloatArray) -> bool:
        """Whether a team would stay within its nominal quota."""
        after_Q = usage_TQ[team] + asked_Q
        return not np.any((after_Q > self.nominal_TQ[team] * _SLACK) & (asked_Q > 0))

    def borrows_T(self, usage_TQ: FloatArray) -> BoolArray:
        """Say which teams use more than their nominal quota."""
        return np.asarray(np.any(usage_TQ > self.nominal_TQ * _SLACK, axis=1))

    def over_B(self, own_B: FloatArray, *, team: int) -> FloatArray:
        """Return the accelerators that a team uses beyond what is guaranteed to it, at each of many moments B."""
        return np.asarray(np.maximum(own_B - self.guaranteed_TQ[team, 0], 0.0))

    def over_CB(self, accelerators_TB: FloatArray) -> FloatArray:
        """Return what the teams of each cohort use beyond what is guaranteed to them, in all."""
        over_TB = np.maximum(accelerators_TB - self.guaranteed_TQ[:, :1], 0.0)
        return np.array([over_TB[members_T].sum(axis=0) for members_T in self.members_C]).reshape(-1, over_TB.shape[1])

    def headroom_B(self, own_B: FloatArray, over_B: FloatArray | None, *, team: int) -> FloatArray:
        """Return the accelerators that a team might take beyond what it uses, at each of many moments B.

        ``over_B`` is what its cohort's teams use beyond what is guaranteed to them; None without a cohort.
        """
        left_B = self.most_TQ[team, 0] - own_B
        if over_B is None:
            return np.asarray(left_B)
        unused_B = np.maximum(self.guaranteed_TQ[team, 0] - own_B, 0.0)
        return np.asarray(np.minimum(left_B, self.pool_CQ[self.cohort_T[team], 0] - over_B + unused_B))
