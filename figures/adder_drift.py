"""Long runs whose engines differ in their adders alone."""

from matplotlib.figure import Figure

from figures.arms import ENTROPY, MISMATCH, REWARD, draw_panels
from simlab.core.results import Results


def draw(results: Results) -> Figure:
    """Reward, mismatch and entropy; an arm without mismatch has no curve on the logarithmic axis."""
    return draw_panels(results, results.manifest["config"]["arms"], (REWARD, MISMATCH, ENTROPY))
