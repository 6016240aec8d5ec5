"""What to do about a fault. Pure: the same fault and history always give the same decision.

Budgets are kept by who must act: faults of the code, faults of the platform, and preemptions, which spend nothing.
Beside them one rule for all: launches in a row that leave no new durable checkpoint end the run, whatever ended them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from airflow_llmsched.domain.decision import Abort, Decision, Migrate, Restart
from airflow_llmsched.domain.health import FailureClass, Fault, FaultKind
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.workload import RetrySpec


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureHistory:
    """What the policy looks back on, the fault at hand included.

    ``num_launches_without_progress`` counts launches since the last one that left a new durable checkpoint.
    ``faults_since_progress`` are the faults of those launches, oldest first; ``bad_nodes`` the nodes that
    infrastructure faults (other than their loss) were pinned on, once for each fault.
    """

    num_code_faults: int = 0
    num_infrastructure_faults: int = 0
    num_preemptions: int = 0
    num_launches_without_progress: int = 0
    faults_since_progress: tuple[Fault, ...] = ()
    bad_nodes: tuple[NodeId, ...] = ()

    def launched(self) -> FailureHistory:
        """Return the history after one more launch."""
        return replace(self, num_launches_without_progress=self.num_launches_without_progress + 1)

    def progressed(self) -> FailureHistory:
        """Return the history after a new durable checkpoint."""
        return replace(self, num_launches_without_progress=0, faults_since_progress=())

    def struck(self, fault: Fault) -> FailureHistory:
        """Return the history with ``fault`` charged to its class."""
        charged = fault.failure_class
        blames_node = charged is FailureClass.INFRASTRUCTURE and fault.kind is not FaultKind.NODE_LOST and fault.node
        return replace(
            self,
            num_code_faults=self.num_code_faults + (charged is FailureClass.CODE),
            num_infrastructure_faults=self.num_infrastructure_faults + (charged is FailureClass.INFRASTRUCTURE),
            num_preemptions=self.num_preemptions + (charged is FailureClass.PREEMPTION),
            faults_since_progress=(*self.faults_since_progress, fault),
            bad_nodes=(*self.bad_nodes, fault.node) if blames_node and fault.node else self.bad_nodes,
        )


def decide(fault: Fault, history: FailureHistory, retries: RetrySpec) -> Decision:
    """Return what to do about ``fault``, which ``history`` already includes."""
    if _repeats(fault, history):
        return Abort(reason=_with_log(f"the same fault twice with no new checkpoint between: {fault.summary}", fault))
    if exhausted := _exhausted(fault, history, retries):
        return Abort(reason=_with_log(f"{exhausted}: {fault.summary}", fault))
    if history.num_launches_without_progress >= retries.max_attempts_without_progress:
        count = history.num_launches_without_progress
        return Abort(
            reason=_with_log(
                f"{count} launches in a row left no new checkpoint (retries.max_attempts_without_progress="
                f"{retries.max_attempts_without_progress}); last: {fault.summary}",
                fault,
            )
        )
    return _recovery(fault, history)


def _repeats(fault: Fault, history: FailureHistory) -> bool:
    """Whether the code ended twice in the same way at the same place: it would a third time."""
    if fault.failure_class is not FailureClass.CODE or fault.rank is None or fault.exit_code is None:
        return False
    same = [each for each in history.faults_since_progress if _signature(each) == _signature(fault)]
    return len(same) > 1


def _signature(fault: Fault) -> tuple[FaultKind, int | None, int | None]:
    return fault.kind, fault.rank, fault.exit_code


def _exhausted(fault: Fault, history: FailureHistory, retries: RetrySpec) -> str | None:
    if fault.failure_class is FailureClass.CODE and history.num_code_faults > retries.max_code_failures:
        return f"code failure {history.num_code_faults} (retries.max_code_failures={retries.max_code_failures})"
    spent, allowed = history.num_infrastructure_faults, retries.max_infrastructure_failures
    if fault.failure_class is FailureClass.INFRASTRUCTURE and spent > allowed:
        return f"infrastructure failure {spent} (retries.max_infrastructure_failures={allowed})"
    return None


def _recovery(fault: Fault, history: FailureHistory) -> Decision:
    if fault.failure_class is FailureClass.CODE:
        return Restart(reason=fault.summary)
    if fault.failure_class is FailureClass.PREEMPTION or fault.kind in (FaultKind.NODE_LOST, FaultKind.GANG_LOST):
        return Migrate(reason=fault.summary)
    if fault.node is not None and history.bad_nodes.count(fault.node) > 1:
        return Migrate(reason=f"{fault.summary}; again on node {fault.node}", excluded=(fault.node,))
    return Restart(reason=fault.summary)


def _with_log(reason: str, fault: Fault) -> str:
    if not fault.log_tail or fault.log_tail in reason:
        return reason
    return f"{reason}\n{fault.log_tail}"
