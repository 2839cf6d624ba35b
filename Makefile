# Two commands do everything: make demo, make test. Both create .venv and install into it what they need.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test lint docs release clean

demo: $(VENV)/.demo
	$(BIN)/python examples/demo.py

test: $(VENV)/.test
	$(BIN)/python -m pytest --numprocesses auto --dist loadscope --no-loadscope-reorder

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tests/house/long_files.py

docs: $(VENV)/.docs
	$(BIN)/python -m sphinx -W --keep-going -q -j auto -b html docs docs/_build

# the files of a release: built, checked, and each installed into an environment of its own
release:
	rm -rf dist build/release && $(PYTHON) -m venv build/release
	build/release/bin/python -m pip install --quiet build twine
	build/release/bin/python -m build --outdir dist .
	build/release/bin/python -m twine check --strict dist/*
	$(PYTHON) tests/house/wheel.py dist/*.whl
	for file in dist/*; do \
		rm -rf build/installed && $(PYTHON) -m venv build/installed && \
		build/installed/bin/python -m pip install --quiet "$$(grep '^torch==' constraints.txt)" && \
		build/installed/bin/python -m pip install --quiet "$$file[cli]" && \
		(cd build/installed && bin/fathomless --version && bin/fathomless demo --out demo) || exit 1; \
	done

clean:
	rm -rf $(VENV) build dist docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# torch first, and pinned: a bare requirement may pull a build of several gigabytes
$(VENV)/.torch: constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet "$$(grep '^torch==' constraints.txt)"
	@touch $@

$(VENV)/.demo $(VENV)/.test $(VENV)/.dev $(VENV)/.docs: $(VENV)/.%: pyproject.toml constraints.txt $(VENV)/.torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[$*]"
	@touch $@
