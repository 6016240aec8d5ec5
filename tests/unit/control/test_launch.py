"""From a plan to a gang."""

from __future__ import annotations

from dataclasses import replace

from airflow_llmsched.control.context import RunContext
from airflow_llmsched.control.launch import (
    CHECKPOINT_ROOT_VARIABLE,
    INIT_VARIABLE,
    RESUME_VARIABLE,
    build_gang,
    channel_root_of,
)
from airflow_llmsched.control.places import CheckpointPlaces
from airflow_llmsched.domain.checkpoint import CheckpointRef, SavedBy
from airflow_llmsched.domain.gang import Closeness, GangRole, GangSpec
from airflow_llmsched.domain.identity import AttemptKey, NodeId, RunOrigin
from airflow_llmsched.domain.layout import PlacementWish, RankGroup
from airflow_llmsched.domain.plan import LaunchSetting, Plan
from airflow_llmsched.domain.roles import RoleKind, RoleSpec
from tests.support.sim_house import ROOT, RUN, SimHouse, plan_of

KEY = AttemptKey(run=RUN, generation=2, attempt=3)
PLAN = plan_of(("n0", 2), ("n1", 1))


def build(checkpoint: CheckpointRef | None = None, *, own_folder: bool = True, **changes: object) -> GangSpec:
    context = replace(SimHouse().context, **changes)  # type: ignore[arg-type]
    return gang_of(context, PLAN, checkpoint=checkpoint, own_folder=own_folder)


def gang_of(
    context: RunContext, plan: Plan, *, checkpoint: CheckpointRef | None = None, own_folder: bool = True
) -> GangSpec:
    place = CheckpointPlaces(context.checkpoint_root, context.places).of(plan)
    return build_gang(
        context, key=KEY, plan=plan, place=place, channel_root="ch", checkpoint=checkpoint, own_folder=own_folder
    )


def test_gang_carries_the_plan_and_the_workloads_limits() -> None:
    gang = build(lease_s=30.0, flush_interval_s=0.25)
    assert (gang.key, gang.placement, gang.layout) == (KEY, PLAN.placement, PLAN.layout)
    assert (gang.start_limit_s, gang.grace_s, gang.lease_s, gang.flush_interval_s) == (30.0, 10.0, 30.0, 0.25)


def test_gang_is_kept_off_nodes_that_failed_or_are_unfit_unless_they_are_its_own() -> None:
    context = replace(SimHouse().context, unfit={NodeId("n4"): "disk: worn out"})
    place = CheckpointPlaces(context.checkpoint_root, context.places).of(PLAN)
    told = {"key": KEY, "plan": PLAN, "place": place, "channel_root": "ch", "checkpoint": None, "own_folder": True}
    assert build_gang(context, **told).excluded == ("n4",)  # type: ignore[arg-type]
    failed = (NodeId("n3"), NodeId("n1"))
    assert build_gang(context, **told, excluded=failed).excluded == ("n3", "n4")  # type: ignore[arg-type]


def test_each_attempt_has_a_channel_of_its_own() -> None:
    assert channel_root_of(replace(SimHouse().context, run_dir="/state/run/"), KEY) == f"/state/run/channel/{KEY.name}"


def test_resume_path_is_set_only_when_there_is_one() -> None:
    assert RESUME_VARIABLE not in build().environment
    assert RESUME_VARIABLE not in build(environment={RESUME_VARIABLE: "stale"}).environment
    resumed = build(CheckpointRef(step=4, path="c/4", format="sim"))
    assert resumed.environment[RESUME_VARIABLE] == "c/4"


def test_weights_to_start_with_are_named_until_there_is_a_checkpoint_of_the_run() -> None:
    workload = SimHouse().context.workload
    continued = replace(workload, checkpoint=replace(workload.checkpoint, init_from="/base/step-9"))
    first = build(workload=continued).environment
    assert (first[INIT_VARIABLE], RESUME_VARIABLE in first) == ("/base/step-9", False)
    resumed = build(CheckpointRef(step=4, path="c/4", format="sim"), workload=continued).environment
    assert (INIT_VARIABLE in resumed, resumed[RESUME_VARIABLE]) == (False, "c/4")
    assert INIT_VARIABLE not in build(environment={INIT_VARIABLE: "stale"}).environment


def test_ranks_have_what_the_plan_counts_on_unless_their_own_settings_say_otherwise() -> None:
    setting = LaunchSetting(name="NCCL_COLLNET_ENABLE", value="1", why="switches add up")
    prediction = replace(PLAN.prediction, allocator_settings="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")
    plan = replace(PLAN, prediction=prediction, launch_settings=(setting,))
    gang = gang_of(SimHouse().context, plan)
    assert gang.environment["NCCL_COLLNET_ENABLE"] == "1"
    assert gang.environment["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    own = replace(SimHouse().context, environment={"NCCL_COLLNET_ENABLE": "0"})
    other = gang_of(own, plan)
    assert other.environment["NCCL_COLLNET_ENABLE"] == "0"


def test_settings_of_the_caller_reach_the_ranks_and_cannot_move_the_checkpoints() -> None:
    gang = build(environment={"LLMSCHED_DATASET": "d $(x) 'y'", CHECKPOINT_ROOT_VARIABLE: "elsewhere"})
    assert gang.environment["LLMSCHED_DATASET"] == "d $(x) 'y'"
    assert gang.environment[CHECKPOINT_ROOT_VARIABLE] == f"{ROOT}/g0002-a0003"


def test_each_attempt_saves_in_its_own_folder_unless_the_trainer_has_one_path_only() -> None:
    for root in ("/mnt/shared", "/mnt/shared/"):
        own = build(checkpoint_root=root, own_folder=True).environment[CHECKPOINT_ROOT_VARIABLE]
        assert own == "/mnt/shared/g0002-a0003"
        assert SavedBy.of_folder(own.rpartition("/")[2]) == SavedBy(generation=2, attempt=3)
        assert build(checkpoint_root=root, own_folder=False).environment[CHECKPOINT_ROOT_VARIABLE] == root


def test_command_is_passed_as_it_is() -> None:
    command = ("python", "-c", "print('$HOME; rm -rf /')")
    assert build(command=command).command == command


def test_gang_says_whose_it_is() -> None:
    origin = RunOrigin(deployment_id="d", run=RUN, dag_id="dag", run_id="run")
    assert build().origin is None
    assert build(origin=origin).origin == origin


def test_helpers_run_what_the_workload_says_and_trainers_the_launchers_command() -> None:
    loader = RoleSpec(kind=RoleKind.DATA_LOADER, num_ranks=2, command=("load", "$(x)"))
    workload = replace(SimHouse().context.workload, roles=(RoleSpec(kind=RoleKind.TRAINER), loader))
    assert build(workload=workload).roles == (GangRole(kind=RoleKind.DATA_LOADER, command=("load", "$(x)")),)
    assert build().roles == ()


def test_gang_knows_who_made_the_plans_accelerators() -> None:
    accelerated = replace(PLAN, accelerator_vendor="amd")
    gang = gang_of(SimHouse().context, accelerated)
    assert gang.accelerator_vendor == "amd"


def test_gang_says_what_of_its_placement_must_hold_on_other_nodes_too() -> None:
    plan = replace(plan_of(("n0", 2), ("n1", 2)), levels=("rack",))
    assert build_with(plan).close == ()
    together = PlacementWish(group=RankGroup.GANG, level="rack", required=True)
    assert build_with(plan, together).close == (Closeness(level="rack", num_nodes=2),)
    assert build_with(plan, replace(together, required=False)).close == ()
    uneven = replace(plan_of(("n0", 2), ("n1", 1)), levels=("rack",))
    assert build_with(uneven, together).close == ()


def build_with(plan: Plan, *wishes: PlacementWish) -> GangSpec:
    context = SimHouse().context
    return gang_of(replace(context, workload=replace(context.workload, placement=wishes)), plan)
