"""Paths of the checkout, its experiments, figures and results."""

import sys
from pathlib import Path

PACKAGE_ROOT = Path(__file__).resolve().parents[1]


def checkout_root() -> Path:
    """Return the folder that holds `experiments/` and `figures/`.

    In a checkout that is its root; an installed wheel has both inside the package.

    Raises:
        FileNotFoundError: If neither is there.
    """
    for root in (PACKAGE_ROOT.parent, PACKAGE_ROOT / "_bundle"):
        if (root / "experiments" / "__init__.py").is_file() and (root / "figures" / "__init__.py").is_file():
            return root
    raise FileNotFoundError(
        "experiments/ and figures/ were found neither next to the package nor inside it; "
        "install simlab from its checkout or from a built wheel"
    )


def add_checkout_to_path() -> Path:
    """Make `import experiments` and `import figures` work from anywhere; return their root."""
    root = checkout_root()
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    return root


def committed_results(name: str) -> Path:
    """Return the folder of the results of experiment `name` that are shipped with the package."""
    return checkout_root() / "experiments" / "results" / name


def find_shipped(path: Path) -> Path:
    """Return `path` if that file exists, else the shipped file of that name (`examples/first_sweep.toml`).

    Raises:
        FileNotFoundError: If neither exists.
    """
    if path.is_file():
        return path
    if not path.is_absolute() and ".." not in path.parts and (checkout_root() / path).is_file():
        return checkout_root() / path
    raise FileNotFoundError(f"no file {path}, neither here nor shipped with simlab")


def default_out(name: str, smoke: bool) -> Path:
    """Return where `simlab run` writes by default, below the working folder."""
    return Path("runs") / (f"{name}-smoke" if smoke else name)
