"""Training: recipe and state, the step `learn(rollout(state))`, the loop, warm starts."""
