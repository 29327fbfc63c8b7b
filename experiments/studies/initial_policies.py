"""Initial policies on chains: trained on demonstrations by seed, saved if they have learned the task.

Policies from seeds differ between CPUs, so the arms load checkpoints: the files in `experiments/warm_starts`
are copies of `policies/` in the result folders of these two experiments.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from experiments.arms import ARMS, BF16, NONE, chain_arm, moe_arm
from experiments.studies.repeated_runs import build_diagnostics, policy_folder, start_runs
from experiments.studies.runs import SMOKE, RunSpec
from simlab.core.experiment import Experiment, Run
from simlab.models.parameters import Params
from simlab.training.checkpoints import save_tree

FIRST_SEED, POLICIES, MIN_REWARD = 4, 8, 0.2
MAX_SEEDS = 256
ROLLOUTS = 4
TRAINING: dict[str, Any] = {
    "steps": 4000,
    "batch": 16,
    "demo_error_rate": 0.02,
    "optimizer": {"learning_rate": 8e-3},
}
"""Half of the seeds learn nothing at this rate, nine of ten with an MoE. At a quarter of it most learn, but
their runs collapse without any mismatch (`LOG.md`)."""
DIAGNOSE = build_diagnostics(("reward", "mismatch"))
RULE = (
    f"Of the seeds from {FIRST_SEED} on, the first {POLICIES} pass whose first {ROLLOUTS} rollouts under "
    f"BF16 have a mean reward of {MIN_REWARD} or more, before any training run."
)


@dataclass(frozen=True)
class Screening:
    """The policies of one model: `named` returns the name of its arm, `file` begins the file names."""

    named: Callable[[str], str]
    file: str

    def run(self, run: Run) -> None:
        """Train seed by seed until enough policies pass; in smoke mode until one does."""
        run.configure(training=TRAINING)
        rows: list[dict[str, Any]] = []
        for seed in range(FIRST_SEED, FIRST_SEED + MAX_SEEDS):
            rows.append(self._screen(run, seed))
            run.report(f"seed {seed}: reward {rows[-1]['reward_bf16']:.3f} under BF16")
            if sum(row["passed_screen"] for row in rows) == (1 if run.smoke else POLICIES):
                break
        else:
            raise ValueError(f"Fewer than {POLICIES} of {MAX_SEEDS} seeds learned the task: {rows}.")
        run.seeds(row["seed"] for row in rows)
        run.table("initial_policies", rows)

    def _screen(self, run: Run, seed: int) -> dict[str, Any]:
        """Train one policy, measure its first rollouts and save it if it passes; return its row."""
        noisy, params = self._measure(run, NONE, seed)
        reward = self._measure(run, BF16, seed)[0]["reward"]
        passed = run.smoke or reward >= MIN_REWARD
        if passed:
            save_tree(run.out / "policies" / f"{self.file}-{seed}.npz", params)
        return {"seed": seed, "reward_bf16": reward, **noisy, "passed_screen": passed}

    def _measure(self, run: Run, arm: str, seed: int) -> tuple[dict[str, float], Params]:
        """Return means over the first rollouts of an arm, and the policy."""
        changes = {**ARMS[self.named(arm)].changes, **(SMOKE if run.smoke else {})}
        changes["warm_start"] = {"seed": seed, **TRAINING, **({"steps": 2} if run.smoke else {})}
        wanted = [RunSpec(arm, self.file, key, {**changes, "seed": key}) for key in range(ROLLOUTS)]
        recipe, _, states = start_runs(wanted, policy_folder(run))
        values = DIAGNOSE(recipe, states, states.params)
        policy = jax.tree.map(lambda leaf: leaf[0], states.params)
        return {name: float(value.mean()) for name, value in values.items()}, policy


EXPERIMENT = Experiment(
    name="initial_policies",
    question="Which initial policies on chains have learned their task?",
    decision_rule=RULE,
    run=Screening(chain_arm, "chain").run,
    minutes=20.0,
)
MOE_EXPERIMENT = Experiment(
    name="initial_moe_policies",
    question="Which initial policies of an MoE have learned their task?",
    decision_rule=RULE,
    run=Screening(moe_arm, "chain-moe").run,
    minutes=70.0,
)
