"""A figure: the experiment that it reads, what it shows, and the kind that draws it."""

from dataclasses import dataclass

from matplotlib.figure import Figure

from figures import heading
from figures.kinds import Curves, Kind
from figures.papers import DIFFERS
from simlab.core.results import Results


@dataclass(frozen=True)
class FigureSpec:
    """A figure of an experiment.

    Args:
        experiment: the experiment whose result tables the figure reads.
        title: what it shows, without a finding: that is on the board.
        kind: how it is drawn.
        paper: the figure or table of a paper that it corresponds to, such as `hacking Fig. 2`.
        claims: ids of the claims that the figure is about; its heading states the first that is decided.
        decided_by: the experiment that decides these claims, if it is another one.
    """

    experiment: str
    title: str
    kind: Kind
    paper: str = ""
    claims: tuple[str, ...] = ()
    decided_by: str = ""

    @property
    def caption(self) -> str:
        """The title, the meaning of lines, dots and bars, and how the figure differs from the paper's."""
        lacks = f" Differs from the paper: {DIFFERS[self.paper]}." if self.paper in DIFFERS else ""
        return f"{self.title}. {self.kind.encoding}{lacks}".rstrip(" .")

    def draw(self, results: Results) -> Figure:
        """Draw the figure from the results of its experiment, under its finding, title and setting."""
        rows = heading.find_rows(results, self.experiment, self.claims, self.decided_by)
        figure = self.kind.draw(results, heading.find_level(rows))
        shown = f"{self.paper}: {self.title}" if self.paper else self.title
        setting = heading.describe_setting(results, self.experiment, self.kind.arms)
        finding = heading.state_finding(rows[0]) if rows else ""
        labels = self.kind.labels if isinstance(self.kind, Curves) else {}
        heading.add_heading(figure, finding, shown, [setting, *heading.state_estimates(rows, labels)])
        return figure
