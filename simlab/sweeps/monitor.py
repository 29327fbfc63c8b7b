"""Read the progress of a running sweep from its folder."""

import contextlib
import json
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from simlab.core.json_value import Json
from simlab.core.progress import console
from simlab.sweeps.execute import LIVE
from simlab.sweeps.result_cache import ResultCache

LIVE_FOLDER = "live"
REDRAW_SECONDS = 1.0
REDRAW_FILE_SECONDS = 10.0
LINE_SECONDS = 60.0
"""Seconds after which a new line is written where there is no terminal, if no run has finished."""
RECENT = 10  # steps over which the shown numbers are averaged


@dataclass
class ArmProgress:
    """One arm: its number of runs, of finished ones, and the curves [runs][steps] of the live metrics."""

    runs: int = 0
    finished: int = 0
    diverged: int = 0
    dead: int = 0
    curves: dict[str, list[np.ndarray]] = field(default_factory=lambda: {name: [] for name in LIVE})

    def recent(self, name: str) -> float:
        """Return the mean of the last steps of all its runs so far, NaN before the first."""
        last = np.concatenate([curve[-RECENT:] for curve in self.curves[name]] or [np.array([])])
        return float(np.nanmean(last)) if np.isfinite(last).any() else float("nan")

    def mean(self, name: str) -> np.ndarray:
        """Return the mean curve [steps] over the runs that have come so far at each step."""
        return pd.DataFrame(map(pd.Series, self.curves[name])).mean().to_numpy()


def collect_arms(runs: Iterable[tuple[str, str | None, Mapping[str, np.ndarray]]]) -> dict[str, ArmProgress]:
    """Return the arms of `runs`, given as name of the arm, status if finished, and curves by metric."""
    arms: dict[str, ArmProgress] = {}
    for name, status, curves in runs:
        arm = arms.setdefault(name, ArmProgress())
        arm.runs += 1
        arm.finished += status is not None
        arm.diverged += status == "diverged"
        arm.dead += status == "dead"
        for metric, curve in curves.items():
            arm.curves[metric].append(curve)
    return arms


class Monitor:
    """Read new events of a job, and finished runs from the result cache."""

    def __init__(self, folder: Path, job: Path | None = None):
        """Follow `job`, by default the newest in `folder`; raises `FileNotFoundError` where there is none."""
        jobs = sorted((Path(folder) / LIVE_FOLDER).glob("*-*[0-9a-f].json"))
        if job is None and not jobs:
            raise FileNotFoundError(f"no sweep is running in {folder}")
        self.job = job or jobs[-1]
        self.store = ResultCache(Path(folder))
        self._described = described = json.loads(self.job.read_text())
        self.arm_of = {row["run"]: row["arm"] for row in described["runs"]}
        self._curves: dict[str, dict[str, np.ndarray]] = {}
        self._final: dict[str, str] = {}
        self._read: dict[Path, int] = {}

    @property
    def is_over(self) -> bool:
        """True if the sweep has ended, in whatever way: its file goes with it, unless it was killed."""
        return not self.job.is_file() or is_killed(self._described)

    def poll(self) -> dict[str, ArmProgress]:
        """Return the arms as they are now."""
        self._read_events()
        for key in self.arm_of:
            if key not in self._final and self.store.has(key):
                steps = self.store.table(key, "steps")
                self._curves[key] = {name: steps[name].to_numpy() for name in LIVE if name in steps}
                self._final[key] = self.store.record(key)["status"]
        return collect_arms(
            (arm, self._final.get(key), self._curves.get(key, {})) for key, arm in self.arm_of.items()
        )

    def _read_events(self) -> None:
        for path in self.job.parent.glob(f"{self.job.stem}.*.jsonl"):
            with open(path) as file:
                file.seek(self._read.get(path, 0))
                for line in file:
                    if not line.endswith("\n"):
                        break  # still being written
                    self._read[path] = self._read.get(path, 0) + len(line.encode())
                    event = json.loads(line)
                    if event["event"] == "chunk":
                        self._append(event)

    def _append(self, event: dict[str, Json]) -> None:
        for member, key in enumerate(event["runs"]):
            if key in self._final:
                continue
            curves = self._curves.setdefault(key, {})
            for name in LIVE:
                if name in event:
                    values = np.asarray(event[name][member], float)
                    # A batch that was begun again begins its curve again.
                    before = curves.get(name, values[:0])[: event["step"][member] - len(values)]
                    curves[name] = np.concatenate([before, values])


def table_of(arms: dict[str, ArmProgress]) -> Table:
    """Return the arms as a table: runs, reward and RMS log rho."""
    # Cut labels would hide the swept values that distinguish the arms.
    arm_column = Column("arm", overflow="fold")
    columns = (arm_column, "runs", "steps", "reward", "RMS log rho (nats)", "diverged", "dead")
    table = Table(*columns, header_style="bold")
    for name, arm in arms.items():
        steps = max((len(curve) for curve in arm.curves["reward"]), default=0)
        broken = [str(count or "") for count in (arm.diverged, arm.dead)]
        shown = [f"{arm.recent(metric):.3g}" if steps else "" for metric in LIVE]
        table.add_row(Text(name), f"{arm.finished}/{arm.runs}", str(steps), *shown, *broken)
    return table


def line_of(arms: dict[str, ArmProgress]) -> str:
    """Return all arms as a line: finished runs, run-steps, mean reward and RMS log rho, broken runs."""
    names = ("finished", "runs", "diverged", "dead")
    finished, runs, diverged, dead = (sum(getattr(arm, name) for arm in arms.values()) for name in names)
    everything = ArmProgress(
        curves={name: [curve for arm in arms.values() for curve in arm.curves[name]] for name in LIVE}
    )
    if not everything.curves["reward"]:
        return f"{finished}/{runs} runs; no step finished yet"
    steps = sum(map(len, everything.curves["reward"]))
    reward, mismatch = (everything.recent(name) for name in LIVE)
    broken = "".join(f", {n} {word}" for n, word in ((diverged, "diverged"), (dead, "dead")) if n)
    return (
        f"{finished}/{runs} runs, {steps} run-steps{broken}; "
        f"reward {reward:.2f}, RMS log rho {mismatch:.3f} nats"
    )


@contextlib.contextmanager
def show_progress(monitor: Monitor, watch: bool) -> Iterator[Callable[[], None]]:
    """Give a function that shows the state, at most once a second: live on a terminal, else as lines."""
    shown_at = line_at = file_at = 0.0
    reported = -1
    live = Live(console=console, refresh_per_second=2) if console.is_terminal else None

    def show() -> None:
        nonlocal shown_at, line_at, file_at, reported
        now = time.monotonic()
        if now - shown_at < REDRAW_SECONDS:
            return
        shown_at, arms = now, monitor.poll()
        finished = sum(arm.finished for arm in arms.values())
        if live is not None:
            live.update(table_of(arms))
        elif finished != reported or now - line_at > LINE_SECONDS:
            reported, line_at = finished, now
            console.print(line_of(arms), highlight=False)
        if watch and now - file_at > REDRAW_FILE_SECONDS:
            file_at = now
            draw_file(arms, monitor.store.folder / "curves.png")

    with live or contextlib.nullcontext():
        yield show
        shown_at = file_at = 0.0
        show()


def draw_file(arms: dict[str, ArmProgress], path: Path) -> None:
    """Redraw the curves in a file, atomically."""
    # Matplotlib takes a second to import, which a sweep without a watched file does not need.
    from simlab.sweeps.sweep_curves import save_arm_curves

    save_arm_curves({metric: {n: a.mean(metric) for n, a in arms.items()} for metric in LIVE}, path)


def remove_dead_jobs(folder: Path) -> None:
    """Remove the files of killed sweeps; those of running processes stay."""
    for job in (folder / LIVE_FOLDER).glob("*-*[0-9a-f].json"):
        with contextlib.suppress(OSError, ValueError):
            if is_killed(json.loads(job.read_text())):
                remove_job(job)


def remove_job(job: Path) -> None:
    """Remove the files of a job, its own last: it identifies the others."""
    for path in job.parent.glob(f"{job.stem}.*"):
        if path != job:
            path.unlink(missing_ok=True)
    job.unlink(missing_ok=True)


def is_killed(job: Mapping[str, Json]) -> bool:
    """Return whether the process of a job is gone; of another host nothing is known."""
    return job.get("host", platform.node()) == platform.node() and not _alive(int(job["pid"]))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # a process of another user
        pass
    return True
