"""Build the environment of one third-party framework: `python scripts/make_env.py verl`, or another name.

It lands in `.cache/venvs/<name>` of the checkout, from `requirements/<name>.txt`, and is kept until that
file, one that it names, or the Python version changes. The last line printed is the path of its interpreter.
See requirements/README.md.
"""

import argparse
import hashlib
import platform
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NAMES = ("verl", "trl", "hf", "vllm", "llamacpp", "browser", "ray", "rewards", "peers", "cuda")


def environment(name: str) -> Path:
    """Return the interpreter of the environment `name`, built now if it is not there.

    Raises `subprocess.CalledProcessError` with pip's output in `output` when the installation fails.
    """
    requirements = ROOT / "requirements" / f"{name}.txt"
    home = ROOT / ".cache" / "venvs" / name
    stamp = home / "built-from"
    written = b"".join(path.read_bytes() for path in _files(requirements))
    key = f"{platform.python_version()} {hashlib.sha256(written).hexdigest()}"
    python = home / "bin" / "python"
    if not (stamp.is_file() and stamp.read_text() == key):
        shutil.rmtree(home, ignore_errors=True)
        venv.create(home, with_pip=True)
        pins = requirements.read_text().splitlines()
        # torch first and with its own dependencies, which differ between the CPU and the CUDA builds; the
        # file names everything else, and verl itself would ask for packages that only a GPU machine has.
        torch = [pin for pin in pins if pin.startswith("torch==")]
        if torch:
            _pip(python, *torch)
        _pip(python, "--no-deps", "-r", str(requirements))
        stamp.write_text(key)
    return python


def _files(requirements: Path) -> list[Path]:
    """Return a file of pins, and those that it names."""
    named = [line.split()[1] for line in requirements.read_text().splitlines() if line.startswith("-r ")]
    return [requirements, *(path for name in named for path in _files(requirements.with_name(name)))]


def _pip(python: Path, *arguments: str) -> None:
    # Python compiles the modules that the tests import; all of them would take half a minute for torch alone.
    command = [str(python), "-m", "pip", "install", "--quiet", "--no-compile", *arguments]
    subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def main() -> None:
    """Build the environment named on the command line; exit with pip's output when that fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=NAMES)
    try:
        print(environment(parser.parse_args().name))
    except subprocess.CalledProcessError as error:
        sys.exit(f"{' '.join(error.cmd)} failed:\n{error.output}")


if __name__ == "__main__":
    main()
