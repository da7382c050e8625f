# One line of plain commands each. Variables: PYTHON, VENV, TORCH, JOBS, LOCK, TRAINERS, ARGS. LOCK=requirements/dev.lock installs the versions it names.
PYTHON ?= python3
VENV ?= .venv
ASCEND ?= .venv-ascend
ENVIRONMENTS ?= .venv-environments
PYTHON312 ?= python3.12
TORCH ?= torch==2.13.0
JOBS ?= 3
LOCK ?=
TRAINERS ?=
BIN := $(VENV)/bin
BASE := $(VENV)/.installed
DEV := $(VENV)/.installed-dev
# Bytecode is kept whatever the shell says: hundreds of processes would compile the same files.
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder
PACKAGES := -e . -e kits/areal_torch -e kits/areal_serving -e kits/areal_agentic -e kits/areal_worker -e plugins/areal_devices -e plugins/areal_algorithms -e plugins/areal_config -e plugins/areal_local -e "plugins/areal_ray[engine]" -e "plugins/areal_tasks[gym]" -e plugins/areal_report -e plugins/areal_episodes -e plugins/areal_rollouts -e plugins/areal_renderers -e plugins/areal_sandbox -e plugins/areal_agents -e plugins/areal_environments -e plugins/areal_evaluate -e plugins/areal_supervised -e plugins/areal_trainer -e plugins/areal_hub -e plugins/areal_view \
  -e "plugins/areal_reference[engine]" -e "plugins/areal_fsdp[engine]" -e "plugins/areal_archon[engine]" -e "plugins/areal_megatron[engine]" \
  -e plugins/areal_ascend -e "plugins/areal_vllm[engine]" -e "plugins/areal_sglang[engine]" -e "conformance[engine]" -e conformance/proof
EXTRAS := -e ".[dev,docs]" -e "kits/areal_torch[images]" -e "plugins/areal_tasks[gym,hub,smollm2]" -e "plugins/areal_archon[fp8]" -e "plugins/areal_agents[test]" -e "plugins/areal_sandbox[test]" -e "plugins/areal_ray[test]"
PIN := $(if $(LOCK),--constraint $(LOCK))
ENV_TESTS := plugins/areal_environments/tests
MANIFESTS := pyproject.toml $(wildcard kits/*/pyproject.toml plugins/*/pyproject.toml) conformance/pyproject.toml conformance/proof/pyproject.toml

.PHONY: mutation mutation-all quickstart test test-runs test-slow test-long test-hostile test-cluster test-browser test-vllm test-sglang test-environments test-ascend conformance-ascend conformance-vllm conformance-sglang lint docs bench guard wheels lock conformance conformance-quick conformance-rounds clean
.DEFAULT_GOAL := quickstart

$(VENV)/pyvenv.cfg:
	$(PYTHON) -m venv $(VENV)

$(BASE): $(MANIFESTS) | $(VENV)/pyvenv.cfg
	$(BIN)/pip install --quiet $(PIN) "$(TORCH)" $(PACKAGES)
	touch $(BASE)

# One command names it all: pip looks at nothing else, and a second one would break what the first installed.
$(DEV): $(MANIFESTS) | $(VENV)/pyvenv.cfg
	$(BIN)/pip install --quiet $(PIN) "$(TORCH)" $(PACKAGES) $(EXTRAS)
	touch $(BASE) $(DEV)

quickstart: $(BASE) ## train a small model and show the curve
	$(BIN)/areal quickstart $(ARGS)

test: $(DEV) ## what takes seconds; AREAL_TEST_PROFILE=thorough draws five times as many examples
	$(PYTEST) -m "not slow and not hostile and not cluster and not gpu and not browser and not vllm and not sglang and not ascend and not environments" $(ARGS)

SLOW := $(PYTEST) -m "slow and not long and not cluster and not gpu and not browser and not vllm and not sglang and not ascend and not environments"

test-runs: $(DEV) ## whole runs, kills, one seed, no agents that learn: the part of test-slow that .ci/run makes
	$(SLOW) tests/end_to_end tests/exactly_once tests/loop_suite --ignore tests/end_to_end/test_learnt_turns.py -k "not every_seed or 1" $(ARGS)

test-slow: $(DEV) ## test-runs, every engine over several ranks, wheels in empty environments, sandboxes, comparisons with TRL: 40 minutes
	$(SLOW) $(ARGS)

test-long: $(DEV) ## a pretrained model of 135 million parameters learns on the CPU: ten minutes on two cores
	$(BIN)/python -m pytest -m long $(ARGS)

test-hostile: $(DEV) ## every way to spoil a model folder, and 500 run files changed at random: a quarter of an hour
	$(PYTEST) -m hostile $(ARGS)

test-cluster: $(DEV) ## runs on clusters of several hosts: Ray over network namespaces, a real Slurm (apt install slurmctld slurmd slurm-client munge); needs root
	$(BIN)/python -m pytest -m cluster tests/end_to_end plugins/areal_ray/tests $(ARGS)

test-browser: $(DEV) ## the pages of `areal view` in a real browser; needs chromium (apt install chromium), CHROMIUM=PATH names another one
	$(BIN)/python -m pytest -m browser plugins/areal_view/tests $(ARGS)

test-vllm: $(DEV) ## against real vLLM servers on the CPU; creates their environment first
	$(BIN)/areal env create vllm --device cpu
	$(BIN)/python -m pytest -m vllm plugins/areal_vllm/tests kits tests $(ARGS)

test-sglang: $(DEV) ## against real SGLang servers on the CPU; creates their environment first
	$(BIN)/areal env create sglang --device cpu
	$(BIN)/python -m pytest -m sglang plugins/areal_sglang/tests kits tests $(ARGS)

$(ENVIRONMENTS)/.installed: $(DEV) plugins/areal_environments/src/areal_environments/testing/packages.py
	$(BIN)/python -m areal_environments.testing $(ENVIRONMENTS) $(PYTHON312)
	touch $@

test-environments: $(ENVIRONMENTS)/.installed ## environments of verifiers, OpenEnv, Harbor, Terminal-Bench and NeMo Gym; needs Python 3.12 too, PYTHON312=PATH names it
	AREAL_ENVIRONMENTS=$(ENVIRONMENTS) $(BIN)/python -m pytest -m environments $(ENV_TESTS)/test_formats.py $(ENV_TESTS)/test_nemo_gym.py tests/docs/test_environments.py $(ARGS)
	PATH=$(abspath $(ENVIRONMENTS))/verifiers-0.3/bin:$$PATH $(ENVIRONMENTS)/verifiers-0.3/bin/python -m pytest -m environments $(ENV_TESTS)/test_verifiers_v0.py $(ENV_TESTS)/test_verifiers_v1.py $(ENV_TESTS)/test_openenv.py $(ARGS)
	PATH=$(abspath $(ENVIRONMENTS))/verifiers-0.4/bin:$$PATH $(ENVIRONMENTS)/verifiers-0.4/bin/python -m pytest -m environments $(ENV_TESTS)/test_verifiers_v1.py $(ARGS)

$(ASCEND)/.installed: $(MANIFESTS)
	$(PYTHON) -m venv $(ASCEND)
	$(ASCEND)/bin/pip install --quiet "$(TORCH)" torch-npu==2.13.0
	TORCH_DEVICE_BACKEND_AUTOLOAD=0 $(ASCEND)/bin/pip install --quiet -e ".[dev]" -e kits/areal_torch -e kits/areal_serving -e kits/areal_worker -e kits/areal_agentic -e plugins/areal_devices -e plugins/areal_algorithms -e plugins/areal_config -e plugins/areal_local -e "plugins/areal_tasks[gym]" -e plugins/areal_renderers -e plugins/areal_agents -e "plugins/areal_fsdp[engine]" -e "plugins/areal_reference[engine]" -e plugins/areal_ascend -e "plugins/areal_vllm[engine]" -e "conformance[engine]" -e conformance/proof
	touch $(ASCEND)/.installed

test-ascend: $(ASCEND)/.installed ## torch-npu itself over stand-ins for CANN and HCCL, in an environment of its own; needs a C compiler
	$(ASCEND)/bin/python -m areal_ascend.testing $(ASCEND)/bin/python -m pytest -m ascend plugins/areal_ascend/tests plugins/areal_vllm/tests $(ARGS)

conformance-ascend: $(ASCEND)/.installed ## check the NPU backend over those stand-ins; a quarter of an hour on two cores
	AREAL=$(ASCEND)/bin/areal $(ASCEND)/bin/python -m areal_ascend.testing conformance/certify.sh --npu $(ARGS)

conformance-vllm conformance-sglang: conformance-%: $(DEV) ## check a served engine and its pairs on the CPU; an hour on two cores
	$(BIN)/areal env create $* --device cpu
	AREAL=$(BIN)/areal conformance/certify.sh --engine $* $(ARGS)

conformance: $(DEV) ## the suite on its mutants, then every backend here at levels 0 to 4; renews docs/conformance/
	$(BIN)/areal conformance self-test $(ARGS)
	AREAL=$(BIN)/areal conformance/certify.sh
	$(BIN)/python tools/report_table.py docs/conformance

conformance-rounds: $(DEV) ## every reference 20 times beside a machine with twice as much to do as cores: hours; ARGS="--only 'transport-*'" for some
	$(BIN)/python tools/rounds.py --out build/rounds $(ARGS)

conformance-quick: $(DEV) ## the suite on its references and mutants, then the other backends here at levels 0 to 2; TRAINERS=fsdp for one of them
	$(BIN)/areal conformance self-test $(ARGS)
	AREAL=$(BIN)/areal TRAINERS="$(TRAINERS)" conformance/certify.sh --sharded --level 2 --out build/conformance

mutation: $(DEV) ## single edits of two workflows and two transports that the suite must notice: a sample, drawn alike every time; three minutes
	$(BIN)/python tools/mutation.py --quick --seed 18 --out build/mutation/quick $(ARGS)

mutation-all: $(DEV) ## a sample of everything that is held to checks, into docs/conformance/mutation: hours; ARGS="--seed 23" for another, "--only 'train-*'" for some
	$(BIN)/python tools/mutation.py $(ARGS)

lint: $(DEV) ## style, types, layers, no cycle, the size of the core
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports && $(BIN)/python tools/check_size.py

docs: $(DEV) ## the documentation, into site/
	$(BIN)/mkdocs build --strict

wheels: ## a wheel of every distribution, into dist/
	$(PYTHON) -m pip wheel --quiet --no-deps --wheel-dir dist $(foreach m,$(MANIFESTS),./$(dir $(m)))

lock: ## choose the newest versions of what development needs, torch and its libraries aside, and write them to requirements/dev.lock
	$(PYTHON) -m venv build/uv && build/uv/bin/pip install --quiet "uv>=0.9"
	printf -- '-e %s\n' $(filter-out -e,$(PACKAGES) $(EXTRAS)) "$(TORCH)" | sed 's/^-e torch/torch/' \
	  | build/uv/bin/uv pip compile --quiet --universal --python-version 3.11 --no-annotate --custom-compile-command "make lock" - \
	  | grep -vE '^(-e |torch==|triton==|nvidia-|cuda-)' > build/dev.lock
	mv build/dev.lock requirements/dev.lock

bench: $(DEV) ## every benchmark; figures go to benchmarks/results/
	$(BIN)/python benchmarks/run_all.py $(ARGS)

guard: $(DEV) ## has an episode become dearer for the controller than the committed figure says? half a minute
	$(BIN)/python benchmarks/guard.py $(ARGS)

clean:
	rm -rf $(VENV) $(ASCEND) $(ENVIRONMENTS) site build dist runs
