"""When gangs that were promised nothing may start: an estimate by counting, in the order in which they wait. Pure.

It counts accelerators, of the fleet and of teams, and not domains: where domains matter, it is too early. Each gang
gets the first gap that is long enough, as conservative backfill would give it.

Axes: B = moment at which something changes, until the next one, T = team, R = row: the moments themselves, what is
free, what each team uses, and what each cohort's teams use beyond what is guaranteed to them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from airflow_llmsched.planner.layout_table import FloatArray
from airflow_llmsched.planner.queue.quota import QuotaTable
from airflow_llmsched.planner.queue.timeline import Timeline


@dataclass(slots=True, kw_only=True, eq=False)
class Forecast:
    """Free accelerators of the fleet, and used ones of each team and cohort, over time. The last moment lasts for ever.

    Of each row the first ``num_moments`` count: the rest is room to grow. They are one array, as each gang that is
    counted moves all of them.
    """

    table: QuotaTable
    num_moments: int
    rows_RB: FloatArray

    @classmethod
    def of(cls, timeline: Timeline, table: QuotaTable, *, num_waiting: int, unknown_run_s: float) -> Forecast:
        """Return what is known without those who wait: who runs until when, and who is promised what.

        Whoever is promised room for ever is thought to run for ``unknown_run_s``.
        """
        running = list(timeline.running.values())
        promised = [
            (each, each.start_s, each.end_s if math.isfinite(each.end_s) else each.start_s + unknown_run_s)
            for each in timeline.promised.values()
        ]
        moments = {timeline.now_s, *(each.end_s for each in running)}
        moments |= {moment_s for _, start_s, end_s in promised for moment_s in (start_s, end_s)}
        number, num_teams = len(moments), len(timeline.now.usage_TQ)
        rows_RB = np.zeros((2 + num_teams + len(table.members_C), number + num_waiting))
        at_s_B, free_B, used_TB = rows_RB[0], rows_RB[1], rows_RB[2 : 2 + num_teams]
        at_s_B[:number] = sorted(moments)
        free_B[0] = float(timeline.now.free_N.sum())
        used_TB[:, 0] = timeline.now.usage_TQ[:, 0]
        # Changes first, then their sums: there may be thousands of gangs.
        for span in running:
            end = int(np.searchsorted(at_s_B[:number], span.end_s))
            free_B[end] += float(span.share[1].sum())
            used_TB[span.team, end] -= span.asked_Q[0]
        for span, start_s, end_s in promised:
            start, end = np.searchsorted(at_s_B[:number], [start_s, end_s])
            for index, sign in ((int(start), -1.0), (int(end), 1.0)):
                free_B[index] += sign * float(span.share[1].sum())
                used_TB[span.team, index] -= sign * span.asked_Q[0]
        np.cumsum(rows_RB[1 : 2 + num_teams], axis=1, out=rows_RB[1 : 2 + num_teams])
        rows_RB[2 + num_teams :] = table.over_CB(used_TB)
        return cls(table=table, num_moments=number, rows_RB=rows_RB)

    def start_s(self, *, team: int, num_slots: int, runs_for_s: float) -> float | None:
        """Return when the next gang in order starts, and count it from then on. None: it never does."""
        number = self.num_moments
        at_s_B, free_B = self.rows_RB[0, :number], self.rows_RB[1, :number]
        is_free_B = free_B >= num_slots
        is_free_B &= self._headroom_B(team, number) >= num_slots * (1 - 1e-9)
        padded_B = np.zeros(number + 2, dtype=np.int8)
        padded_B[1:-1] = is_free_B
        edges = np.flatnonzero(padded_B[1:] != padded_B[:-1])
        first, stop = edges[::2], edges[1::2]
        until_s = np.append(at_s_B, math.inf)[stop]
        fitting = first[at_s_B[first] + runs_for_s <= until_s]
        if not fitting.size:
            return None
        start_s = float(at_s_B[fitting[0]])
        self._count(team, num_slots, int(fitting[0]), start_s + runs_for_s)
        return start_s

    @property
    def next_change_s(self) -> float | None:
        """Return when something changes next, None if nothing does."""
        return float(self.rows_RB[0, 1]) if self.num_moments > 1 else None

    def _headroom_B(self, team: int, number: int) -> FloatArray:
        cohort = int(self.table.cohort_T[team])
        over_B = None if cohort < 0 else self.rows_RB[self._row_of_cohort(cohort), :number]
        return self.table.headroom_B(self.rows_RB[2 + team, :number], over_B, team=team)

    def _row_of_cohort(self, cohort: int) -> int:
        return len(self.rows_RB) - len(self.table.members_C) + cohort

    def _count(self, team: int, num_slots: int, first: int, end_s: float) -> None:
        number, rows_RB = self.num_moments, self.rows_RB
        stop = int(np.searchsorted(rows_RB[0, :number], end_s))
        if math.isfinite(end_s) and (stop == number or rows_RB[0, stop] != end_s):
            rows_RB[:, stop + 1 : number + 1] = rows_RB[:, stop:number].copy()
            rows_RB[:, stop] = rows_RB[:, stop - 1]
            rows_RB[0, stop] = end_s
            self.num_moments += 1
        rows_RB[1, first:stop] -= num_slots
        used_B, cohort = rows_RB[2 + team, first:stop], int(self.table.cohort_T[team])
        before_B = self.table.over_B(used_B, team=team)
        used_B += num_slots
        if cohort >= 0:
            rows_RB[self._row_of_cohort(cohort), first:stop] += self.table.over_B(used_B, team=team) - before_B
