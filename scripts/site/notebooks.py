"""The notebooks as pages: run from top to bottom, with text, tables and pictures of their outputs."""

import base64
import os
import re
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbclient import NotebookClient

TIMEOUT_SECONDS = 600
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
QUICK = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
"""Compiles in a third of the time; the kernels of smoke runs read it."""
NUM_WORKERS = 2
"""Notebooks that run at the same time; each mostly waits for one compiler thread."""
DOWNLOAD = "[Download the notebook]({name}.ipynb), or find it with `simlab list notebooks`."
COLAB = (
    "[Open in Colab](https://colab.research.google.com/github/{repository}/blob/gh-pages/notebooks/"
    "{name}.ipynb){{ .md-button }}\n\n"
)


def notebook_pages(folder: Path, out: Path, mode: str, repository: str = "") -> None:
    """Write a page, the `.ipynb` and the pictures of each notebook in `folder` to `out`.

    Args:
        folder: of the notebooks.
        out: folder of the pages.
        mode: `full` runs them, `smoke` runs them with small sizes, `none` shows code without output.
        repository: `OWNER/NAME` on GitHub whose branch gh-pages holds the site; adds a button to each page.
    """
    out.mkdir(parents=True, exist_ok=True)
    paths = sorted(folder.glob("[0-9]*.py"))
    notebooks = [jupytext.read(path) for path in paths]
    if mode != "none":
        os.environ |= {"PYTHONPATH": str(folder.parent), "JUPYTER_PREFER_ENV_PATH": "1"}
        os.environ |= {"SIMLAB_SMOKE": "1", "XLA_FLAGS": QUICK} if mode == "smoke" else {"SIMLAB_SMOKE": ""}
        with ThreadPoolExecutor(NUM_WORKERS) as pool:
            list(pool.map(run, notebooks))
    listed = []
    for path, notebook in zip(paths, notebooks, strict=True):
        text = page(notebook, path.stem, out, mode, repository)
        (out / f"{path.stem}.md").write_text(text, encoding="utf-8")
        if repository:
            install = f"%pip install -q git+https://github.com/{repository}"
            notebook.cells.insert(1, nbformat.v4.new_code_cell(install))
        nbformat.write(notebook, out / f"{path.stem}.ipynb")
        title = next(line for line in notebook.cells[0].source.splitlines() if line.startswith("# "))
        listed.append(f"- [{title[2:]}]({path.stem}.md)")
    (out / "index.md").write_text("# Notebooks\n\n" + "\n".join(listed) + "\n", encoding="utf-8")


def run(notebook: Any) -> None:
    """Run `notebook` in place, in an empty folder; raises `CellExecutionError` if a cell fails."""
    with tempfile.TemporaryDirectory() as folder:
        resources = {"metadata": {"path": folder}}
        client = NotebookClient(notebook, timeout=TIMEOUT_SECONDS, kernel_name="python3", resources=resources)
        client.startup_timeout = TIMEOUT_SECONDS
        # The kernel warns of unencrypted TCP, which stays on this machine.
        client.extra_arguments = ["--IPKernelApp.log_level=40"]
        client.execute()


def page(notebook: Any, name: str, out: Path, mode: str, repository: str = "") -> str:
    """Return the notebook as Markdown; pictures go to `out`."""
    sizes = {"full": "", "smoke": " Run with small sizes (`SIMLAB_SMOKE=1`).", "none": " Not run."}[mode]
    parts = []
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type == "markdown":
            parts.append(cell.source)
        elif cell.cell_type == "code" and cell.source.strip():
            parts.append(f"```python\n{cell.source}\n```")
            parts += [
                text
                for index, output in enumerate(cell.outputs)
                if (text := _output(output, f"{name}-{number}-{index}.png", out))
            ]
    button = COLAB.format(repository=repository, name=name) if repository else ""
    parts.insert(1, button + DOWNLOAD.format(name=name) + sizes)
    return "\n\n".join(parts) + "\n"


def _output(output: Any, picture: str, out: Path) -> str:
    if output.output_type == "stream":
        return "" if output.name == "stderr" else _plain(output.text)
    data = output.get("data", {})
    if "image/png" in data:
        (out / picture).write_bytes(base64.b64decode(data["image/png"]))
        return f"![Output of the cell above]({picture})"
    if "text/html" in data:
        table = re.sub(r"<style.*?</style>", "", data["text/html"], flags=re.DOTALL)
        return "\n".join(line.strip() for line in table.splitlines() if line.strip())
    return _plain(data.get("text/plain", ""))


def _plain(text: str) -> str:
    return f"```text\n{ESCAPE.sub('', text).rstrip()}\n```" if text.strip() else ""
