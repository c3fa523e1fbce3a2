# Every target sets itself up: a fresh clone and Python 3.10 or newer are enough. `make` alone lists the targets.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CONSTRAINTS := requirements/constraints.txt
INSTALL := $(BIN)/python requirements/install.py
INSTALLER := $(VENV)/.installer-installed
RUNTIME := $(VENV)/.runtime-installed
TOOLS := $(VENV)/.tools-installed
TORCH := $(VENV)/.torch-installed
DOCS := $(VENV)/.docs-installed
PACKAGE := $(VENV)/.package-installed

# Where `make docs` writes.
SITE ?= site

# Where `make demo` writes, and what `make bench` times.
DEMO_DIR ?= octavo-demo
MODEL ?= $(DEMO_DIR)/digits.int8.onnx
AGAINST ?= onnxruntime,openvino,tvm
THREADS ?= 1,2

# Test files that run at once. One that crashes its process ends the run, which says so; to go on without it would wait for ever.
JOBS ?= 2
SPREAD := --dist loadfile --no-loadscope-reorder --max-worker-restart 0

# pyright looks for a newer release of itself unless it is told not to.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

# Tests start many processes, each of which would otherwise compile Octavo's Python anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test test-avx2 programs emulation packages test-arm test-cuda torch test-torch ruff lint format docs pictures package bench clean
.DELETE_ON_ERROR:

help: ## List the targets
	@echo "usage: make TARGET [PYTHON=python3.12]"
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(RUNTIME) ## Profile, quantize, compile and run a small network on real digits; print one table
	$(BIN)/octavo demo -o $(DEMO_DIR)

# Types are checked while tests run: pyright takes one core for a minute. What it finds is told after them.
test: $(TOOLS) ruff ## Lint, check types, run every test
	@$(BIN)/pyright >$(VENV)/types & types=$$!; \
	  $(BIN)/python -m pytest --numprocesses $(JOBS) $(SPREAD); tests=$$?; \
	  wait $$types || { cat $(VENV)/types; exit 1; }; exit $$tests

# What compiles models and compares their results. Left out: what compiles none, what times peers, profiles and plans (their bytes don't
# depend on the ISA, which test_determinism.py shows in any run), memory, what is told of a model by figures, what runs on emulated GPUs,
# and the slowest, post-training quantization of MobileNetV2, whose kernels the others run too.
NOT_OF_AVX2 := benchmark_networks causes_and_searches determinism evaluated_networks exact_qdq gpu_networks large_models \
  profile_bytes quantization_quality reference_sessions speed_table
AVX2_TESTS := $(filter-out $(NOT_OF_AVX2:%=tests/e2e/test_%.py), $(wildcard tests/e2e/test_*.py)) \
  --deselect tests/e2e/test_shared_models.py::test_post_training_quantization_of_mobilenet_v2

test-avx2: $(TOOLS) ## Run end-to-end tests as on a CPU that has AVX2 and no more
	OCTAVO_TARGET=x86.avx2 $(BIN)/python -m pytest --numprocesses $(JOBS) $(SPREAD) $(AVX2_TESTS)

# Programs that tests run, each with the package of Debian and its kin that has it; elsewhere install the same by its own means.
PROGRAMS := chromium:chromium clang:clang bindgen:bindgen rustc:rustc go:golang-go valgrind:valgrind cmake:cmake pkg-config:pkg-config
EMULATION := qemu-aarch64:qemu-user aarch64-linux-gnu-gcc:gcc-aarch64-linux-gnu aarch64-linux-gnu-gcc:libc6-dev-arm64-cross \
  riscv64-linux-gnu-gcc:gcc-riscv64-linux-gnu riscv64-linux-gnu-gcc:libc6-dev-riscv64-cross
define DEBIAN
@missing=$$(for each in $(1); do command -v "$${each%%:*}" >/dev/null || echo "$${each#*:}"; done); [ -z "$$missing" ] || { \
  echo "installing" $$missing; { apt-get update && apt-get install --yes --no-install-recommends $$missing; } >/dev/null; }
endef

ARM_TESTS := $(addprefix tests/compiler/backends/cpu/kernels/, test_emulated_kernels.py test_emulated_floats.py \
  test_emulated_executables.py test_arm_machine_code.py)

# The machines of the whole sweep: every test of kernels, but for those of code for named CPUs, which need no emulator.
EMULATED ?= arm.neon arm.dotprod arm.i8mm riscv64
SWEEP := tests/compiler/backends/cpu/kernels --ignore-glob '*machine_code.py' --ignore-glob '*test_emulated*'

programs: ## Install Chromium, other compilers and valgrind; `make test` then runs the tests that need them, too
	$(call DEBIAN,$(PROGRAMS))

emulation: ## Install QEMU and the cross compilers; `make test` then runs the tests that need them, too
	$(call DEBIAN,$(EMULATION))

test-arm: $(TOOLS) emulation ## Run every test of kernels, and models, for ARM64 and RISC-V under QEMU, look at their loops
	@for machine in $(EMULATED); do echo "kernels of $$machine"; \
	  OCTAVO_EMULATE=$$machine $(BIN)/python -m pytest --numprocesses $(JOBS) $(SPREAD) $(SWEEP) || exit 1; done
	OCTAVO_OPTIMIZE=1 $(BIN)/python -m pytest --numprocesses $(JOBS) $(SPREAD) $(ARM_TESTS)

# What needs a GPU. CUDA_DIR may hold what another machine has prepared: then `python benchmarks/gpu.py run` alone does it, without TVM.
CUDA_DIR ?= build/cuda

test-cuda: $(TOOLS) ## Run the quantized networks of shared/models on this machine's GPU: bytes, times, memory; profile there
	$(BIN)/python benchmarks/gpu.py prepare $(CUDA_DIR)
	$(BIN)/python benchmarks/gpu.py run $(CUDA_DIR) --calls 10000
	$(BIN)/python -m pytest tests/compiler/backends/cuda/test_profile_on_gpu.py

torch: $(TORCH) ## Install PyTorch and transformers; `make test` then runs the tests that need them, too

test-torch: $(TORCH) ## Install PyTorch and run the tests that need it, alone
	$(BIN)/python -m pytest --numprocesses $(JOBS) $(SPREAD) tests/frontends/torch

ruff: $(TOOLS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

lint: ruff ## Ruff's rules and format, pyright strict on src
	$(BIN)/pyright

format: $(TOOLS) ## Format the code and apply ruff's safe fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(DOCS) ## Build the site into site/, every warning and broken link an error; open site/index.html
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going docs $(SITE)

# Chromium (make programs) shows the pages; times are this machine's.
pictures: $(TOOLS) ## Make the site's pictures and the outputs of its notebook anew
	$(BIN)/python benchmarks/site_pictures.py
	$(BIN)/python benchmarks/notebook.py

# The wheel in an environment with nothing of this checkout: what somebody has who installs it.
package: $(PACKAGE) ## Build sdist and wheel into dist/, check them, try the wheel in a clean environment
	rm -rf dist build/clean
	$(BIN)/python -m build --no-isolation --outdir dist . >/dev/null
	$(BIN)/twine check --strict dist/*
	$(PYTHON) -m venv build/clean
	build/clean/bin/python -m pip install --quiet --disable-pip-version-check --constraint $(CONSTRAINTS) dist/*.whl
	cd build/clean && bin/octavo --version && bin/octavo demo -o demo

bench: $(TOOLS) ## Time MODEL=m.tflite against its peers: AGAINST=litert,openvino THREADS=1,2
	@if [ "$(MODEL)" = "$(DEMO_DIR)/digits.int8.onnx" ] && [ ! -f "$(MODEL)" ]; then $(BIN)/octavo demo -o $(DEMO_DIR); fi
	$(BIN)/octavo bench $(MODEL) --against $(AGAINST) --threads $(THREADS)

clean: ## Remove the environment, caches and what the demo wrote
	rm -rf $(VENV) build dist site octavo-demo src/*.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/pip:
	@command -v $(PYTHON) >/dev/null || { echo "octavo: error: no $(PYTHON) on the PATH; name one: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "octavo: error: Python 3.10 or newer is needed, $(PYTHON) is $$($(PYTHON) --version 2>&1); name another: make PYTHON=python3.12" >&2; exit 1; }
	@echo "making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)

# The build backend comes from the constraints, too, and so does uv, without which pip installs, which takes minutes.
$(INSTALLER): $(CONSTRAINTS) | $(BIN)/pip
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint $(CONSTRAINTS) setuptools
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint $(CONSTRAINTS) uv || true
	@touch $@

$(RUNTIME): pyproject.toml $(CONSTRAINTS) | $(INSTALLER)
	@echo "installing octavo and what it runs on into $(VENV)"
	@$(INSTALL) --editable .
	@touch $@

$(TOOLS): $(RUNTIME)
	@echo "installing the test tools and the peers into $(VENV)"
	@$(INSTALL) --editable '.[test]'
	@touch $@

$(DOCS): $(RUNTIME)
	@echo "installing what builds the site into $(VENV)"
	@$(INSTALL) --editable '.[docs]'
	@touch $@

$(PACKAGE): $(RUNTIME)
	@$(INSTALL) build twine
	@touch $@

$(TORCH): $(TOOLS)
	@echo "installing PyTorch and transformers into $(VENV)"
	@$(INSTALL) --editable '.[torch,transformers]'
	@touch $@

# In one go what the rules above install one after the other.
packages: | $(INSTALLER) ## Install all packages that tests can use: test tools, peers, PyTorch, transformers and what builds the site
	@echo "installing octavo and all that its tests use into $(VENV)"
	@$(INSTALL) --editable '.[test,docs,torch,transformers]'
	@touch $(RUNTIME) $(TOOLS) $(DOCS) $(TORCH)
