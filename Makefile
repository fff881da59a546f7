# BIN: where the environment's programs are (see README, "Tests").
BIN ?= .venv/bin
KILLS ?= 500

.PHONY: check test torture bench

check:  ## format, lint, imports, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy

test:  ## the whole suite
	$(BIN)/python -m pytest

torture:  ## kill a real daemon at random points, KILLS times
	$(BIN)/python -m tests.torture --kills $(KILLS)

bench:  ## the figures of docs/benchmarks.md
	$(BIN)/python -m tests.bench
