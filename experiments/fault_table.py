"""Sweeps under faults: kills at random moments, full disks, files that rot, clocks that turn.

Every fault strikes a small sweep, which is then called again. Nothing may be lost (a finished run that is
gone), nothing computed twice (a finished run that is written again), the tables have to end with the bytes of
a sweep that nobody disturbed, and where a fault keeps the sweep from going on, it has to say so in one line.
"""

import itertools
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simlab.core.experiment import Experiment, Run
from simlab.sweeps import sweep
from simlab.sweeps.store import DamagedError

WIDTH = 4
BASE: dict[str, Any] = {
    "engines": {"name": "f32/f32", "infer": {"residual": "e5m2"}},
    "objective": "grpo",
    "task": {"name": "sort", "difficulty": 2, "train_size": 64, "held_out_size": 16},
    "model": {
        "name": "tiny-dense",
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
    },
    "optimizer": {"learning_rate": 0.01},
    "extra_terms": {"entropy": 0.1},
    "prompts": 2,
    "group_size": 2,
    "minibatches": 1,
}
OBJECTIVES = ("grpo", "gspo", "grpo+tis")
STEPS, SEEDS = (400, 40), (8, 4)  # of a full run and of a smoke run
TRIES = {
    "kill -9 at a random moment": (50, 1),
    "disk full": (6, 1),
    "folder that cannot be written": (4, 1),
    "result file damaged": (12, 3),
    "checkpoint damaged": (4, 1),
    "two sweeps in one folder": (4, 1),
    "clock going backwards": (4, 1),
}
COMMAND = "import sys; from simlab.cli import main; main()"
# Every look at the clock goes back by an hour more.
BACKWARDS = """
import itertools, time
real, back = time.time_ns, itertools.count(1)
time.time_ns = lambda: real() - next(back) * 3600 * 10**9
time.time = lambda: time.time_ns() / 1e9
"""


@dataclass
class Count:
    """What a fault did, over all tries."""

    fault: str
    tries: int = 0
    lost: int = 0
    written_twice: int = 0
    other_bytes: int = 0
    stopped: int = 0
    clear_errors: int = 0
    said: str = ""

    def saw(self, said: str) -> None:
        """Note what a process that could not go on has said last; clear is one line, without a traceback."""
        self.stopped += 1
        self.clear_errors += said.startswith("simlab: ") and "\n" not in said.strip()
        self.said = said.strip()[-1000:]


@dataclass
class Bench:
    """A place where sweeps are started, disturbed and compared with one that was not."""

    root: Path
    steps: int
    seeds: int
    moments: random.Random = field(default_factory=lambda: random.Random(0))
    folders: int = 0
    seconds: float = 0.0

    def __post_init__(self):
        """Make the sweep that nobody disturbs, in a process of its own, whose time is then known."""
        lines = [f"width = {WIDTH}", "[base]", f"steps = {self.steps}"]
        lines += [f"{name} = {_toml(value)}" for name, value in BASE.items() if name != "objective"]
        over = {"objective": list(OBJECTIVES), "seed": list(range(self.seeds))}
        lines += ["[over]", *(f"{name} = {_toml(values)}" for name, values in over.items())]
        (self.root / "sweep.toml").write_text("\n".join(lines))
        self.again(self.folder())  # compiles, and keeps the program for the others
        self.whole = self.folder()
        start = time.perf_counter()
        said = self.start(self.whole).communicate()[1]
        if not (self.whole / "manifest.json").is_file():
            raise RuntimeError(f"the sweep does not run by itself: {said}")
        self.seconds = time.perf_counter() - start

    def folder(self) -> Path:
        """Return a new place."""
        self.folders += 1
        return self.root / f"sweep{self.folders}"

    def start(self, out: Path, before: str = "", file_size: int = 0, workers: int = 0) -> subprocess.Popen:
        """Start the sweep in a process of its own, after `before`, with a limit to the size of its files."""
        if file_size:
            before += f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({file_size},) * 2)\n"
        options = ["--out", str(out), "--workers", str(workers), "--checkpoint", "0", "--yes"]
        return subprocess.Popen(
            [sys.executable, "-c", before + COMMAND, "sweep", str(self.root / "sweep.toml"), *options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def again(self, out: Path) -> None:
        """Call the sweep again, in this process, where nothing is compiled twice."""
        over = {"objective": list(OBJECTIVES), "seed": range(self.seeds)}
        sweep(BASE | {"steps": self.steps}, over, out, width=WIDTH, workers=0, name="sweep")


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {_toml(inner)}" for name, inner in value.items()) + " }"
    return json.dumps(value)


def finished(folder: Path) -> dict[str, tuple[int, int]]:
    """Return what identifies the record of every finished run: its file and when that was written."""
    found = {}
    for path in (folder / "store").glob("[0-9a-f]*.json"):
        about = path.stat()
        found[path.stem] = about.st_ino, about.st_mtime_ns
    return found


def content(folder: Path) -> dict[str, bytes]:
    """Return everything that a sweep leaves but its manifest."""
    paths = [*folder.glob("*.parquet"), *(folder / "store").glob("[0-9a-f]*"), *folder.glob("unfinished/*")]
    return {path.name: path.read_bytes() for path in paths}


def compare(count: Count, before: dict[str, tuple[int, int]], folder: Path) -> None:
    """Note what became of the runs that were finished before."""
    after = finished(folder)
    count.lost += len(before.keys() - after.keys())
    count.written_twice += sum(after[key] != about for key, about in before.items() if key in after)


def whole(bench: Bench, count: Count, folder: Path) -> None:
    """Let the sweep end and compare its bytes with those of the one that nobody disturbed."""
    before = finished(folder)
    bench.again(folder)
    compare(count, before, folder)
    expected, actual = content(bench.whole), content(folder)
    count.lost += len(expected.keys() - actual.keys())
    count.other_bytes += sum(actual.get(name, data) != data for name, data in expected.items())
    count.other_bytes += len(actual.keys() - expected.keys())
    shutil.rmtree(folder)


def kills(bench: Bench, count: Count, tries: int) -> Iterator[dict[str, Any]]:
    """Kill sweeps at moments anywhere between their start and their end; a row per kill.

    A sweep that ends before its moment, since it had less to do than a whole one, is a row and no try.
    """
    folder = bench.folder()
    for number in itertools.takewhile(lambda _: count.tries < tries, itertools.count()):
        before = finished(folder)
        process = bench.start(folder)
        moment = bench.moments.random() * bench.seconds
        time.sleep(moment)
        process.kill()
        process.communicate()
        count.tries += process.returncode != 0
        compare(count, before, folder)
        done = len(finished(folder))
        yield {
            "kill": number,
            "seconds": moment,
            "finished_before": len(before),
            "finished_after": done,
            "unfinished": len(list(folder.glob("unfinished/[0-9a-f]*.npz"))),
            "ended_by_itself": process.returncode == 0,
        }
        if done == len(OBJECTIVES) * bench.seeds:
            whole(bench, count, folder)
            folder = bench.folder()
    whole(bench, count, folder)


def full_disk(bench: Bench, count: Count, tries: int) -> None:
    """Let files grow to so many bytes and no further; every second time in processes of their own."""
    largest = max(path.stat().st_size for path in (bench.whole / "store").iterdir())
    for number in range(tries):
        folder = bench.folder()
        size = bench.moments.randint(1_000, largest)
        process = bench.start(folder, file_size=size, workers=number % 2 * 2)
        said = process.communicate()[1]
        count.tries += 1
        if process.returncode:
            count.saw(_last_line(said))
        whole(bench, count, folder)


def not_writable(bench: Bench, count: Count, tries: int) -> None:
    """Name folders that nobody may write, not even the superuser."""
    for number in range(tries):
        process = bench.start(Path(("/proc/simlab", "/sys/simlab")[number % 2]))
        said = process.communicate()[1]
        count.tries += 1
        count.saw(_last_line(said))


def _last_line(said: str) -> str:
    """Return the whole text if it has a traceback, else its last line."""
    return said if "Traceback" in said else (said.strip().splitlines() or [""])[-1]


def cut(data: bytes, moments: random.Random) -> bytes:
    """Return the beginning of a file."""
    return data[: moments.randrange(len(data))]


def flipped(data: bytes, moments: random.Random) -> bytes:
    """Return a file with one bit that is another."""
    place = moments.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << moments.randrange(8)]) + data[place + 1 :]


DAMAGES: tuple[Callable[[bytes, random.Random], bytes], ...] = (flipped, cut)


def damaged_results(bench: Bench, count: Count, tries: int) -> None:
    """Damage a file of a finished run; do what the error says, and nothing else is computed again."""
    kinds = ("json", "steps.parquet", "vectors.parquet")
    for number in range(tries):
        folder = bench.folder()
        shutil.copytree(bench.whole, folder)
        path = bench.moments.choice(sorted((folder / "store").glob(f"[0-9a-f]*.{kinds[number % 3]}")))
        path.write_bytes(DAMAGES[number % 2](path.read_bytes(), bench.moments))
        count.tries += 1
        try:
            bench.again(folder)
        except DamagedError as error:
            count.saw(f"simlab: {error}")
        (folder / "store" / f"{path.name.split('.')[0]}.json").unlink()
        whole(bench, count, folder)


def damaged_checkpoints(bench: Bench, count: Count, tries: int) -> None:
    """Damage a checkpoint of a killed sweep: its run alone begins anew."""
    for number in range(tries):
        folder = bench.folder()
        process = bench.start(folder)
        while not (kept := list(folder.glob("unfinished/[0-9a-f]*.npz"))) and process.poll() is None:
            time.sleep(0.01)
        process.kill()
        process.communicate()
        count.tries += 1
        for path in kept[:1]:
            path.write_bytes(DAMAGES[number % 2](path.read_bytes(), bench.moments))
        whole(bench, count, folder)


def two_sweeps(bench: Bench, count: Count, tries: int) -> None:
    """Start the same sweep twice at the same time; a record that is replaced was computed twice."""
    for _ in range(tries):
        folder = bench.folder()
        processes = [bench.start(folder), bench.start(folder)]
        seen: dict[str, tuple[int, int]] = {}
        while any(process.poll() is None for process in processes):
            now = finished(folder)
            count.written_twice += sum(now.get(key) != about for key, about in seen.items())
            seen = now
            time.sleep(0.02)
        for process in processes:
            said = process.communicate()[1]
            if process.returncode:
                count.saw(_last_line(said))
        count.tries += 1
        whole(bench, count, folder)


def clock(bench: Bench, count: Count, tries: int) -> None:
    """Kill a sweep half way, and go on in a process whose clock only goes back."""
    for _ in range(tries):
        folder = bench.folder()
        for before, seconds in ((BACKWARDS, 0.6 * bench.seconds), (BACKWARDS, None)):
            process = bench.start(folder, before)
            try:
                said = process.communicate(timeout=seconds)[1]
            except subprocess.TimeoutExpired:
                process.kill()
                said = process.communicate()[1]
        count.tries += 1
        if process.returncode:
            count.saw(_last_line(said))
        whole(bench, count, folder)


FAULTS: dict[str, Callable[[Bench, Count, int], None]] = {
    "disk full": full_disk,
    "folder that cannot be written": not_writable,
    "result file damaged": damaged_results,
    "checkpoint damaged": damaged_checkpoints,
    "two sweeps in one folder": two_sweeps,
    "clock going backwards": clock,
}


def run(run: Run) -> None:
    tries = {fault: counts[run.smoke] for fault, counts in TRIES.items()}
    run.configure(base=BASE, tries=tries, steps=STEPS[run.smoke], width=WIDTH)
    run.seeds([0])
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), STEPS[run.smoke], SEEDS[run.smoke])
        run.say(f"undisturbed: {bench.seconds:.1f} s")
        (killed, number), *others = tries.items()
        count = Count(killed)
        with run.phase(killed):
            run.table("kills", list(run.track(kills(bench, count, number), killed, number)))
        counts = [count]
        for fault, number in run.track(others, "other faults"):
            counts.append(Count(fault))
            with run.phase(fault):
                FAULTS[fault](bench, counts[-1], number)
    run.table("faults", [vars(count) for count in counts])
    for count in counts:
        run.say(
            f"{count.fault}: {count.tries} tries, {count.lost} lost, {count.written_twice} twice, "
            f"{count.other_bytes} with other bytes, {count.clear_errors} of {count.stopped} stops clear"
        )


EXPERIMENT = Experiment(
    name="fault_table",
    question="What do a kill, a full disk, rotten files, a second sweep and a wrong clock do to a sweep?",
    decision_rule="Safe if over all tries no finished run is lost or written twice, every sweep that is "
    "called again ends with the bytes of an undisturbed one, and every process that cannot go on says why in "
    "one line.",
    run=run,
    minutes=10.0,
)
