"""Curves as text: one braille dot per sample of a column."""

from collections.abc import Mapping

import numpy as np

HEIGHT = 8
# Bits of the dots of a braille cell, by row and column.
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
MARKS = "abcdefghijklmnopqrstuvwxyz"


def chart(title: str, curves: Mapping[str, np.ndarray], width: int = 80, height: int = HEIGHT) -> str:
    """Return curves [steps] as text of `height` lines of `width` cells, each with its letter at its end."""
    known = [curve[np.isfinite(curve)] for curve in curves.values()]
    values = np.concatenate([*known, np.array([])])
    if not len(values):
        return f"{title}: nothing yet"
    low, high = float(values.min()), float(values.max())
    high = high if high > low else low + 1.0
    steps = max(len(curve) for curve in curves.values())
    cells = np.zeros((height, width), int)
    letters: dict[tuple[int, int], str] = {}
    for mark, curve in zip(MARKS * len(curves), curves.values(), strict=False):
        place = _draw(cells, curve, steps, low, high)
        if place is not None:
            letters[place] = mark
    lines = [
        "".join(letters.get((row, column)) or chr(0x2800 + cells[row, column]) for column in range(width))
        for row in range(height)
    ]
    labels = [f"{high:9.3g} ", *[" " * 10] * (height - 2), f"{low:9.3g} "]
    legend = "  ".join(f"{mark} {name}" for mark, name in zip(MARKS * len(curves), curves, strict=False))
    drawn = "\n".join(label + line for label, line in zip(labels, lines, strict=True))
    return f"{title}, steps 0 to {steps - 1}\n{drawn}\n{' ' * 10}{legend}\n"


def _draw(
    cells: np.ndarray, curve: np.ndarray, steps: int, low: float, high: float
) -> tuple[int, int] | None:
    """Set the dots of one curve; return the cell of its last point."""
    height, width = cells.shape
    last = None
    for column in range(2 * width):
        step = round(column * (steps - 1) / max(1, 2 * width - 1))
        if step < len(curve) and np.isfinite(curve[step]):
            row = round((high - curve[step]) / (high - low) * (4 * height - 1))
            cells[row // 4, column // 2] |= DOTS[row % 4][column % 2]
            last = row // 4, column // 2
    return last
