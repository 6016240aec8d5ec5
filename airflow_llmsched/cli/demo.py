"""The demo: a real Airflow, the shipped DAG, a real preemption, and a summary that says whether all of it held.

``make demo`` runs ``python -m airflow_llmsched.cli.demo``. Everything it writes is below one folder, and everything it
starts has ended when it returns, however it ends, unless the user asked to keep Airflow up.
"""

from __future__ import annotations

import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from airflow_llmsched.cli.demo_summary import shortfalls, summary
from airflow_llmsched.cli.demo_view import DemoView
from airflow_llmsched.cli.demo_watch import RunView, RunWatcher
from airflow_llmsched.domain.identity import NodeId, RunKey
from airflow_llmsched.errors import LlmschedError, TransientError
from airflow_llmsched.registry import AdapterGroup, load
from airflow_llmsched.reports import files as report_files
from airflow_llmsched.testing.airflow_client import RUN_ENDED, AirflowClient
from airflow_llmsched.testing.airflow_stack import AirflowStack, stop_running

# Where the demo meets the shipped DAG, dags/pretrain_local.py.
DAG_ID = "pretrain_local"
OPEN_TASK = "pretraining.open_run"
ENGINE = "local"
ENGINE_OPTIONS = {"num_nodes": 2, "slots_per_node": 2}

PREEMPT_AT_RATIO = 0.4
GRACE_S = 5.0
AWAY_S = 3600.0
"""How long the preempted node stays away: longer than the run, so that it must go on without."""
PARSE_LIMIT_S = 120.0
RUN_LIMIT_S = 1200.0
_POLL_S = 0.5
_LOG_TAIL_LINES = 25

_CHECKOUT = Path(__file__).resolve().parents[2]


class Preemption:
    """Takes one node away, once, as soon as the run is far enough and has a checkpoint to come back to."""

    def __init__(self, state_root: Path, view: DemoView) -> None:
        self._state_root = state_root
        self._view = view
        self._thread: threading.Thread | None = None
        self.error: Exception | None = None

    def consider(self, run: RunView) -> None:
        """Start it if ``run`` is ready for it. Returns at once: the grace period passes in a thread."""
        if self._thread is not None or not ready_to_preempt(run):
            return
        assert run.current is not None
        node = run.current.last_node
        assert node is not None
        news = f"preempting node {node}: notice now, SIGTERM in {GRACE_S:.0f} s, then SIGKILL"
        self._view.event(news, style="bold yellow")
        self._thread = threading.Thread(target=self._preempt, args=(node,), daemon=True)
        self._thread.start()

    def _preempt(self, node: NodeId) -> None:
        try:
            root = str(self._state_root / "engines" / ENGINE)
            engine = load(AdapterGroup.ENGINES, ENGINE)(root=root, **ENGINE_OPTIONS)
            engine.preempt(node, grace_s=GRACE_S, return_after_s=AWAY_S)
        except Exception as error:  # noqa: BLE001 - a thread has nobody to raise to; the demo reports it
            self.error = error


def ready_to_preempt(run: RunView) -> bool:
    """Whether training is 40% done on more than one node, with a durable checkpoint behind it."""
    ratio = run.done_ratio
    spread = run.current is not None and len(run.current.nodes) > 1
    return spread and bool(run.saved) and ratio is not None and ratio >= PREEMPT_AT_RATIO


def demo(
    *,
    ui: Annotated[bool, typer.Option("--ui", help="Leave Airflow up afterwards; prints address and login.")] = False,
    folder: Annotated[Path, typer.Option(help="Where to put everything. Earlier reports in it stay.")] = Path(".demo"),
) -> None:
    """Pretrain a small language model on this machine through a preemption, and report."""
    console = Console()
    signal.signal(signal.SIGINT, _interrupted)  # a shell starts what runs in the background with it ignored
    signal.signal(signal.SIGTERM, _interrupted)
    signal.signal(signal.SIGHUP, _interrupted)
    try:
        code = _demo(console, folder.resolve(), keep=ui)
    except KeyboardInterrupt:
        console.print("interrupted: everything that was started has been stopped")
        code = 130
    except LlmschedError as error:
        console.print(f"the demo could not run: {error}", style="bold red", markup=False, highlight=False)
        code = 1
    raise typer.Exit(code)


def _demo(console: Console, folder: Path, *, keep: bool) -> int:
    dags = _CHECKOUT / "dags"
    if not dags.is_dir():
        raise LlmschedError(f"there is no {dags}: run the demo from a checkout (git clone, make demo)")
    home, state_root = folder / "airflow", folder / "state"
    if stop_running(home):
        console.print("stopped the Airflow that an earlier demo had left up")
    for leftover in (home, state_root):
        shutil.rmtree(leftover, ignore_errors=True)
    console.print("starting Airflow: api-server, scheduler, dag-processor, triggerer (about 20 s) …")
    environment = {"AIRFLOW__LLMSCHED__STATE_ROOT": str(state_root)}
    with AirflowStack(home, dags, environment=environment, end_gangs=True) as stack:
        login = f"{stack.url}  user {stack.username}  password {stack.password}"
        console.print(f"Airflow is up: {login}", highlight=False, soft_wrap=True)
        try:
            code = _run_and_report(console, stack.client, folder, state_root)
        except LlmschedError as error:
            if not keep:
                raise
            console.print(str(error), style="bold red", markup=False, highlight=False)
            code = 1
        if keep:
            keeper_pid = stack.keeper_pid
            stack.detach()
            console.print(f"Airflow stays up: {login}", highlight=False, soft_wrap=True)
            console.print(f"stop it with: kill {keeper_pid}, or run the demo again", highlight=False)
    return code


def _run_and_report(console: Console, client: AirflowClient, folder: Path, state_root: Path) -> int:
    with DemoView(console) as view:
        _wait_parsed(client)
        run_id = client.trigger(DAG_ID)
        view.event(f"triggered DAG run {run_id} of {DAG_ID}")
        preemption = Preemption(state_root, view)
        state, watcher = _follow(client, run_id, view, preemption)
    if preemption.error is not None:
        console.print(f"the preemption failed: {preemption.error}", style="bold red", markup=False)
    if watcher is None or not (watcher.directory / report_files.JSON_NAME).exists():
        _print_failures(console, client, run_id)
        raise LlmschedError(f"DAG run {run_id} ended {state} without a report; Airflow's logs are in {folder}/airflow")
    report = report_files.read(watcher.directory)
    kept = _keep_report(watcher.directory, folder)
    good = state == "success" and preemption.error is None and not shortfalls(report)
    if not good:
        _print_failures(console, client, run_id)
    console.print(summary(report))
    console.print(f"DAG run: {state}\nreport: {kept}", highlight=False, soft_wrap=True)
    return 0 if good else 1


def _wait_parsed(client: AirflowClient) -> None:
    deadline_s = time.monotonic() + PARSE_LIMIT_S
    while client.dag(DAG_ID) is None:
        if errors := client.import_errors():
            raise LlmschedError(f"{errors[0]['filename']} cannot be parsed:\n{errors[0]['stack_trace']}")
        if time.monotonic() > deadline_s:
            raise LlmschedError(f"Airflow did not parse DAG {DAG_ID!r} within {PARSE_LIMIT_S:.0f} s")
        time.sleep(_POLL_S)


def _follow(
    client: AirflowClient, run_id: str, view: DemoView, preemption: Preemption
) -> tuple[str, RunWatcher | None]:
    """Show the run until it ends. Returns its end state, and the watcher unless the run was never opened."""
    watcher: RunWatcher | None = None
    deadline_s = time.monotonic() + RUN_LIMIT_S
    while True:
        try:
            state: str = client.dag_run(DAG_ID, run_id)["state"]
            view.tasks(client.task_states(DAG_ID, run_id))
            watcher = watcher or _opened(client, run_id)
            if watcher is not None:
                run = watcher.look()
                view.run(run)
                preemption.consider(run)
        except TransientError as error:
            view.event(f"could not look, looking again: {error}", style="yellow")
            state = "unknown"
        if state in RUN_ENDED:
            return state, watcher
        if time.monotonic() > deadline_s:
            raise LlmschedError(f"DAG run {run_id} has not ended within {RUN_LIMIT_S / 60:.0f} min")
        time.sleep(_POLL_S)


def _opened(client: AirflowClient, run_id: str) -> RunWatcher | None:
    opened: Any = client.xcom(DAG_ID, run_id, OPEN_TASK)
    return None if opened is None else RunWatcher(opened["state_root"], RunKey(opened["run_key"]))


def _keep_report(directory: Path, folder: Path) -> Path:
    """Copy the report out of what the next demo empties."""
    target = folder / "reports" / f"{time.strftime('%Y%m%d-%H%M%S')}-{directory.name}"
    target.mkdir(parents=True, exist_ok=True)
    for name in (report_files.HTML_NAME, report_files.JSON_NAME):
        shutil.copyfile(directory / name, target / name)
    return target / report_files.HTML_NAME


def _print_failures(console: Console, client: AirflowClient, run_id: str) -> None:
    for task in client.task_instances(DAG_ID, run_id):
        if task["state"] != "failed":
            continue
        log = client.log(DAG_ID, run_id, task["task_id"], try_number=task["try_number"])
        tail = "\n".join(log.splitlines()[-_LOG_TAIL_LINES:])
        console.print(f"task {task['task_id']} failed; its log ends:\n{tail}", markup=False, highlight=False)


def _interrupted(_number: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    typer.run(demo)
