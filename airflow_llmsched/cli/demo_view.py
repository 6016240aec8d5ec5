"""How the demo shows itself: a live panel on a terminal, one line per event anywhere else. Decides nothing."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from airflow_llmsched.cli.demo_watch import AttemptView, RunView

_STYLE = {"success": "green", "failed": "bold red", "upstream_failed": "red", "running": "cyan", "deferred": "magenta"}
_NUM_EVENTS_SHOWN = 10
_PLAIN_STEP_INTERVAL_S = 5.0


class DemoView:
    """Shows tasks, training and events. On a terminal it redraws a panel; elsewhere it prints only what changed."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        self._tasks: dict[str, str | None] = {}
        self._run: RunView | None = None
        self._events: deque[Text] = deque(maxlen=_NUM_EVENTS_SHOWN)
        self._seen = _Seen()

    def __enter__(self) -> Self:
        """Start drawing."""
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop drawing and leave the terminal as it was."""
        if self._live is not None:
            self._live.stop()

    def event(self, text: str, *, style: str = "") -> None:
        """Tell one thing that happened."""
        line = Text.assemble((time.strftime("%H:%M:%S "), "dim"), (text, style))
        self._events.append(line)
        if self._live is None:
            self._console.print(line, soft_wrap=True)
        else:
            self.draw()

    def tasks(self, states: Mapping[str, str | None]) -> None:
        """Take the state of every task of the DAG run."""
        for task, state in states.items():
            if state != self._tasks.get(task) and state is not None:
                self.event(f"task {task}: {state}", style=_STYLE.get(state, ""))
        self._tasks = dict(states)
        self.draw()

    def run(self, run: RunView) -> None:
        """Take the state of the training run."""
        for text in self._seen.news(run, now_s=time.monotonic(), with_steps=self._live is None):
            self.event(text)
        self._run = run
        self.draw()

    def draw(self) -> None:
        """Redraw the panel, if there is one."""
        if self._live is not None:
            self._live.update(self._panel(), refresh=True)

    def _panel(self) -> RenderableType:
        tasks = Table.grid(padding=(0, 2))
        for task, state in self._tasks.items():
            tasks.add_row(task, Text(state or "waiting", style=_STYLE.get(state or "", "dim")))
        parts: list[RenderableType] = [tasks]
        if self._run is not None and self._run.current is not None:
            parts += [Text(), _training(self._run, self._run.current)]
        parts += [Text(), *self._events]
        return Panel(Group(*parts), title="airflow_llmsched demo", border_style="blue")


class _Seen:
    """What has been told about a run."""

    def __init__(self) -> None:
        self._phase: str | None = None
        self._attempts: set[str] = set()
        self._saved: set[int] = set()
        self._step_told_at_s = 0.0
        self._progress_told = ""

    def news(self, run: RunView, *, now_s: float, with_steps: bool) -> list[str]:
        """Return a line for everything that is new since the last call."""
        told = []
        if run.phase != self._phase:
            self._phase = run.phase
            told.append(f"run {run.phase}")
        current = run.current
        if current is not None and current.first_step is not None and current.name not in self._attempts:
            self._attempts.add(current.name)
            ranks = f"{len(current.ranks)} ranks on {', '.join(sorted(current.nodes))}"
            told.append(f"attempt {current.name} trains with {ranks}, first step {current.first_step}")
        told += [f"checkpoint of step {step} is durable" for step in sorted(run.saved - self._saved)]
        self._saved |= run.saved
        due = with_steps and now_s - self._step_told_at_s >= _PLAIN_STEP_INTERVAL_S
        if due and current is not None and (progress := _progress(run, current)) != self._progress_told:
            self._step_told_at_s, self._progress_told = now_s, progress
            told.append(progress)
        return told


def _progress(run: RunView, attempt: AttemptView) -> str:
    if attempt.last is None:
        return f"attempt {attempt.name}: {len(attempt.ranks)} ranks starting"
    return (
        f"attempt {attempt.name}, {len(attempt.ranks)} ranks: step {attempt.last.step}/{run.num_steps}, "
        f"loss {attempt.last.loss:.3f}"
    )


def _training(run: RunView, attempt: AttemptView) -> RenderableType:
    row = Table.grid(padding=(0, 2))
    ratio = run.done_ratio
    bar: RenderableType = Text() if ratio is None else ProgressBar(total=1.0, completed=ratio, width=40)
    row.add_row(Text(_progress(run, attempt)), bar, Text(run.phase, style="dim"))
    return row
