# Two commands do everything on a machine with python3 >= 3.11 and make: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# Real data for benchmarks, where it lies beside the checkout.
export DYADS_DATA ?= $(wildcard $(CURDIR)/../shared/data)

.PHONY: demo dist docs pictures test test-slow lint types contracts check golden fuzz chaos chaos-cluster bench bench-posterior bench-cluster bench-gpu speed rivals accuracy serve-bench ranking reproduce reproduce-posterior clean

demo: $(VENV)/.installed
	$(BIN)/dyads demo --force

test: $(VENV)/.installed
	$(BIN)/python -m pytest --numprocesses 2 --dist loadgroup -m "not slow"

# What takes minutes to compile or to sample, such as Geweke's test of every structure.
test-slow: $(VENV)/.installed
	$(BIN)/python -m pytest --numprocesses 2 --dist loadgroup -m slow

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed
	$(BIN)/mypy

contracts: $(VENV)/.installed
	$(BIN)/lint-imports

check: test test-slow lint types contracts docs

# The figures of the working tree beside those of the commit BASE, for changes that must not alter results.
golden: $(VENV)/.installed
	@test -n "$(BASE)" || { echo "make golden compares with a commit: expected BASE=<commit>." >&2; exit 1; }
	$(BIN)/python tests/golden/compare.py $(BASE)

# Mutated model files, checkpoints and tables, and requests to a server: at most an hour. `--seed N` tries others; the slow suite runs a minute of it.
fuzz: $(VENV)/.installed
	$(BIN)/python tests/fuzz/run.py
	$(BIN)/python tests/fuzz/service.py

# Kills at random moments, and flipped bytes: some ten minutes.
chaos: $(VENV)/.installed
	$(BIN)/python tests/chaos/run.py

# Kills of workers and nodes of a Ray cluster on this machine: some twenty minutes. KILLS=<n> and SECONDS=<length of a fit>.
chaos-cluster: $(VENV)/.installed
	$(BIN)/python tests/chaos/cluster.py --kills $(or $(KILLS),50) --seconds $(or $(SECONDS),60)

# The documentation, in build/docs; warnings are errors.
docs: $(VENV)/.installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

# The pictures of the guides, made by their code on published data. GUIDES=ratings makes those of one.
pictures: $(VENV)/.installed
	$(BIN)/python docs/pictures.py $(GUIDES)

# The package: built, its metadata checked, installed into an empty environment, and its demo run there, away from the checkout.
dist: $(VENV)/.installed
	rm -rf dist build/fresh
	$(BIN)/python -m build --outdir dist
	$(BIN)/twine check --strict dist/*
	$(PYTHON) -m venv build/fresh
	build/fresh/bin/python -m pip install --quiet "$$(ls dist/*.whl)[plot]"
	cd dist && ../build/fresh/bin/python -I -c 'import dyads; assert "build" in dyads.__file__, dyads.__file__; print(dyads.__file__)'
	cd dist && ../build/fresh/bin/dyads demo --output demo.png --force
	ls -l dist

# Speed, memory and accuracy on real data: some minutes, and no test depends on it.
bench: $(VENV)/.installed
	$(BIN)/python benchmarks/core.py
	$(BIN)/python benchmarks/structures.py
	$(BIN)/python benchmarks/side.py
	$(BIN)/python benchmarks/selection.py
	$(BIN)/python benchmarks/defaults.py
	$(BIN)/python benchmarks/links.py
	$(BIN)/python benchmarks/stream.py

# How intervals cover, and what too large a rank does: most of an hour.
bench-posterior: $(VENV)/.installed
	$(BIN)/python benchmarks/posterior.py

# A sweep on a Ray cluster of this machine, and simulated on larger ones: some ten minutes. PAIRS=<n> and STORE=<folder>.
bench-cluster: $(VENV)/.installed
	$(BIN)/python benchmarks/scaling.py --pairs $(or $(PAIRS),1e7) $(if $(STORE),--store $(STORE))

# Epochs and sweeps on an NVIDIA GPU, which this machine must have, beside the CPU.
bench-gpu: $(VENV)/.installed
	$(BIN)/python benchmarks/gpu.py

# Speed beside C++ and other libraries: some minutes. BASE=<checkout> compares sweeps, RIVALS=1 runs other libraries again.
speed: $(VENV)/.installed
	$(BIN)/python benchmarks/speed.py $(if $(BASE),--base $(BASE)) $(if $(RIVALS),--rivals)

# Other libraries on the same splits, in environments of their own: no dependency of anything else.
accuracy: $(VENV)/.installed
	$(BIN)/python benchmarks/accuracy.py

# `dyads serve` under load, and ten minutes of it with reloads and killed workers. Needs wrk (Debian: wrk).
serve-bench: $(VENV)/.installed
	$(BIN)/python benchmarks/serve.py

# Rankings of items and of triples beside other libraries: most of an hour.
ranking: $(VENV)/.installed
	$(BIN)/python benchmarks/ranking.py

rivals:
	$(PYTHON) -m venv benchmarks/.rivals
	CFLAGS="-O3 -march=native -DUSEAVX -DUSEOMP -fopenmp" benchmarks/.rivals/bin/python -m pip install --quiet --no-cache-dir --requirement benchmarks/rivals/requirements.txt
	$(PYTHON) -m venv benchmarks/.rivals-graphs
	benchmarks/.rivals-graphs/bin/python -m pip install --quiet --requirement benchmarks/rivals/requirements-graphs.txt
	$(PYTHON) -m venv benchmarks/.rivals-ranking
	benchmarks/.rivals-ranking/bin/python -m pip install --quiet --requirement benchmarks/rivals/requirements-ranking.txt

# Every table and figure of the paper: an hour on 2 cores; the posterior's lines take hours.
reproduce: $(VENV)/.installed
	$(BIN)/dyads reproduce --all

reproduce-posterior: $(VENV)/.installed
	$(BIN)/dyads reproduce --all --posterior

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("dyads needs python3 >= 3.11, this is " + sys.version) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[plot,data,posterior,large,serve,ray,docs,dev]'
	touch $@

clean:
	rm -rf $(VENV) benchmarks/.rivals benchmarks/.rivals-graphs benchmarks/.rivals-ranking build dist .pytest_cache .mypy_cache .ruff_cache docs/.ruff_cache .import_linter_cache dyads-demo.png
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
