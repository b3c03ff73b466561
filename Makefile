# worldsize: `make run` shows it, `make test` checks it; both set themselves up.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.installed
LONG   ?= long

.PHONY: run test test-long lint docs bench bench-projection bench-coverage bench-reruns clean

run: $(READY)
	@$(BIN)/worldsize run

# Real launches need the cores for themselves; the other tests share them.
test: $(READY)
	$(BIN)/python -m pytest -m "not long" -n 2 --dist loadfile tests/unit tests/worker
	$(BIN)/python -m pytest -m "not long" tests/system

test-long: $(READY)
	@echo "make test-long needs the data sets in \$$WORLDSIZE_DATA (or beside the checkout), root, iproute2, chromium, slurm-wlm, munge, openmpi-bin, pdflatex"
	$(BIN)/python -m pytest -m "$(LONG)" tests

lint: $(READY)
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

# The site, in site/: every page in the navigation, every link and anchor checked.
docs: $(READY)
	$(BIN)/mkdocs build --strict

bench: $(READY)
	$(BIN)/python -m tests.bench
	$(BIN)/python -m tests.bench.decode
	$(BIN)/python -m tests.bench.spans
	$(BIN)/python -m tests.bench.report
	$(BIN)/python -m tests.bench.adaptive

bench-projection: $(READY)
	$(BIN)/python -m tests.bench.projection

bench-reruns: $(READY)
	$(BIN)/python -m tests.bench.reruns "$$(mktemp -d)"

bench-coverage: $(READY)
	$(BIN)/python -m tests.bench.coverage

clean:
	rm -rf $(VENV) site .mypy_cache .ruff_cache .pytest_cache .hypothesis

# Debian's python3 comes without ensurepip unless python3-venv is installed: pip then fills the environment from outside.
$(READY): pyproject.toml constraints.txt
	@echo "worldsize: setting up $(VENV) (once; torch is large)"
	@$(PYTHON) -m venv $(VENV) >/dev/null 2>&1 || { \
	   $(PYTHON) -m venv --clear --without-pip $(VENV) && \
	   $(PYTHON) -m pip --python $(BIN)/python install --quiet pip; }
	@$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $@
