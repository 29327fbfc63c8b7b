"""Inject faults into sweeps: kills, full disks, damaged files, two sweeps in one folder, clock set back.

Each fault is injected into a small sweep, which is then started again. No finished run may be lost or
computed twice. The final tables must equal those of an undisturbed sweep byte by byte. A sweep that cannot
continue must fail with one clear line.
"""

import itertools
import random
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from simlab.studies.experiment import Experiment, ExperimentContext
from simlab.sweeps import sweep
from simlab.sweeps.result_cache import DamagedError

SWEEP = """
runs_per_batch = 4
[base]
engines = { name = "f32/f32", infer = { residual = "e5m2" } }
task = { name = "sort", difficulty = 2, train_size = 64, held_out_size = 16 }
optimizer = { learning_rate = 0.01 }
entropy_coeff = 0.1
prompts_per_step = 2
group_size = 2
minibatches = 1
steps = %d
[base.model]
name = "tiny-dense"
hidden_size = 32
intermediate_size = 32
num_hidden_layers = 1
num_attention_heads = 1
[over]
objective = ["grpo", "gspo", "grpo+tis"]
seed = %s
"""
"""Settings of a sweep of so many steps with these seeds."""
STEPS, SEEDS = (400, 40), (8, 4)  # of a full run and of a smoke run
KILL, KILLS = "kill -9 at a random moment", (50, 1)
COMMAND = "import sys; from simlab.cli import main; main()"
# Each read of the clock goes back by one hour more.
BACKWARDS = """
import itertools, time
real, back = time.time_ns, itertools.count(1)
time.time_ns = lambda: real() - next(back) * 3600 * 10**9
time.time = lambda: time.time_ns() / 1e9
"""


@dataclass
class Count:
    """The effects of a fault over all tries; `said` is the last error."""

    fault: str
    tries: int = 0
    lost: int = 0
    written_twice: int = 0
    other_bytes: int = 0
    stopped: int = 0
    clear_errors: int = 0
    said: str = ""

    def record_error(self, text: str) -> None:
        """Record the error of a process that stopped; an error is clear if it is one line."""
        self.stopped += 1
        self.clear_errors += text.startswith("simlab: ") and "\n" not in text.strip()
        self.said = text.strip()[-1000:]

    def wait(self, process: subprocess.Popen, timeout: float | None = None) -> None:
        """Wait for a process and record its error: its last line, or everything if there is a traceback."""
        text = process.communicate(timeout=timeout)[1]
        if process.returncode:
            self.record_error(text if "Traceback" in text else (text.strip().splitlines() or [""])[-1])


@dataclass
class Bench:
    """A folder in which sweeps are started, disturbed and compared with an undisturbed sweep."""

    root: Path
    sweep: str
    moments: random.Random = field(default_factory=lambda: random.Random(0))
    numbers: Iterator[int] = field(default_factory=itertools.count)
    seconds: float = 0.0

    def __post_init__(self):
        """Run the undisturbed sweep in its own process and time it."""
        (self.root / "sweep.toml").write_text(self.sweep)
        self.run_again(self.new_folder())  # compiles for the others
        self.undisturbed = self.new_folder()
        start = time.perf_counter()
        error = self.start(self.undisturbed).communicate()[1]
        if not (self.undisturbed / "manifest.json").is_file():
            raise RuntimeError(f"The undisturbed sweep failed: {error}")
        self.seconds = time.perf_counter() - start

    def new_folder(self) -> Path:
        """Return the path of a new folder."""
        return self.root / f"sweep{next(self.numbers)}"

    def start(self, out: Path, before: str = "", file_size: int = 0, workers: int = 0) -> subprocess.Popen:
        """Start the sweep in its own process, after the code `before`, with a limit on file sizes."""
        if file_size:
            before += f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({file_size},) * 2)\n"
        options = ["--out", str(out), "--workers", str(workers), "--checkpoint", "0", "--yes"]
        return subprocess.Popen(
            [sys.executable, "-c", before + COMMAND, "sweep", str(self.root / "sweep.toml"), *options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run_again(self, out: Path) -> None:
        """Start the sweep again in this process, which has compiled it."""
        sweep(**tomllib.loads(self.sweep), out=out, workers=0)


def finished_runs(folder: Path) -> dict[str, tuple[int, int]]:
    """Return inode and time of the record of every finished run."""
    stats = {path.stem: path.stat() for path in (folder / "store").glob("[0-9a-f]*.json")}
    return {key: (each.st_ino, each.st_mtime_ns) for key, each in stats.items()}


def read_content(folder: Path) -> dict[str, bytes]:
    """Return everything that a sweep writes except its manifest."""
    paths = [*folder.glob("*.parquet"), *(folder / "store").glob("[0-9a-f]*"), *folder.glob("unfinished/*")]
    return {path.name: path.read_bytes() for path in paths}


def compare_runs(count: Count, before: dict[str, tuple[int, int]], folder: Path) -> None:
    """Count the runs that were finished before and are lost or written again."""
    after = finished_runs(folder)
    count.lost += len(before.keys() - after.keys())
    count.written_twice += sum(after[key] != each for key, each in before.items() if key in after)


def finish_sweep(bench: Bench, count: Count, folder: Path) -> None:
    """Finish the sweep and compare its bytes with those of the undisturbed sweep."""
    before = finished_runs(folder)
    bench.run_again(folder)
    compare_runs(count, before, folder)
    expected, actual = read_content(bench.undisturbed), read_content(folder)
    count.lost += len(expected.keys() - actual.keys())
    count.other_bytes += sum(actual.get(name, data) != data for name, data in expected.items())
    count.other_bytes += len(actual.keys() - expected.keys())
    shutil.rmtree(folder)


def kill_sweeps(bench: Bench, count: Count, tries: int) -> Iterator[dict[str, float]]:
    """Kill sweeps at random moments; yield a row per kill.

    A sweep that ends before its kill is a row, but does not count as a try.
    """
    folder = bench.new_folder()
    for number in itertools.takewhile(lambda _: count.tries < tries, itertools.count()):
        before = finished_runs(folder)
        process = bench.start(folder)
        moment = bench.moments.random() * bench.seconds
        time.sleep(moment)
        process.kill()
        process.communicate()
        count.tries += process.returncode != 0
        compare_runs(count, before, folder)
        num_finished = len(finished_runs(folder))
        yield {
            "kill": number,
            "seconds": moment,
            "finished_before": len(before),
            "finished_after": num_finished,
            "unfinished": len(list(folder.glob("unfinished/[0-9a-f]*.npz"))),
            "ended_by_itself": process.returncode == 0,
        }
        if num_finished == len(finished_runs(bench.undisturbed)):
            finish_sweep(bench, count, folder)
            folder = bench.new_folder()
    finish_sweep(bench, count, folder)


def fill_disk(bench: Bench, count: Count, number: int) -> Path:
    """Limit the size of files; every second time in worker processes."""
    folder = bench.new_folder()
    largest = max(path.stat().st_size for path in (bench.undisturbed / "store").iterdir())
    size = bench.moments.randint(1_000, largest)
    count.wait(bench.start(folder, file_size=size, workers=number % 2 * 2))
    return folder


def name_read_only_folder(bench: Bench, count: Count, number: int) -> None:
    """Return a folder that even the superuser cannot write."""
    count.wait(bench.start(Path(("/proc/simlab", "/sys/simlab")[number % 2])))


def damage(path: Path, moments: random.Random, number: int) -> None:
    """Flip one bit of a file; every second time, truncate the file."""
    data = path.read_bytes()
    index = moments.randrange(len(data))
    flipped = data[index] ^ 1 << moments.randrange(8) if number % 2 == 0 else 0
    path.write_bytes(data[:index] if number % 2 else data[:index] + bytes([flipped]) + data[index + 1 :])


def damage_result(bench: Bench, count: Count, number: int) -> Path:
    """Damage a file of a finished run and follow the error message: only this run is computed again."""
    kind = ("json", "steps.parquet", "vectors.parquet")[number % 3]
    folder = bench.new_folder()
    shutil.copytree(bench.undisturbed, folder)
    path = bench.moments.choice(sorted((folder / "store").glob(f"[0-9a-f]*.{kind}")))
    damage(path, bench.moments, number)
    try:
        bench.run_again(folder)
    except DamagedError as error:
        count.record_error(f"simlab: {error}")
    (folder / "store" / f"{path.name.split('.')[0]}.json").unlink()
    return folder


def damage_checkpoint(bench: Bench, _: Count, number: int) -> Path:
    """Damage a checkpoint of a killed sweep: only its run starts again."""
    folder = bench.new_folder()
    process = bench.start(folder)
    while not (saved := list(folder.glob("unfinished/[0-9a-f]*.npz"))) and process.poll() is None:
        time.sleep(0.01)
    process.kill()
    process.communicate()
    for path in saved[:1]:
        damage(path, bench.moments, number)
    return folder


def start_two_sweeps(bench: Bench, count: Count, _: int) -> Path:
    """Start the same sweep twice at the same time; a record that is replaced was computed twice."""
    folder = bench.new_folder()
    processes = [bench.start(folder), bench.start(folder)]
    before: dict[str, tuple[int, int]] = {}
    while any(process.poll() is None for process in processes):
        now = finished_runs(folder)
        count.written_twice += sum(now.get(key) != each for key, each in before.items())
        before = now
        time.sleep(0.02)
    for process in processes:
        count.wait(process)
    return folder


def turn_clock_back(bench: Bench, count: Count, _: int) -> Path:
    """Kill a sweep halfway and continue in a process whose clock runs backwards."""
    folder = bench.new_folder()
    process = bench.start(folder, BACKWARDS)
    try:
        count.wait(process, 0.6 * bench.seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
    count.wait(bench.start(folder, BACKWARDS))
    return folder


FAULTS: dict[str, tuple[Callable[[Bench, Count, int], Path | None], tuple[int, int]]] = {
    "disk full": (fill_disk, (6, 1)),
    "folder that cannot be written": (name_read_only_folder, (4, 1)),
    "result file damaged": (damage_result, (12, 3)),
    "checkpoint damaged": (damage_checkpoint, (4, 1)),
    "two sweeps in one folder": (start_two_sweeps, (4, 1)),
    "clock going backwards": (turn_clock_back, (4, 1)),
}
"""By name: the fault, which returns the folder of its sweep, and its tries in a full and a smoke run."""


def inject_fault(fault: str, bench: Bench, tries: int) -> Count:
    """Return the counts of a fault over `tries` sweeps."""
    count = Count(fault)
    for number in range(tries):
        folder = FAULTS[fault][0](bench, count, number)
        count.tries += 1
        if folder is not None:
            finish_sweep(bench, count, folder)
    return count


def run(run: ExperimentContext) -> None:
    kills, others = KILLS[run.smoke], {fault: tries[run.smoke] for fault, (_, tries) in FAULTS.items()}
    text = SWEEP % (STEPS[run.smoke], list(range(SEEDS[run.smoke])))
    run.configure(**tomllib.loads(text), tries={KILL: kills} | others)
    run.seeds([0])
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), text)
        run.report(f"undisturbed: {bench.seconds:.1f} s")
        counts = [Count(KILL)]
        with run.phase(KILL):
            run.table("kills", list(run.track(kill_sweeps(bench, counts[0], kills), KILL, kills)))
        for fault, tries in run.track(others.items(), "other faults"):
            with run.phase(fault):
                counts.append(inject_fault(fault, bench, tries))
    run.table("faults", [vars(count) for count in counts])
    for count in counts:
        run.report(
            f"{count.fault}: {count.tries} tries, {count.lost} lost, {count.written_twice} twice, "
            f"{count.other_bytes} with other bytes, {count.clear_errors} of {count.stopped} stops clear"
        )


EXPERIMENT = Experiment(
    name="fault_table",
    question="What do a kill, a full disk, damaged files, a second sweep and a wrong clock do to a sweep?",
    decision_rule="Safe if over all tries no finished run is lost or written twice, every sweep that is "
    "called again ends with the bytes of an undisturbed one, and every process that cannot continue fails "
    "with one clear line.",
    run=run,
    minutes=10.0,
)
