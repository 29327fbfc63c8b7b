"""The API reference: a page per package or module, from its public names and their docstrings."""

import inspect
import re
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from scripts.site.formulas import FORMULAS, INTRODUCTIONS
from scripts.tables import table

BAR = r"\vert "
PACKAGES = (
    "simlab",
    "simlab.formats",
    "simlab.engines",
    "simlab.models",
    "simlab.tasks",
    "simlab.rollout",
    "simlab.objectives",
    "simlab.metrics",
    "simlab.theory",
    "simlab.training.loop",
    "simlab.training.mesh",
    "simlab.sweeps",
    "simlab.studies",
    "simlab.checkpoints",
    "simlab.serving.open_engine",
    "simlab.serving.real_training",
    "simlab.serving.rewards",
    "simlab.serving.vllm_engine",
    "simlab.diagnosis",
    "simlab.integrations.export",
    "simlab.integrations.live_diagnosis",
    "simlab.integrations.trackers",
)
SECTION = re.compile(r"^(Args|Returns|Raises|Reference|Deviation|Unit|Example):[ \t]*", re.MULTILINE)


def reference_pages() -> dict[str, str]:
    """Return the files of the folder `reference` by name."""
    pages = {name: import_module(name) for name in PACKAGES}
    listed = "\n".join(
        f"- [`{name}`]({name}.md): {_summary(module.__doc__)}" for name, module in pages.items()
    )
    index = f"# API reference\n\nThe public names of each package, with their docstrings.\n\n{listed}\n"
    return {"index.md": index} | {f"{name}.md": _package(name, module) for name, module in pages.items()}


def _package(name: str, module: Any) -> str:
    parts = [f"# `{name}`", doc_text(module.__doc__)]
    if name in INTRODUCTIONS:
        parts.append(f'<div style="overflow-x: auto">${INTRODUCTIONS[name]}$</div>')
    parts += [_entry(each, getattr(module, each)) for each in public_names(module)]
    return "\n\n".join(parts) + "\n"


def public_names(module: Any) -> list[str]:
    """Return the names in `__all__`; without it, those of the functions and classes that a module defines."""
    defined = [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
    ]
    return list(getattr(module, "__all__", defined))


def _entry(name: str, value: Any) -> str:
    if isinstance(value, Mapping):
        return f"## `{name}`\n{_catalog(value, FORMULAS.get(name, {}))}"
    if inspect.isclass(value) or inspect.isroutine(value):
        methods = _methods(value) if inspect.isclass(value) else []
        return "\n\n".join([f"## `{name}`", _signature(name, value), doc_text(value.__doc__), *methods])
    text = str(value)
    return f"## `{name}`\n\n`{text if len(text) < 200 else type(value).__name__}`"


def _methods(cls: type) -> list[str]:
    public = [
        (name, each)
        for name, each in vars(cls).items()
        if not name.startswith("_") and inspect.isfunction(each) and each.__doc__
    ]
    return [f"**`{name}`** {_signature(name, each)}\n\n{doc_text(each.__doc__)}" for name, each in public]


def _signature(name: str, value: Any) -> str:
    try:
        text = str(inspect.signature(value))
    except (ValueError, TypeError):
        return ""
    # A default such as an array or a function has an address in its name.
    text = re.sub(r"<[^<>]*?( at 0x[0-9a-f]+)?>", "...", text)
    return f"```python\n{name}{text}\n```" if len(text) < 1200 else ""


def _catalog(catalog: Mapping[str, Any], formulas: Mapping[str, str]) -> str:
    rows = []
    for key, value in catalog.items():
        described = value if inspect.isroutine(value) or inspect.isclass(value) else type(value)
        text = getattr(value, "source", "") or (
            described.__module__.startswith("simlab") and described.__doc__
        )
        cells = [f"`{key}`", _summary(text or "").replace("|", "\\|")]
        if formulas:
            # In a table a bar is the end of a cell.
            cells.insert(1, f"${formulas[key].replace('|', BAR).strip()}$" if key in formulas else "")
        rows.append(" | ".join(cells))
    return table("name | formula | about" if formulas else "name | about", rows)


def _summary(text: str | None) -> str:
    return (text or "").strip().split("\n\n", 1)[0].replace("\n", " ")


def doc_text(text: str | None) -> str:
    """Return a docstring as Markdown: its sections become bold words, its arguments lists."""
    clean = inspect.cleandoc(text or "")
    clean = re.sub(r"^( {4})(\*{0,2}\w+)( \([^)]*\))?: ", r"- `\2`\3: ", clean, flags=re.MULTILINE)
    clean = re.sub(r"^ {4}>>>", "    >>>", clean, flags=re.MULTILINE)
    return SECTION.sub(lambda match: f"\n**{match[1]}:** ", clean)
