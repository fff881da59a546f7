# BIN: where the environment's programs are (see README, "Tests").
BIN ?= .venv/bin
KILLS ?= 300
LIVES ?= 20

.PHONY: check test test-slow test-all torture bench

check:  ## format, lint, imports, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy

test:  ## the quick tier: what the program does
	$(BIN)/python -m pytest

test-slow:  ## the slow tier: each kill point, long random lives, every combination
	$(BIN)/python -m pytest -m slow

test-all:  ## both
	$(BIN)/python -m pytest --slow

torture:  ## kill a real daemon at random points, KILLS times; let rooms live at random, LIVES times
	$(BIN)/python -m tests.torture --kills $(KILLS)
	$(BIN)/python -m tests.lives --lives $(LIVES)

bench:  ## the figures of docs/benchmarks.md
	$(BIN)/python -m tests.bench
