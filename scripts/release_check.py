"""Build wheel and sdist, check their metadata and size, and try the wheel in a fresh environment.

`make release` runs it. The environment has no checkout on its path; commands run in an empty folder.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LARGEST_MB = 50
"""Size of a wheel or sdist: 25 MB of saved policies, 16 of results, 6 of pictures; PyPI takes 100 MB."""

QUICK = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
"""XLA flags: these commands compile more than they compute."""
SMOKE = (
    "--version",
    "list notebooks",
    "sweep examples/first_sweep.toml --plan",
    "run formats --smoke",
    "figures format_error --results runs/formats-smoke",
    "figures acrl_tab2",
    "export verl examples/to_verl.toml --arm ACRL",
    "plan --model Qwen3-30B-A3B --devices 8xH100",
    "report",
    "demo --steps 4",
)
"""Commands of the README and the tutorial that need neither a checkout nor minutes."""


def build(out: Path) -> list[Path]:
    """Return the new sdist and wheel in `out`; the wheel is built from the sdist."""
    shutil.rmtree(out, ignore_errors=True)
    run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out)], ROOT)
    files = sorted(out.iterdir())
    run([sys.executable, "-m", "twine", "check", "--strict", *map(str, files)], ROOT)
    for path in files:
        megabytes = path.stat().st_size / 1e6
        print(f"{path.name}: {megabytes:.1f} MB")
        if megabytes > LARGEST_MB:
            sys.exit(f"{path.name} must be at most {LARGEST_MB} MB, got {megabytes:.1f}.")
    return files


def smoke(wheel: Path, python: str) -> None:
    """Install `wheel` with the pinned dependencies into a fresh environment of `python` and try `SMOKE`."""
    with tempfile.TemporaryDirectory() as folder:
        home, work = Path(folder) / "venv", Path(folder) / "work"
        work.mkdir()
        if python == sys.executable:
            venv.create(home, with_pip=True)
        else:
            run([python, "-m", "venv", str(home)], work)
        pip = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        run([*pip, str(wheel), "-c", str(ROOT / "requirements" / "core.txt")], work)
        for command in SMOKE:
            print(f"simlab {command}", flush=True)
            run([str(home / "bin" / "simlab"), *command.split()], work, XLA_FLAGS=QUICK)
        notebook = next((home / "lib").glob("*/site-packages/simlab/_bundle/notebooks/09_*.py"))
        run([str(home / "bin" / "python"), str(notebook)], work, SIMLAB_SMOKE="1", MPLBACKEND="agg")


def run(command: list[str], folder: Path, **variables: str) -> None:
    """Run `command` in `folder` without PYTHONPATH; exit with its output if it fails."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=600
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")


def main() -> None:
    """Build into dist/ and try the wheel."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", default=sys.executable, help="interpreter of the fresh environment")
    chosen = parser.parse_args()
    wheel = next(path for path in build(ROOT / "dist") if path.suffix == ".whl")
    smoke(wheel, shutil.which(chosen.python) or chosen.python)
    version = re.search(r"simlab-(.+?)-py3", wheel.name)
    print(f"simlab {version[1] if version else ''} works outside a checkout")


if __name__ == "__main__":
    main()
