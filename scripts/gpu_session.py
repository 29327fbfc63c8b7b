"""Run the experiments that need a GPU, in resumable pieces.

Example: `PYTHONPATH=. python scripts/gpu_session.py bench --out runs/gpu`, then `real_card`, `leaderboards`
and `long_arms`. Called again with the same folder, an interrupted sweep continues from its last checkpoint.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from experiments.arms import BF16, CHAIN_CLIP, NEAREST_BITS, chain_arm, moe_arm
from experiments.benchmarks import device_speed
from experiments.measurements import local_gpu
from experiments.regimes import BASE
from experiments.studies import leaderboard
from experiments.studies.runs import RunSpec, build_tables, run_specs
from simlab.core.experiment import Experiment, Run, execute
from simlab.sweeps import Grid, sweep
from simlab.sweeps.grids import Point
from simlab.sweeps.result import SweepResult

SEED = 0
RUNS_PER_BATCH, BENCH_SECONDS = 64, 480.0
BATCH_SIZES = (1, 4, 16, 64, 256, 1024)
LONG_STEPS = 4000
OBJECTIVES = {
    "no correction": {"name": "grpo"},
    "token TIS": {"name": "grpo+tis", "correction_clip": 2.0},
    "sequence MIS": {"name": "grpo+seq_mis", "correction_clip": 2.0},
    "GSPO": {"name": "gspo", **CHAIN_CLIP},
}
"""No remedy and the headline ones, over nearest E4M3 with its three mantissa bits and over BF16."""


@dataclass(frozen=True)
class Session:
    """Options of a piece: result folder, processes of a sweep, and whether to run a tiny version."""

    out: Path
    workers: int
    smoke: bool

    def run_specs_cached(self, specs: Sequence[RunSpec], name: str) -> SweepResult:
        """Run `specs` into the result cache that all sweeps of the session share."""
        points = Grid(tuple(Point(spec.changes, spec.arm) for spec in specs))
        return sweep(
            BASE,
            points,
            self.out / "cache",
            name=name,
            runs_per_batch=RUNS_PER_BATCH,
            workers=self.workers,
            yes=True,
            checkpoint_seconds=20.0,
        )


def leaderboards(session: Session) -> None:
    """Run both leaderboards; finished blocks of an arm stay in the cache of the session."""
    for experiment in (leaderboard.EXPERIMENT, leaderboard.MOE_EXPERIMENT):
        execute(experiment, session.out / experiment.name, session.smoke)


def long_specs(named: Callable[[str], str], steps: int, smoke: bool) -> list[RunSpec]:
    """Return the runs of one kind of model over `steps`: engines by objectives by initial policies."""
    return [
        replace(
            spec,
            arm=f"{spec.arm}, {title}",
            changes={**spec.changes, "objective": objective} | ({} if smoke else {"steps": steps}),
        )
        for engine in (NEAREST_BITS[3], BF16)[: 1 if smoke else None]
        for spec in run_specs(named(engine), SEED, smoke)
        for title, objective in OBJECTIVES.items()
    ]


def long_arms(session: Session) -> None:
    """Run nearest E4M3 and BF16, without a remedy and with the headline ones, over 4000 steps."""

    def run(run: Run) -> None:
        kinds = (chain_arm,) if run.smoke else (chain_arm, moe_arm)
        specs = [spec for named in kinds for spec in long_specs(named, LONG_STEPS, run.smoke)]
        done = session.run_specs_cached(specs, run.name)
        runs: Any = done.runs()[["run", "seed", "status", "steps_completed", "steps"]]
        runs["arm"], runs["initial_policy"] = [p.arm for p in specs], [p.initial_policy for p in specs]
        run.seeds([SEED])
        run.configure(base=BASE, arms={spec.arm: dict(spec.changes) for spec in specs})
        tables = build_tables({"runs": runs, "steps": done.steps(), "vectors": done.vectors()})
        for name in tables.table_names:
            run.table(name, tables.table(name))

    question = "Do nearest E4M3 and BF16 collapse over 4000 steps, with and without the headline remedies?"
    rule = "Exploratory: these runs decide no claim."
    execute(Experiment("long_arms", question, rule, run, 30.0), session.out / "long_arms", session.smoke)


def bench(session: Session) -> None:
    """Measure run-steps per second by batch size, up to 1024 runs."""
    _measure_batch_sizes(BATCH_SIZES, session.out / "bench_device", session.smoke)


def compile_bench(session: Session) -> None:
    """Compile the programs of `bench` into the persistent cache, one process per batch size."""
    command = [sys.executable, __file__, "compile_one_size", "--out", str(session.out)]
    command += ["--smoke"] if session.smoke else []
    environments = [{**os.environ, "BENCH_RUNS_PER_BATCH": str(size)} for size in BATCH_SIZES]
    processes = [subprocess.Popen(command, env=environment) for environment in environments]
    print([process.wait() for process in processes])


def compile_one_size(session: Session) -> None:
    """Compile the programs of the batch size `$BENCH_RUNS_PER_BATCH`; its timings are void."""
    runs_per_batch = int(os.environ["BENCH_RUNS_PER_BATCH"])
    _measure_batch_sizes((runs_per_batch,), session.out / f"compile-{runs_per_batch}", session.smoke)


def _measure_batch_sizes(batch_sizes: Sequence[int], out: Path, smoke: bool) -> None:
    measured = partial(
        device_speed.measure, batch_sizes=(2,) if smoke else batch_sizes, limit_seconds=BENCH_SECONDS
    )
    execute(replace(device_speed.EXPERIMENT, run=measured), out, smoke)


def compare_gpu(session: Session) -> None:
    """Compare the GPU's own matrix products with the models of tensor cores."""
    execute(local_gpu.EXPERIMENT, session.out / "real_card", session.smoke)


PIECES = {
    "bench": bench,
    "compile_bench": compile_bench,
    "compile_one_size": compile_one_size,
    "real_card": compare_gpu,
    "leaderboards": leaderboards,
    "long_arms": long_arms,
}


def main() -> None:
    """Run one piece."""
    # Several processes share the memory of one GPU.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("piece", choices=PIECES)
    parser.add_argument("--out", type=Path, default=Path("runs/gpu"), help="result folder")
    parser.add_argument("--workers", type=int, default=12, help="processes of a sweep (default 12)")
    parser.add_argument("--smoke", action="store_true", help="run a tiny version")
    chosen = parser.parse_args()
    began = time.perf_counter()
    PIECES[chosen.piece](Session(chosen.out, chosen.workers, chosen.smoke))
    print(f"{chosen.piece}: {time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
