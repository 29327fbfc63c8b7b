"""Every notebook runs from top to bottom in a real kernel, in smoke mode."""

from pathlib import Path

import jupytext
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
# They take a third of a minute and more.
DEAR = {
    "01_first_sweep",
    "03_precision_sweep",
    "05_collapse_autopsy",
    "06_write_your_own_objective",
    "07_real_models",
    "08_which_card",
}
NOTEBOOKS = [
    pytest.param(path, id=path.stem, marks=pytest.mark.slow if path.stem in DEAR else ())
    for path in sorted(FOLDER.glob("[0-9]*.py"))
]


@pytest.mark.parametrize("path", NOTEBOOKS)
def test_notebook_runs(path, monkeypatch, tmp_path):
    monkeypatch.setenv("SIMLAB_SMOKE", "1")
    monkeypatch.setenv("PYTHONPATH", str(FOLDER.parent))
    # Without this the kernel would use whatever is first on the PATH.
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "1")
    notebook = jupytext.read(path)
    assert any(cell.cell_type == "markdown" for cell in notebook.cells)
    NotebookClient(
        notebook, timeout=240, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
