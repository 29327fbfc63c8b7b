"""The claims of the papers: one module each, from statement to criteria and arms."""

from experiments.papers import acrl, cancel, hacking, lr, recent, tensor_cores, vexact
from simlab.studies.records import Claim

CLAIMS: dict[str, Claim] = {
    claim.id: claim
    for paper in (hacking, lr, vexact, acrl, cancel, tensor_cores, recent)
    for claim in paper.CLAIMS
}
