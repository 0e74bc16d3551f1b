# make setup | all | test | ui | clean      (PYTHON=…, CORES=…, STUDY=… may be given)
PYTHON ?= python3.11
CORES ?= 2
STUDY ?= config.yaml
BIN := .venv/bin
# A machine with an NVIDIA driver gets the CUDA builds of torch and vLLM, any other one the CPU builds.
FLAVOUR ?= $(if $(shell command -v nvidia-smi),gpu,cpu)
LOCK := requirements/$(FLAVOUR).lock

.PHONY: setup all figures test test-slurm lint ui docs publish clean schema lock

setup: .venv/.$(FLAVOUR)-ready

# The lock is complete, so nothing is resolved again (--no-deps). torch comes first and by itself: the CPU build
# has an index of its own, which is asked once and may be out of reach.
.venv/.$(FLAVOUR)-ready: $(LOCK) pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-deps --retries 1 "$$(grep '^torch==' $(LOCK))" \
	    $(if $(filter cpu,$(FLAVOUR)),--extra-index-url https://download.pytorch.org/whl/cpu)
	$(BIN)/python -m pip install --quiet --no-deps --progress-bar off -r $(LOCK)
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	touch $@

# The whole study: data, start models, training, evaluation, figures, MLflow. What is done already is not done again.
all: setup
	$(BIN)/snakemake --cores $(CORES) --configfile $(STUDY) -- all

figures: setup
	$(BIN)/snakemake --cores $(CORES) --configfile $(STUDY) -- figures

# Everything that CI holds: style, types, workflow lint, unit and property tests, the whole pipeline on a small study.
test: setup lint
	$(BIN)/python -m pytest -n $(CORES) --dist loadfile --no-loadscope-reorder

# `snakemake --profile slurm` on a SLURM that the tests start themselves (Debian's slurmctld, slurmd, slurm-client, munge).
test-slurm: setup
	$(BIN)/python -m pytest -m slurm tests/workflow/test_slurm.py

lint: setup
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/mypy
	$(BIN)/snakefmt --check Snakefile workflow
	$(BIN)/snakemake --lint

# MLflow in the browser: http://127.0.0.1:5000
ui: setup
	MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false $(BIN)/mlflow ui --host 127.0.0.1 \
	    --backend-store-uri $${MLFLOW_TRACKING_URI:-sqlite:///results/mlflow.db}

# The documentation as a site, in site/.
docs: setup
	$(BIN)/mkdocs build --quiet

# The laptop study's figures and tables as the documentation shows them; nothing there is written by hand.
publish:
	mkdir -p docs/figures
	cp results/laptop/figures/*.png docs/figures/
	for table in results ablation claims; do \
	  { echo "# The laptop study: $$table"; echo; \
	    echo "Copied by \`make publish\` from \`results/laptop/tables/$$table.md\`, which \`make all\` makes."; \
	    $(BIN)/policygrain check --config results/laptop/study.yaml; echo; \
	    cat results/laptop/tables/$$table.md; } >docs/$$table.md; \
	done

# Removes results; the environment stays (rm -r .venv removes it too).
clean:
	rm -rf results/*/ results/mlflow.db .snakemake

# After a change of the study's keys or of the registry of problem sets: what editors and the documentation know of them.
schema: setup
	$(BIN)/policygrain schema >workflow/schemas/study.schema.json
	$(BIN)/policygrain schema --markdown >docs/configuration.md
	$(BIN)/policygrain data list --markdown >docs/benchmarks.md

# After a change of pins in pyproject.toml (needs uv).
lock:
	requirements/lock.sh
