# Two commands on a fresh machine: `make demo` and `make test`. Each builds .venv from pinned versions first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/pytest
# Compiling every module at installation takes longer than compiling those that are imported.
PIP := $(BIN)/python -m pip install -q --no-compile --disable-pip-version-check
# Many container images set it. Tests start hundreds of processes; each would compile all modules, for 3 s.
unexport PYTHONDONTWRITEBYTECODE
# All stored results but policies: those from seeds differ between CPUs. held_out_gap reads the others.
RESULTS = $(filter-out cache %_policies held_out_gap $(GPU_RESULTS),$(notdir $(wildcard experiments/results/*))) \
	held_out_gap

# Made on a GPU: two need one, the others would take a day without.
GPU_RESULTS := real_card bench_gpu e4m3_dynamics e4m3_moe_dynamics

.PHONY: help demo results test tests check test-slow docs release environments test-engines equations lock clean
help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

# Pinned by version and by Python; pip alone is enough, and the stamp makes a second call free.
$(VENV)/.core: requirements/core.txt requirements/build.txt pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -r requirements/core.txt -r requirements/build.txt
	$(PIP) --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.test: requirements/test.txt $(VENV)/.core
	$(PIP) -r requirements/test.txt
	@touch $@

$(VENV)/.docs: requirements/docs.txt $(VENV)/.test
	$(PIP) -r requirements/docs.txt
	@touch $@

demo: $(VENV)/.core  ## run the main job on CPU and draw its figures (under 5 minutes after installation)
	$(BIN)/simlab run formats
	$(BIN)/simlab run softmax
	$(BIN)/simlab run flagship_sweep
	$(BIN)/simlab figures format_error softmax_levels softmax_placements softmax_spread softmax_real flagship_sweep

results: environments  ## re-make the results and figures shipped with the package (a day and a half; commit first)
	$(PIP) --no-build-isolation -e '.[peers]' # bench_step and bench_quantize compare with them
	for name in $(RESULTS); do $(BIN)/simlab run $$name --out experiments/results/$$name || exit 1; done
	$(BIN)/simlab figures --results experiments/results --out figures/out

test: $(VENV)/.test  ## the core checks: lint, types, layers and tests (9 minutes with an empty cache)
	$(MAKE) -j 2 check tests

tests: $(VENV)/.test
	$(PYTEST) -n 2 --dist loadfile --no-loadscope-reorder -m "not slow and not engines"

check: $(VENV)/.test  ## lint, types, layers, generated files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/python scripts/equations.py --check
	$(BIN)/python -m scripts.readme --check

test-slow: $(VENV)/.test  ## the longer checks
	$(PYTEST) -n 3 --dist loadgroup -m "slow and not engines" # many wait for processes that they start

NOTEBOOKS ?= full
docs: $(VENV)/.docs  ## build the site in build/site and check its links; NOTEBOOKS=smoke: small sizes; REPOSITORY=owner/name: Colab
	$(BIN)/python -m scripts.site.build --notebooks $(NOTEBOOKS) --repository "$(REPOSITORY)"

release: $(VENV)/.docs  ## build wheel and sdist in dist/, check them, run the wheel outside the checkout
	$(BIN)/python scripts/release_check.py

environments: $(VENV)/.test  ## build the environments of the third-party packages
	for name in verl trl hf vllm llamacpp browser ray rewards cuda; do $(BIN)/python scripts/make_env.py $$name || exit 1; done

test-engines: environments  ## checks against large third-party packages, each in its own environment
	$(PYTEST) -n 2 --dist loadfile -m engines

equations: $(VENV)/.test  ## regenerate EQUATIONS.md
	$(BIN)/python scripts/equations.py

lock:  ## re-pin requirements/ (needs uv)
	$(BIN)/python -m pip install -q uv
	printf 'editables\nhatchling\n' | $(BIN)/uv pip compile - --universal -q --no-header -o requirements/build.txt
	$(BIN)/uv pip compile pyproject.toml --universal -q -o requirements/core.txt
	$(BIN)/uv pip compile pyproject.toml --extra test --universal -q -o requirements/test.txt

clean:  ## remove what the commands made
	rm -rf $(VENV) .cache runs .pytest_cache .ruff_cache
