"""Every notebook runs from top to bottom in a real kernel, in smoke mode."""

from pathlib import Path

import jupytext
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("[0-9]*.py"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
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
