# Every target makes its own environment in .venv; nothing else of the machine is changed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORK := .cache/work
DEMO := .cache/smollm2-135m-cpu.ygg
TEST_JOBS ?= 2
PROMPT ?= Write a Python function that returns the n-th Fibonacci number.

.PHONY: demo test check ci-artifacts accept check-kernels gpu-check bench clean

demo: $(VENV)/.compile
	mkdir -p $(dir $(DEMO))
	$(BIN)/yggc build artifacts/recipes/smollm2-135m-cpu.toml --gpu cpu --work-dir $(WORK) -o $(DEMO)
	$(BIN)/yggrt run $(DEMO) --prompt "$(PROMPT)" --max-tokens 200
	@echo "next: . $(BIN)/activate; yggrt run $(DEMO)   (a chat; also yggrt inspect, verify, bench)"

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n $(TEST_JOBS) --dist loadfile --durations 25

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/zizmor --offline --quiet .github/workflows

# What the artifacts workflow does, on this machine for the smallest recipe.
ci-artifacts: $(VENV)/.dev
	.ci/rehearse

accept: $(VENV)/.dev
	$(BIN)/python tests/accept/run.py

check-kernels: $(VENV)/.dev
	$(BIN)/python -m ygg_kernels.build --check-sanitizers
	$(BIN)/python -m ygg_kernels.build --check-sanitizers --isa avx2

# With the machine's own Python, torch and triton: nothing is installed, no network is used.
gpu-check:
	mkdir -p .cache/gpu_check
	ln -sfn $(CURDIR)/kernels .cache/gpu_check/ygg_kernels
	PYTHONPATH=$(CURDIR):$(CURDIR)/.cache/gpu_check $(PYTHON) -m ygg_kernels.triton.gpu_check

bench: demo
	$(BIN)/yggrt bench $(DEMO)

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.compile: pyproject.toml | $(VENV)/bin/python
	@echo "installing torch, transformers and this project into $(VENV); some minutes"
	$(BIN)/python -m pip install -q -e '.[compile]'
	touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/bin/python
	@echo "installing torch, transformers, the test tools and this project into $(VENV); some minutes"
	$(BIN)/python -m pip install -q -e '.[dev]'
	touch $@ $(VENV)/.compile

clean:
	rm -rf $(VENV) .cache
