"""A figure: the experiment that it reads, what it shows, and the kind that draws it."""

from dataclasses import dataclass, replace
from functools import cached_property

from matplotlib.figure import Figure

from figures import heading
from figures.arms import find_roles
from figures.kinds import Curves, Forest, Kind
from figures.papers import DIFFERS
from simlab.core.results import Results
from simlab.studies.loading import load_claims
from simlab.studies.records import arms_of, trials_of


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

    @cached_property
    def complete_kind(self) -> Kind:
        """The kind with the arms of the criteria of its claims, where it names none, and with their roles."""
        if not isinstance(self.kind, Curves | Forest):
            return self.kind
        claims = [load_claims()[claim] for claim in self.claims]
        kind = self.kind.with_arms([arm.id for arm in arms_of(trials_of(claims, self.experiment))])
        return replace(kind, roles=find_roles(self.experiment)) if isinstance(kind, Curves) else kind

    def draw(self, results: Results) -> Figure:
        """Draw the figure from the results of its experiment, under its finding, title and setting.

        Raises:
            ValueError: if the results lack arms of the figure and are not those of a smoke run.
        """
        kind = self.complete_kind
        if kind.arms and isinstance(results, Results) and not results.manifest["config"].get("smoke"):
            missing = set(kind.arms) - set(results.table("runs")["arm"])
            if missing:
                raise ValueError(
                    f"Results of {self.experiment} must hold all arms of the figure, got none of "
                    f"{sorted(missing)}. Run the experiment to its end."
                )
        rows = heading.find_rows(results, self.experiment, self.claims, self.decided_by)
        figure = kind.draw(results, heading.find_level(rows))
        shown = f"{self.paper}: {self.title}" if self.paper else self.title
        setting = heading.describe_setting(results, self.experiment, kind.arms)
        finding = heading.state_finding(rows[0]) if rows else ""
        labels = kind.labels if isinstance(kind, Curves) else {}
        heading.add_heading(figure, finding, shown, [setting, *heading.state_estimates(rows, labels)])
        return figure
