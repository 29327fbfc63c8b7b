"""Long runs whose engines differ in their adders alone."""

from dataclasses import replace

from matplotlib.figure import Figure

from figures.arms import ENTROPY, MISMATCH, REWARD, draw_panels
from simlab.core.results import Results

SHOWN = replace(MISMATCH, log=True, limits=(1e-9, 1))


def draw(results: Results) -> Figure:
    """Reward, mismatch and entropy; the arm without mismatch has no curve on the logarithmic axis."""
    return draw_panels(results, results.manifest["config"]["arms"], (REWARD, SHOWN, ENTROPY))
