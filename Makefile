# make demo         create a project, train PPO on CartPole, kill and resume it, evaluate it   (SEED=1 for another seed)
# make test         formatter, linter, types and all tests
# make check        formatter, linter, English and types only
# make format       fix formatting, and lint errors that have an automatic fix
# make test-matrix  fast tests with each Python, Hydra, the lowest and newest dependencies, and trieye-core: one table, about
#                   5 minutes a row (ONLY="3.12 lowest" for some rows, FAST=tests/config for some tests only)
# make canary       the row of test-matrix with the newest dependencies, with the tests of docs/private_apis.md
# make dist         sdist and wheel of trieye and trieye-core, built twice with equal hashes, in dist/
# make docs         the documentation site, in build/docs/index.html; warnings are errors
# make docs-long    external links of the site, and the commands of the documentation with their full budgets: about an hour
# make bench        every goal of the benchmarks folder, as a JSON line each
# make reference    reference tables beside stable-baselines3, resumable (hours), and docs/benchmarks from their curves
# make soak         tests marked long, property tests with 1000 examples, then hundreds of kills, damaged files, outages and full
#                   disks: about two hours
# make clean        remove everything that the other targets created

PYTHON ?= python3
SEED ?= 0
FAST ?= $(addprefix tests/,checkpoints config files history journal process replay sinks snapshot stats sweeps sweeps/hydra_programs.py training)
# The tests write 8 GB in small files that they sync, a quarter of their time on a disk. Their files are in memory where
# it has 4 GB for files and executes them.
SHM := $(shell grep -s " /dev/shm " /proc/mounts | grep -vq noexec && \
  df -Pk /dev/shm | awk 'NR == 2 && $$4 > 4000000 {print "/dev/shm"; exit} NR == 2 {print "/tmp"}' || echo /tmp)
BIN := .venv/bin
# what is imported is compiled then: compiling all of it first takes longer than to install it
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
READY := .venv/.ready
DOCS_READY := .venv/.docs_ready

# hundreds of processes start in the tests, and each would compile all that it imports
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test tests test-matrix canary check compiled dist docs docs-long docs-links docs-commands bench reference soak clean format

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "trieye needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version). Try: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	@echo "Installing trieye and what it needs into .venv (a few minutes the first time) ..."
	@$(PYTHON) -m venv .venv
	@# the pip of Python 3.11 takes twice as long, but will do
	@$(PIP) --upgrade pip || true
	@# two processes unpack the pinned packages, except those of the documentation; the last command checks and completes
	@sed '/^# documentation/,$$d; /^#/d' constraints.txt | xargs -P 2 -n 60 $(PIP) --no-deps 2>/dev/null || true
	@$(PIP) -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(READY)
	@$(BIN)/python demo/run.py --seed $(SEED)

# Many tests wait for processes, so the types are checked beside the first of them.
test: $(READY)
	@$(MAKE) --no-print-directory --jobs=2 check tests

tests: compiled
	@directory=$$(mktemp -d $(SHM)/trieye-XXXX); trap "rm -rf $$directory" EXIT; \
	  TMPDIR=$$directory $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

test-matrix: $(READY)
	@$(BIN)/python .ci/matrix.py $(FAST) --only $(ONLY)

canary: $(READY)
	@$(BIN)/python .ci/matrix.py $(FAST) --only newest

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python .ci/english.py
	$(BIN)/mypy
	$(BIN)/mypy benchmarks
	$(BIN)/mypy soak

# Compiles the modules that the tests import, which parallel processes would each compile; the tests show errors.
compiled: $(READY)
	@$(BIN)/python -m pytest --collect-only -q -p no:cacheprovider > /dev/null 2>&1 || true

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

dist: $(READY)
	@$(BIN)/python .ci/distributions.py dist

$(DOCS_READY): $(READY) docs/requirements.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -r docs/requirements.txt
	@touch $@

docs: $(DOCS_READY)
	@rm -rf build/docs
	@$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going --conf-dir docs --doctree-dir build/doctrees --fresh-env . build/docs
	@echo "build/docs/index.html"

docs-long: docs-commands docs-links

docs-links: $(DOCS_READY)
	@$(BIN)/python -m sphinx --quiet --builder linkcheck --conf-dir docs --doctree-dir build/doctrees . build/linkcheck
	@echo "build/linkcheck/output.txt"

docs-commands: $(READY)
	TRIEYE_DOCS_LONG=1 $(BIN)/python -m pytest tests/test_readme.py tests/test_notebook_page.py -m 'slow or long'

bench: $(READY)
	@failed=; for script in benchmarks/*.py; do \
	  echo "$$(date +%T) $$script" >&2; $(BIN)/python $$script || failed="$$failed $$script"; done; \
	  [ -z "$$failed" ] || { echo "failed, or a goal was missed:$$failed" >&2; exit 1; }

reference: $(READY)
	@$(BIN)/python benchmarks/reference/run.py
	@$(BIN)/python benchmarks/reference/page.py

soak: $(READY)
	$(BIN)/python -m pytest -m long -n 2 --dist loadfile
	$(BIN)/python -m pytest -n 2 --hypothesis-profile soak $$(grep -rl "^from hypothesis" tests --include="test_*.py")
	@for script in hub_kills driver_kills local_kills checkpoint_kills training_kills mirror replay_kills replay_server_kills replay_actor \
	  journal_damage run_damage checkpoint_damage mlflow_outage disk_full short_runs clock forks hydra_versions \
	  sweep_kills relaunch_kills slurm study_kills nodes learner_node adopted_kills sb3_kills supersession nonfinite hangs fragments \
	  fragments_in_ray regressions; do \
	  echo "soak: $$script"; $(BIN)/python soak/$$script.py || exit 1; done
	@echo "soak: nodes, by a broadcast"; $(BIN)/python soak/nodes.py --seconds 80 --transport collective
	@echo "soak: fragments, on two nodes"; $(BIN)/python soak/fragments_in_ray.py --nodes 10
	@echo "soak: explorer_kills"; $(BIN)/python soak/explorer_kills.py && $(BIN)/python soak/explorer_kills.py --agent ppo

clean:
	rm -rf .venv .matrix .peers demo_run build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
