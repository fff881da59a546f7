"""The command line: help, exit codes, one line per error, and logs without secrets."""

import json
import logging
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from tests.full_config import full_config
from tests.world.warm import Interpreter
from wintermute.cli.main import VERBS, cli
from wintermute.cli.opening import LogFormatter
from wintermute.clock import SystemClock, stamp
from wintermute.config.lock import hold
from wintermute.config.secrets import Redaction
from wintermute.db import open_database
from wintermute.health.health import WELL

ENVIRONMENT = {"PATH": os.defpath, "WINTERMUTE_PASSWORD": "correct horse"}
HEAVY = {"asyncio", "yaml", "nio", "openai", "aiosqlite", "zoneinfo", "dataclasses", "logging"}
Wintermute = Callable[..., subprocess.CompletedProcess[str]]
"""`wintermute("status", WINTERMUTE_CONFIG=...)`: what a command did, its output as text."""


@pytest.fixture
def wintermute(python: Interpreter, tmp_path: Path) -> Wintermute:
    def run(*words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
        done = python.run(*map(str, words), cwd=tmp_path, env=ENVIRONMENT | environment)
        output = done.stdout.decode(), done.stderr.decode()
        return subprocess.CompletedProcess(words, done.returncode, *output)

    return run


def commands(group: click.Command, *words: str) -> Iterator[tuple[str, click.Command]]:
    """Every command below this one, by its words."""
    yield " ".join(words), group
    if isinstance(group, click.Group):
        context = click.Context(group)
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None
            yield from commands(command, *words, name)


@pytest.fixture
def folder(tmp_path: Path, wintermute: Wintermute) -> Path:
    """What `init` makes, with servers nobody listens at."""
    assert wintermute("init", tmp_path).returncode == 0
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        nowhere = f"http://127.0.0.1:{unused.getsockname()[1]}"
    text = full_config().replace("https://matrix.example.org", nowhere)
    (tmp_path / "config.yaml").write_text(text.replace("http://127.0.0.1:8080", nowhere))
    return tmp_path


def test_help_loads_nothing_it_does_not_need() -> None:
    """`--help` has 90 ms."""
    script = (
        "import sys, wintermute.cli.main as m\ntry: m.cli(['--help'])\nfinally: print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, check=True, text=True
    )
    loaded = set(done.stdout.splitlines()[-1].split())
    assert loaded & HEAVY == set()
    assert {name for name in loaded if name.startswith("wintermute.cli.")} == {
        "wintermute.cli.main",
        "wintermute.cli.options",
    }


def test_every_command_has_help_with_an_example() -> None:
    """L-080, L-082."""
    for words, command in commands(cli):
        assert command.help is not None
        assert f"Example: wintermute {words}".rstrip() in command.help
        for parameter in command.params:
            assert isinstance(parameter, click.Argument) or getattr(parameter, "help", None)


def test_the_list_of_commands_says_what_each_command_says() -> None:
    found = {words: command for words, command in commands(cli) if words in VERBS}
    assert {words: command.get_short_help_str(80) for words, command in found.items()} == VERBS


def test_the_version_is_printed() -> None:
    """By an interpreter that was not prepared: `python -m wintermute` is the way in."""
    command = [sys.executable, "-m", "wintermute", "--version"]
    done = subprocess.run(command, capture_output=True, check=True, text=True, env=ENVIRONMENT)
    assert done.stdout.startswith("wintermute 0.")


@pytest.mark.parametrize("words", [["nope"], ["--nope"], ["init"], ["matrix", "nope"]])
def test_a_wrong_usage_exits_with_two(wintermute: Wintermute, words: list[str]) -> None:
    """L-082."""
    done = wintermute(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("typed", "meant"), [("statsu", "status"), ("wiki orphan", "orphans"), ("tasks", "task")]
)
def test_a_command_nearly_right_is_named(wintermute: Wintermute, typed: str, meant: str) -> None:
    """U-016: also of groups whose commands are loaded late."""
    done = wintermute(*typed.split())
    assert done.returncode == 2
    assert re.search(f"Did you mean.*'{meant}'", done.stderr)


@pytest.mark.parametrize("verb", ["run", "check", "status", "matrix logout"])
def test_a_broken_configuration_exits_2(tmp_path: Path, wintermute: Wintermute, verb: str) -> None:
    """L-082, L-079."""
    path = tmp_path / "config.yaml"
    path.write_text(full_config().replace("  owner:", "  ownr:"))
    done = wintermute(*verb.split(), "--config", path)
    assert (done.returncode, done.stdout) == (2, "")
    missing, unknown = done.stderr.splitlines()
    assert missing.startswith(f"wintermute: {path}:12:3: matrix.owner: is missing")
    assert unknown.endswith("matrix.ownr: unknown key; the nearest known one is owner")


def test_options_and_the_environment_name_the_file(tmp_path: Path, wintermute: Wintermute) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for done, expected in [
        (wintermute("--config", first, "status"), first),
        (wintermute("--config", first, "status", "--config", second), second),
        (wintermute("status", WINTERMUTE_CONFIG=str(first)), first),
        (wintermute("status", "--config", second, WINTERMUTE_CONFIG=str(first)), second),
    ]:
        assert done.stderr.startswith(f"wintermute: {expected}: no such file")


def test_check_names_all_that_is_broken_and_changes_none(
    folder: Path, wintermute: Wintermute
) -> None:
    (folder / "data/prompts/BASE_PROMPT.txt").write_text(" \n")
    (folder / "data").chmod(0o755)
    before = sorted(folder.rglob("*"))
    done = wintermute("check", "--config", folder / "config.yaml")
    assert (done.returncode, done.stderr) == (1, "")
    lines = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    assert list(lines) == [
        "ok    config",
        "warn  data folder",
        "ok    disk",
        "none  database",
        "fail  prompts",
        "ok    time zone",
        "ok    memory",
        "ok    wiki",
        "fail  model local",
        "fail  homeserver",
    ]
    assert f"chmod 700 {folder}/data" in lines["warn  data folder"]
    assert "-> check matrix.homeserver" in lines["fail  homeserver"]
    assert sorted(folder.rglob("*")) == before


def test_check_names_a_missing_secret_and_goes_on(folder: Path, wintermute: Wintermute) -> None:
    """L-082: it is one failed line; what needs it is not tried."""
    config = folder / "config.yaml"
    before = config.read_text()
    config.write_text(before.replace("api_key: null", "api_key: {file: nowhere}", 1))
    done = wintermute("check", "--config", config, WINTERMUTE_PASSWORD="")
    assert (done.returncode, done.stderr) == (1, "")
    lines = [line.split(": ", 1) for line in done.stdout.splitlines()]
    assert [name for name, _ in lines] == [
        *("fail  config", "fail  config"),
        *("ok    data folder", "ok    disk", "none  database", "ok    prompts", "ok    time zone"),
        *("ok    memory", "ok    wiki", "fail  homeserver"),
    ]
    assert "matrix.password: the environment variable WINTERMUTE_PASSWORD is empty" in done.stdout
    assert "llm.backends.local.api_key: there is no file" in done.stdout
    config.write_text(before + "matrixx: 1\n")
    done = wintermute("check", "--config", config, WINTERMUTE_PASSWORD="")
    assert (done.returncode, done.stdout) == (2, "")
    assert "WINTERMUTE_PASSWORD is empty" in done.stderr


async def test_status_tells_of_daemon_and_what_is_held(
    folder: Path, wintermute: Wintermute
) -> None:
    """L-082, U-012: also beside a running daemon; what is not well, or all of it."""
    async with open_database(folder / "data/wintermute.db"):
        pass
    stopped = wintermute("--config", folder / "config.yaml", "status")
    assert stopped.returncode == 0
    assert stopped.stdout == "warn  daemon: not running -> start it with `wintermute run`\n"
    with hold(folder / "data"):
        whole = wintermute("status", "--all", "--config", folder / "config.yaml").stdout
        assert "\nok    outbox: 0 to be sent" in whole
        well = wintermute("status", "--config", folder / "config.yaml")
        assert (well.returncode, well.stdout) == (
            0,
            WELL.format("`wintermute status --all`") + "\n",
        )
        running = wintermute("status", "--json", "--config", folder / "config.yaml")
    first, *others = json.loads(running.stdout)
    assert first == {"name": "daemon", "state": "ok", "text": f"running, process {os.getpid()}"}
    assert {fact["name"] for fact in others} >= {"inbox", "outbox", "decryption"}


async def test_status_counts_tokens_for_programs(folder: Path, wintermute: Wintermute) -> None:
    """L-086: each role of today, cached tokens apart; a line without numbers has no such key."""
    path = folder / "data/wintermute.db"
    async with open_database(path) as database, database.transaction() as tx:
        await tx.execute(
            "INSERT INTO model_calls (id, role, backend, model, attempt, outcome, tokens_in,"
            " tokens_out, tokens_cached, usd, ms, created_at)"
            " VALUES ('a', 'base', 'b', 'm', 1, 'ok', 900, 10, 800, 0.25, 1, ?)",
            (stamp(SystemClock().now()),),
        )
    told = wintermute("status", "--json", "--config", folder / "config.yaml")
    facts = {fact["name"]: fact for fact in json.loads(told.stdout)}
    (line,) = [fact for name, fact in facts.items() if name.endswith(", base")]
    assert line["numbers"] == {
        "calls": 1,
        "refused": 0,
        "tokens_in": 900,
        "tokens_out": 10,
        "tokens_cached": 800,
        "usd": 0.25,
    }
    assert "numbers" not in facts["inbox"]


async def test_check_and_status_name_files_of_no_text(folder: Path, wintermute: Wintermute) -> None:
    """F-031: with what to do about each."""
    async with open_database(folder / "data/wintermute.db"):
        pass
    names = ("MEMORIES.txt", "core.md", "prompts/WORKER_MINIMAL.txt")
    for name in names:
        (folder / "data" / name).write_bytes("Käse\n".encode("latin-1"))
    for verb in ("check", "status"):
        told = wintermute(verb, "--config", folder / "config.yaml").stdout
        for name in names:
            assert told.count(f"{name} is not UTF-8 at byte 1: save it as UTF-8") == 1


def test_a_corrupt_database_is_refused_in_one_line(folder: Path, wintermute: Wintermute) -> None:
    (folder / "data/wintermute.db").write_text("no database")
    done = wintermute("status", "--config", folder / "config.yaml")
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert "put a copy back" in done.stderr


@pytest.mark.parametrize("verb", ["logout", "reset-crypto"])
def test_a_running_daemon_keeps_its_login(folder: Path, wintermute: Wintermute, verb: str) -> None:
    with hold(folder / "data"):
        refused = wintermute("matrix", verb, "--config", folder / "config.yaml")
    assert refused.returncode == 1
    assert f"(process {os.getpid()}) uses the data folder" in refused.stderr
    assert wintermute("matrix", verb, "--config", folder / "config.yaml").returncode == 0


def test_a_second_daemon_is_told_of_the_first(folder: Path, wintermute: Wintermute) -> None:
    """T-039."""
    with hold(folder / "data"):
        refused = wintermute("run", "--config", folder / "config.yaml")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.startswith(f"wintermute: another Wintermute (process {os.getpid()})")


# Logs ------------------------------------------------------------------------------------------


def record(message: str, *values: object, error: Exception | None = None) -> logging.LogRecord:
    info = (type(error), error, error.__traceback__) if error else None
    return logging.LogRecord("wintermute.x", logging.WARNING, "", 1, message, values, info)


def test_no_secret_reaches_a_log_line_or_a_traceback() -> None:
    """L-050."""
    lines = LogFormatter(Redaction(["sk-1'2"]), journal=False)
    text = lines.format(record("refused key=%r", "sk-1'2", error=ValueError("sk-1'2")))
    assert "sk-1" not in text
    assert text.count("[secret]") == 2
    assert 'WARNING refused key="[secret]" part=wintermute.x' in text


def test_a_message_cannot_forge_a_second_line() -> None:
    text = LogFormatter(str, journal=False).format(
        record("name=%s", "Ann\r\nCRITICAL all is lost\u2028x")
    )
    assert len(text.splitlines()) == 1


def test_under_the_journal_each_line_has_its_priority_and_no_time() -> None:
    lines = LogFormatter(str, journal=True)
    text = lines.format(record("broken", error=ValueError("no")))
    assert text.splitlines()[0] == "<4>WARNING broken part=wintermute.x"
    assert all(line.startswith("<4>") for line in text.splitlines())


def test_a_bug_is_logged_without_secrets_and_libraries_are_quiet() -> None:
    """L-050."""
    script = """
import logging
from wintermute.cli.opening import configure_logging
from wintermute.config.secrets import Redaction
configure_logging("info", Redaction(["sk-12"]), {})
logging.getLogger("nio.client").info("sent a message")
logging.getLogger("wintermute.daemon").info("started")
logging.getLogger("wintermute.daemon").debug("too much")
raise RuntimeError("key sk-12")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, check=False, text=True
    )
    started, crashed, *traceback = done.stderr.splitlines()
    assert started.endswith("Z INFO started part=wintermute.daemon")
    assert crashed.endswith("Z CRITICAL crashed error=RuntimeError part=wintermute.cli.opening")
    assert traceback[-1] == "RuntimeError: key [secret]"
    assert done.returncode == 1


@pytest.mark.quick(every=2)
@pytest.mark.parametrize("kept", [True, False])
def test_the_kept_login_is_as_secret_as_the_configuration(folder: Path, kept: bool) -> None:
    """L-050: a login that cannot be read is told by whoever needs it."""
    login = {
        "user_id": "@bot:test",
        "device_id": "D",
        "access_token": "syt_1",
        "pickle_key": "k" * 9,
    }
    store = folder / "data/matrix"
    store.mkdir()
    (store / "session.json").write_text(json.dumps(login) if kept else "garbage")
    script = """
import logging, sys
import click
from wintermute.cli.opening import open_config
from wintermute.cli.options import CONFIG
ctx = click.Context(click.Command("run"))
ctx.meta[CONFIG] = __import__("pathlib").Path(sys.argv[1])
open_config(ctx, level=None)
logging.getLogger("wintermute").warning("keys syt_1 %s", "k" * 9)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, folder / "config.yaml"],
        capture_output=True,
        check=True,
        text=True,
        env=ENVIRONMENT,
    )
    assert ("keys [secret] [secret]" in done.stderr) == kept
