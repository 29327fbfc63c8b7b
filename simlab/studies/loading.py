"""The one loader of experiments and of the claims that their papers make.

simlab contains no texts of claims: `experiments` and `experiments.papers` list them.
"""

from collections.abc import Mapping
from dataclasses import replace

from simlab.core.catalog import lookup
from simlab.core.plugins import import_from_checkout
from simlab.studies.experiment import Experiment
from simlab.studies.records import Claim
from simlab.studies.registration import register


def load_claims() -> Mapping[str, Claim]:
    """Return all claims by id, paper by paper."""
    return import_from_checkout("experiments.papers").CLAIMS


def load_papers() -> tuple[str, ...]:
    """Return the short names of the papers in their order, then those of other sources of claims."""
    return tuple(dict.fromkeys(claim.paper for claim in load_claims().values()))


def load_experiments() -> dict[str, Experiment]:
    """Return all experiments by name, in the order in which the board reads them."""
    return {name: _register(name, _load(where)) for name, where in _catalog().items()}


def load_experiment(name: str) -> Experiment:
    """Return the experiment `name`; `ValueError` lists the names there are."""
    return _register(name, _load(lookup(_catalog(), name, "experiment")))


def find_figures(experiment: str) -> tuple[str, ...]:
    """Return the names of the figures that read the results of an experiment, in the order of the catalog."""
    catalog = import_from_checkout("figures.catalog").FIGURES
    return tuple(name for name, row in catalog.items() if row.experiment == experiment)


def _catalog() -> Mapping[str, str]:
    return import_from_checkout("experiments").EXPERIMENTS


def _load(where: str) -> Experiment:
    module, _, attribute = where.partition(":")
    return getattr(import_from_checkout(module), attribute or "EXPERIMENT")


def _register(name: str, experiment: Experiment) -> Experiment:
    """Return the experiment with the hashes of its criteria, which its run writes into the manifest."""
    if not experiment.claims:
        return experiment
    registered = register(list(load_claims().values()), name)
    return replace(experiment, registered={**registered, **experiment.registered})
