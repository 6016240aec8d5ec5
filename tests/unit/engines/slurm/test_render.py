"""Batch scripts: as written down in tests/golden/slurm, and run by a real bash with a recorder in Python's place."""

from __future__ import annotations

import json
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from airflow_llmsched.domain.gang import Closeness, GangSpec, LaunchRequest
from airflow_llmsched.domain.identity import AttemptKey, NodeId, RunKey, RunOrigin
from airflow_llmsched.domain.launcher import Launcher
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.placement import HelperSlot, Placement, RankSlot
from airflow_llmsched.domain.roles import RoleKind, RoleSpec
from airflow_llmsched.engines.slurm.comment import whose
from airflow_llmsched.engines.slurm.options import SlurmOptions
from airflow_llmsched.engines.slurm.render import BATCH, excluded_of, handed_over, parts_of, render, without_unknown
from airflow_llmsched.errors import SpecError

GOLDEN = Path(__file__).resolve().parents[3] / "golden" / "slurm"
RUN = RunKey("ls-abcdefghij0123456789")
ORIGIN = RunOrigin(deployment_id="3c9d", run=RUN, dag_id="pretrain", run_id="manual")
BASE: dict[str, Any] = {"root": "/shared/llmsched", "python": "/opt/venv/bin/python", "slots_per_node": 2}


def gang(nodes: str = "n1 n2", *, slots: int | list[int] = 2, **changes: Any) -> GangSpec:
    names = nodes.split()
    counts = [slots] * len(names) if isinstance(slots, int) else slots
    places = [(NodeId(name), index) for name, count in zip(names, counts, strict=True) for index in range(count)]
    ranks = tuple(
        RankSlot(rank=rank, node=node, slot=index, local_rank=index) for rank, (node, index) in enumerate(places)
    )
    base: dict[str, Any] = {
        "key": AttemptKey(run=RUN, generation=2, attempt=3),
        "placement": Placement(slots=ranks),
        "layout": ParallelLayout(dp=len(ranks)),
        "command": ("python", "-m", "train"),
        "channel_root": "/shared/runs/x/channel",
        "launcher": Launcher.TORCHRUN,
        "origin": ORIGIN,
    }
    return GangSpec(**{**base, **changes})


def rendered(spec: GangSpec | None = None, **options: Any) -> LaunchRequest:
    return render(spec or gang(), options=SlurmOptions.from_json({**BASE, **options}))


def directives(request: LaunchRequest) -> list[str]:
    return [line for line in request.body["slurm"]["script"].splitlines() if line.startswith("#SBATCH")]


CASES: dict[str, LaunchRequest] = {
    "plain": rendered(),
    "all_options": rendered(
        gang("n1 n2 n3 n5", slots=8),
        slots_per_node=8,
        gres="gpu:h100",
        partition="low",
        account="llm",
        qos="normal",
        reservation="spring",
        constraint="h100&ib",
        time_limit_s=86_400 + 1,
        notice_s=600,
        exclusive=True,
        memory_bytes_per_node=900 * 1024**3,
        cpus_per_node=96,
        exclude=["n9", "n10", "n7"],
        segment=2,
        requeue=True,
    ),
    "slurm_chooses": rendered(gang("n1 n2"), chooses_nodes=True, switches=1, switches_wait_s=300, exclude=["n4"]),
    "mixed_kinds": rendered(
        gang("n1 n2 m1", slots=[2, 2, 1]), gres="gpu:h100", node_gres={"m1": "gpu:a100"}, partition="all"
    ),
    "pyxis": rendered(
        container={
            "kind": "pyxis",
            "image": "nvcr.io#nvidia/pytorch:25.01-py3",
            "mounts": ["/shared", "/data:/data:ro"],
            "workdir": "/workspace",
        }
    ),
    "apptainer": rendered(
        container={"kind": "apptainer", "image": "/images/pytorch.sif", "mounts": ["/shared", "/data:/data:ro"]}
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_scripts_are_as_written_down(name: str) -> None:
    slurm = CASES[name].body["slurm"]
    step = json.dumps(handed_over(slurm["script"])["step"], indent=1)
    assert f"{slurm['script']}\n# hands over this step:\n{step}\n" == (GOLDEN / f"{name}.txt").read_text()


def test_requests_are_printable_and_pure() -> None:
    body = dict(CASES["all_options"].body)
    assert json.loads(json.dumps(body)) == body
    assert rendered() == rendered()


def test_the_script_hands_over_what_the_agents_need() -> None:
    request = rendered()
    said = handed_over(request.body["slurm"]["script"])
    assert said["body"] == {name: each for name, each in request.body.items() if name not in ("slurm", "environment")}
    assert said["gang_dir"] == f"/shared/llmsched/gangs/{RUN}-g2-a3"
    assert [each["address"] for each in said["body"]["nodes"]] == ["n1", "n2"]


def test_a_job_says_whose_it_is_before_it_runs() -> None:
    comment = rendered().body["slurm"]["parts"][0]["comment"]
    found = whose(comment)
    assert found is not None
    assert (found.origin, found.channel_root) == (ORIGIN, "/shared/runs/x/channel")


def test_nodes_with_unlike_accelerators_are_parts_of_one_job() -> None:
    parts = parts_of(gang("n1 m1 n2", slots=2), SlurmOptions.from_json({**BASE, "node_gres": {"m1": "gpu:a100"}}))
    assert [(part.nodes, part.gres) for part in parts] == [(("n1", "n2"), "gpu"), (("m1",), "gpu:a100")]


def test_nodes_that_the_gang_must_keep_off_are_excluded_where_slurm_chooses() -> None:
    def excluded(**options: Any) -> list[str]:
        lines = directives(rendered(gang("n1 n2", excluded=(NodeId("n9"), NodeId("n4"))), **options))
        return [line for line in lines if "exclude" in line]

    assert excluded(chooses_nodes=True) == ["#SBATCH --exclude=n[4,9]"]
    assert excluded(chooses_nodes=True, exclude=["n5", "n4"]) == ["#SBATCH --exclude=n[4-5,9]"]
    assert excluded(exclude=["n5"]) == ["#SBATCH --exclude=n5"], "the plan's own nodes are named"


@pytest.mark.parametrize(
    ("known", "line"), [("n1 n2 n4 n9", "--exclude=n[4,9]"), ("n1 n9", "--exclude=n9"), ("n1", None)]
)
def test_a_job_keeps_off_no_node_that_slurm_does_not_have(known: str, line: str | None) -> None:
    wanted = gang("n1 n2 m1", excluded=(NodeId("n9"), NodeId("n4")))
    told = rendered(wanted, chooses_nodes=True, node_gres={"m1": "gpu:a100"}).body["slurm"]
    assert excluded_of(told) == {"n4", "n9"}
    left = without_unknown(told, set(known.split()))
    directive = [each for each in left["script"].splitlines() if "exclude" in each]
    assert directive == ([] if line is None else 2 * [f"#SBATCH {line}"]), "each part has its own"
    assert excluded_of(left) == {"n4", "n9"} & set(known.split())
    assert handed_over(left["script"]) == handed_over(told["script"])


@pytest.mark.parametrize(
    ("vendor", "shown"), [("", ["--nv"]), ("nvidia", ["--nv"]), ("amd", ["--rocm"]), ("google", [])]
)
def test_an_image_of_apptainer_is_shown_the_accelerators_of_their_maker(vendor: str, shown: list[str]) -> None:
    container = {"kind": "apptainer", "image": "/images/train.sif"}
    request = rendered(gang(accelerator_vendor=vendor), container=container)
    assert handed_over(request.body["slurm"]["script"])["step"]["python"] == [
        *("apptainer", "exec", *shown, "/images/train.sif", BASE["python"])
    ]
    without = rendered(gang(accelerator_vendor=vendor), container=container, gres="")
    assert handed_over(without.body["slurm"]["script"])["step"]["python"][2] == "/images/train.sif"


def near(*close: Closeness, nodes: str = "n1 n2 n3 n4", **options: Any) -> list[str]:
    """Return the directives that say how near nodes are to be."""
    lines = directives(rendered(gang(nodes, close=close), **{"chooses_nodes": True, **options}))
    return [line.removeprefix("#SBATCH ") for line in lines if "switches" in line or "segment" in line]


def test_what_the_plan_keeps_close_is_asked_of_slurm_where_it_chooses_and_the_options_say_nothing() -> None:
    leaf, block = Closeness(level="switch0", num_nodes=4), Closeness(level="block", num_nodes=2)
    assert near() == []
    assert near(leaf) == ["--switches=1"]
    assert near(block) == ["--segment=2"]
    assert near(Closeness(level="block", num_nodes=4), block) == ["--segment=2"]
    assert near(replace(leaf, num_nodes=2)) == [], "Slurm has no word for a part of the gang on a switch"
    assert near(replace(leaf, level="rack")) == []
    assert near(leaf, switches=2, switches_wait_s=120) == ["--switches=2@2"], "the site knows better"
    assert near(leaf, chooses_nodes=False) == [], "the plan's own nodes are named"


def test_nodes_taken_whole_are_asked_for_alike_however_many_ranks_they_have() -> None:
    assert len(parts_of(gang(slots=[2, 1]), SlurmOptions.from_json({**BASE, "exclusive": True}))) == 1
    assert len(parts_of(gang(slots=[2, 1]), SlurmOptions.from_json(BASE))) == 2


def test_helpers_accelerators_are_asked_for_beside_the_ranks() -> None:
    helpers = (
        HelperSlot(role=RoleKind.EVALUATOR, index=0, node=NodeId("n2"), slots=(1, 2)),
        HelperSlot(role=RoleKind.DATA_LOADER, index=0, node=NodeId("n3")),
    )
    bare = gang("n1 n2", slots=1)
    roles = tuple(
        RoleSpec(kind=kind, num_ranks=1, command=("help",)) for kind in (RoleKind.EVALUATOR, RoleKind.DATA_LOADER)
    )
    spec = replace(bare, placement=replace(bare.placement, helpers=helpers), roles=roles)
    request = rendered(spec, slots_per_node=4)
    assert [job.get("gres") for job in request.body["slurm"]["parts"]] == ["gpu:1", "gpu:3", None]


def test_accelerators_that_slurm_binds_are_left_to_it() -> None:
    spec = gang(accelerator_vendor="nvidia")
    assert "devices" not in rendered(spec).body
    assert rendered(spec, gres="").body["devices"] == {"vendor": "nvidia"}


def test_slots_that_slurm_does_not_count_are_not_asked_for() -> None:
    assert not any("gres" in line for line in directives(rendered(gres="")))


def test_native_requeue_is_off_unless_asked_for() -> None:
    assert "#SBATCH --no-requeue" in directives(rendered())
    assert "#SBATCH --requeue" in directives(rendered(requeue=True))


@pytest.mark.parametrize("node", ["n1;reboot", "n[1-2]", "n 1", "-n1", "n1\n#SBATCH --uid=0"])
def test_a_node_that_is_no_name_is_refused(node: str) -> None:
    spec = gang("n1")
    odd = replace(spec.placement.slots[0], node=NodeId(node))
    with pytest.raises(SpecError, match="placement"):
        rendered(replace(spec, placement=Placement(slots=(odd, replace(spec.placement.slots[1], node=NodeId(node))))))


def test_a_gang_that_needs_more_slots_than_a_node_has_is_refused() -> None:
    with pytest.raises(SpecError, match="slots 0 to 1 of node n1"):
        rendered(gang(slots=3))


def test_a_script_longer_than_slurm_takes_is_refused() -> None:
    with pytest.raises(SpecError, match="Hand long arguments over in a file"):
        rendered(gang(command=("train", "x" * 4_000_000)))


def test_what_is_no_script_of_ours_hands_nothing_over() -> None:
    with pytest.raises(ValueError, match="no batch script of ours"):
        handed_over("#!/bin/bash\nsleep 1\n")


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stands where Python would: writes its arguments, its environment and its input down, byte for byte."""
    folder = tmp_path_factory.mktemp("recorder")
    path = folder / "python"
    path.write_text(
        "#!/bin/bash\n"
        f"printf '%s\\0' \"$@\" > {shlex.quote(str(folder))}/argv\n"
        f"cat > {shlex.quote(str(folder))}/stdin\n"
        f"echo $PPID > {shlex.quote(str(folder))}/parent\n"
    )
    path.chmod(0o755)
    return path


TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)
ODD = 'it\'s "odd" $(touch x) `id` \\ \n#SBATCH --uid=0\nLLMSCHED_REQUEST\n; exit 3 #'


@given(command=st.lists(TEXT, max_size=4), value=TEXT, dag_id=TEXT, channel=TEXT)
@example(command=[ODD, "", "0,1,2,3"], value=ODD, dag_id=ODD, channel=ODD)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_c22_no_text_breaks_out_of_a_script_and_every_byte_arrives(
    recorder: Path, command: list[str], value: str, dag_id: str, channel: str
) -> None:
    spec = gang(
        command=("train", *command),
        environment={"A": value, "CUDA_VISIBLE_DEVICES": "0,1,2,3"},
        origin=replace(ORIGIN, dag_id=dag_id),
        channel_root=f"/{channel}",
    )
    request = rendered(spec, python=str(recorder))
    text = request.body["slurm"]["script"]
    plain = rendered(python=str(recorder))
    shape = [line.partition("=")[0] for line in directives(request)]
    assert shape == [line.partition("=")[0] for line in directives(plain)]
    subprocess.run(["bash", "-n"], input=text.encode(), check=True)
    ended = subprocess.run(["bash"], input=text.encode(), check=True, capture_output=True, cwd=recorder.parent)
    assert (ended.stdout, ended.stderr) == (b"", b"")
    assert (recorder.parent / "argv").read_bytes() == f"-P\0-m\0{BATCH}\0".encode()
    heard = (recorder.parent / "stdin").read_text()
    said = handed_over(f"<<'LLMSCHED_REQUEST'\n{heard}LLMSCHED_REQUEST\n")
    assert said["body"]["command"] == ["train", *command]
    assert "environment" not in said["body"], "that lies in the attempt's folder, and in no script"
    assert request.body["environment"] == {"A": value, "CUDA_VISIBLE_DEVICES": "0,1,2,3"}
    assert sorted(path.name for path in recorder.parent.iterdir()) == ["argv", "parent", "python", "stdin"]
