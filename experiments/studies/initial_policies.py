"""Initial policies on chains: trained on demonstrations by seed, saved if they have learned the task.

Policies from seeds differ between CPUs, so most arms load checkpoints: the files in `experiments/warm_starts`
are copies of `policies/` in the result folders of the first two experiments. Other experiments train the
policies of the third one again from its seeds.

The screen reads only the reward of float32 sampling on held-out prompts. The claims are about reduced
precision, mismatch and stability, so the screen does not read these.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
from jax import Array

from experiments.arms.chains import BF16
from experiments.arms.settings import on_chains, with_moe
from experiments.policies import CHAIN_TRAINING, MOE_TRAINING
from experiments.studies.repeated_runs import load_policies
from experiments.studies.runs import SMOKE, RunSpec, policy_folder
from simlab.core.json_value import Json
from simlab.engines import find_engine
from simlab.models.parameters import Params
from simlab.studies.arms import Arm
from simlab.studies.experiment import Experiment, ExperimentContext
from simlab.training.checkpoints import save_tree
from simlab.training.evaluation import evaluate
from simlab.training.recipe import Recipe

FIRST_SEED, POLICIES, MIN_REWARD = 100, 24, 0.2
FIRST_NEW_SEED = 136  # later than those of both models
MIN_PASS_RATE = 0.5
MAX_SEEDS = 2 * POLICIES
HELD_OUT = 64  # prompts, each with a group of 16 responses
RULE = (
    f"Train the seeds from {FIRST_SEED} on, all equally. A policy passes if float32 sampling of "
    f"{HELD_OUT} held-out prompts, 16 responses each, has a mean reward of at least {MIN_REWARD} at the end "
    f"of supervised training. The first {POLICIES} that pass are kept. The setting is rejected if fewer than "
    f"{MIN_PASS_RATE:.0%} of the seeds pass. Dense models and MoE have the same rule."
)


@jax.jit
def held_out_reward(recipe: Recipe, params: Params, key: Array) -> Array:
    """Return the mean reward of float32 sampling on `HELD_OUT` prompts that no policy is trained on."""
    return evaluate(recipe, params, find_engine("f32"), key, prompts=HELD_OUT)["avg_at_k"]


@dataclass(frozen=True)
class Screening:
    """The policies of one model.

    `place` puts an arm into its setting, `file` begins the file names, `training` is a table of `WarmStart`,
    `first_seed` is the first that is tried.
    """

    place: Callable[[Arm], Arm]
    file: str
    training: dict[str, Json]
    first_seed: int = FIRST_SEED

    def run(self, run: ExperimentContext) -> None:
        """Train seed by seed until enough policies pass; in smoke mode until one does."""
        run.configure(training=self.training, min_reward=MIN_REWARD, held_out_prompts=HELD_OUT)
        wanted = 1 if run.smoke else POLICIES
        rows: list[dict[str, Json]] = []
        for seed in range(self.first_seed, self.first_seed + MAX_SEEDS):
            rows.append(self._screen(run, seed))
            run.report(f"{self.file} {seed}: held-out reward {rows[-1]['held_out_reward']:.3f}")
            if sum(row["passed_screen"] for row in rows) == wanted:
                break
        else:
            raise ValueError(f"Fewer than {wanted} of {MAX_SEEDS} seeds learned the task: {rows}.")
        run.seeds(row["seed"] for row in rows)
        run.table("initial_policies", rows)

    def _screen(self, run: ExperimentContext, seed: int) -> dict[str, Json]:
        """Train one policy, measure its reward and save it if it passes; return its row."""
        arm = self.place(BF16)
        changes = {**arm.changes, **(SMOKE if run.smoke else {}), "seed": seed}
        changes["warm_start"] = {"seed": seed, **self.training}
        if run.smoke:
            changes["warm_start"] |= {"steps": 2, "lr_warmup_steps": 1}
        recipe, (params,) = load_policies([RunSpec(arm, self.file, seed, changes)], policy_folder(run))
        reward = float(held_out_reward(recipe, params, jax.random.key(seed)))
        passed = run.smoke or reward >= MIN_REWARD
        if passed:
            save_tree(run.out / "policies" / f"{self.file}-{seed}.npz", params)
        return {"seed": seed, "held_out_reward": reward, "passed_screen": passed}


EXPERIMENT = Experiment(
    name="initial_policies",
    question="Which initial policies on chains have learned their task?",
    decision_rule=RULE,
    run=Screening(on_chains, "chain", CHAIN_TRAINING).run,
    minutes=20.0,
    on_one_thread=True,
)
MOE_EXPERIMENT = Experiment(
    name="initial_moe_policies",
    question="Which initial policies of an MoE have learned their task?",
    decision_rule=RULE,
    run=Screening(with_moe, "chain-moe", MOE_TRAINING).run,
    minutes=70.0,
    on_one_thread=True,
)
NEW_EXPERIMENT = Experiment(
    name="new_policies",
    question="Which initial policies on chains, from seeds that no study has read, have learned their task?",
    decision_rule=RULE.replace(f"from {FIRST_SEED} on", f"from {FIRST_NEW_SEED} on"),
    run=Screening(on_chains, "chain", CHAIN_TRAINING, FIRST_NEW_SEED).run,
    minutes=20.0,
    on_one_thread=True,
)
