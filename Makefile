PY ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test test-native lint types bench size install
demo: $(STAMP)
	@$(BIN)/polydec zoo install smollm2 --quiet
	@$(BIN)/polydec demo $(if $(PROMPTS),--prompt-file $(PROMPTS),) $(if $(JSON),--json,)

test: $(STAMP)
	$(BIN)/python -m pytest tests --cov=src/polydec/core --cov-report=term --cov-fail-under=100

test-native: $(STAMP)
	$(BIN)/python tests/native/sanitize.py

lint: $(STAMP)
	$(BIN)/ruff check src tests benchmarks

types: $(STAMP)
	$(BIN)/pyright

bench: $(STAMP)
	$(BIN)/python benchmarks/forward.py --shape smollm2 --context 64
	$(BIN)/polydec bench --methods all

size:
	@$(PY) tests/size.py

install: $(STAMP)

$(STAMP): pyproject.toml
	test -d $(VENV) || $(PY) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip
	$(BIN)/python -m pip install -q "torch==2.13.0"
	$(BIN)/python -m pip install -q -e ".[dev]"
	@touch $(STAMP)
