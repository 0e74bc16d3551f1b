# make setup | all | test | ui | clean      (PYTHON=…, CORES=…, STUDY=… may be given)
PYTHON ?= python3.11
CORES ?= 2
STUDY ?= config.yaml
BIN := .venv/bin
# A machine with an NVIDIA driver gets the CUDA builds of torch and vLLM, any other one the CPU builds.
FLAVOUR ?= $(if $(shell command -v nvidia-smi),gpu,cpu)
LOCK := requirements/$(FLAVOUR).lock

.PHONY: setup all figures test lint ui clean lock

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
