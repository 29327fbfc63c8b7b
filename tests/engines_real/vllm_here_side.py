"""vLLM in this process, simlab beside it: what a sync, a rollout and a score are off, as JSON.

Runs in vLLM's environment; the arguments are the folders where simlab and its packages lie.
"""

import json
import sys

# Behind vLLM's own packages.
sys.path += sys.argv[1:]

import jax
import numpy as np

from simlab.models import MODELS, init_params
from simlab.serving.jax_engine import JaxEngine
from simlab.serving.protocol import SamplingRequest
from simlab.serving.vllm_engine import VllmEngine
from simlab.tasks import TASKS
from simlab.tasks.vocabulary import EOS_TOKEN_ID, PAD_TOKEN_ID

if __name__ == "__main__":
    prompts, config = TASKS["add"]().prompt_set()[:8], MODELS["tiny-moe"]
    policies = [init_params(jax.random.key(seed), config) for seed in (0, 1)]
    own = JaxEngine("f32")
    own.sync_weights(config, policies[1])
    with VllmEngine(None, dtype="float32") as here:
        synced = [float(here.sync_weights(config, params)) for params in policies]
        said = here.generate(
            prompts,
            SamplingRequest(max_tokens=8, eos_token_id=EOS_TOKEN_ID, pad_token_id=PAD_TOKEN_ID, seed=5),
        )
        ours, again = own.score(prompts, said.responses), here.score(prompts, said.responses)
    apart = [np.abs(np.where(said.mask, each.logps - ours.logps, 0)).max() for each in (said, again)]
    experts = bool(np.array_equal(again.routed_experts, ours.routed_experts))
    print(json.dumps({"synced": synced, "apart": [float(each) for each in apart], "experts": experts}))
