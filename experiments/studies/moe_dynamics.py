"""Compare MoE with dense models under the same recipe: H16 and A10."""

from experiments.papers import acrl, hacking
from experiments.studies.stages import training_experiment

EXPERIMENT = training_experiment(
    "moe_dynamics",
    "Are mixtures of experts more fragile than dense models at one noise level, and does ACRL help both?",
    (*hacking.CLAIMS, *acrl.CLAIMS),
    minutes=65.0,
    # Smoke mode has one small dense model for all arms, so the dense baseline would repeat this one.
    baseline=acrl.MOE,
    smoke=(acrl.MOE_ACRL,),
)
