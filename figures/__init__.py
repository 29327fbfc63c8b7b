"""The figures: one file each, drawn from result tables alone."""

from dataclasses import dataclass


@dataclass(frozen=True)
class FigureSource:
    """Which experiment a figure reads, which module draws it (`draw(results)`), and what it shows."""

    experiment: str
    module: str
    caption: str


FIGURES: dict[str, FigureSource] = {}
