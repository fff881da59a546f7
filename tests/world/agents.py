"""An agent of the wiki's owner: a script that consolidates in its place."""

import json
import shlex
import sys

from tests.world.terminal import Terminal
from tests.world.warm import Ended
from wintermute.templates import shipped_folder

HEAD = """
import os, pathlib, sys, time, json, subprocess, signal
prompt = sys.stdin.read()
store = pathlib.Path.cwd()
def put(path, text):
    (store / path).parent.mkdir(parents=True, exist_ok=True)
    (store / path).write_text(text)
def page(body):
    return "---\\ncreated: 2026-05-01\\nupdated: 2026-05-01\\n---\\n\\n" + body + "\\n"
garden = store / "semantic/Garden.md"
raw = next(path for path in (store / "episodic-raw").rglob("0001-user.md"))
"""
KEY = "sk-0123456789"


def with_agent(terminal: Terminal, script: str, *words: str) -> None:
    """An agent `hand` that runs this script."""
    file = terminal.folder / "agent.py"
    file.write_text(HEAD + script)
    command = shlex.join([sys.executable, str(file), *words])
    settings = {
        "data_dir": "data",
        "matrix": {
            "homeserver": "http://localhost",
            "user_id": "@bot:example.org",
            "password": {"env": "WINTERMUTE_PASSWORD"},
            "owner": "@you:example.org",
        },
        "llm": {
            "backends": {
                "local": {
                    "base_url": "http://127.0.0.1:1/v1",
                    "model": "m",
                    "api_key": {"env": "KEY"},
                }
            }
        },
        "wiki": {"store_path": "data/my wiki", "agent_cmds": {"hand": command}},
    }
    (terminal.folder / "config.yaml").write_text(json.dumps(settings))
    (terminal.data / "prompts").mkdir(exist_ok=True)
    (terminal.data / "prompts/consolidation").mkdir(exist_ok=True)
    prompt = (shipped_folder() / "consolidation/default.md").read_text()
    (terminal.data / "prompts/consolidation/default.md").write_text(prompt)


def consolidate_by_agent(terminal: Terminal, talk: str, *more: str, **env: str) -> Ended:
    """Consolidate a conversation by the agent `hand`."""
    words = ("wiki", "consolidate", "--conversation", talk, "--agent", "hand", *more)
    (terminal.folder / "tmp").mkdir(exist_ok=True)
    env |= {"KEY": KEY, "TMPDIR": str(terminal.folder / "tmp")}
    return terminal.run(*words, given=b"", **env)
