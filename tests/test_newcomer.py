"""What goes wrong on the first day is told in one line that says what to do (issue 4, 5)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.world.bot import Bot, bare_settings
from tests.world.homeserver import free_port
from tests.world.model import Fail, ModelServer
from tests.world.scene import NewBot, NewPerson
from tests.world.warm import Ended, Interpreter
from wintermute.llm.failures import Refused, of_status

ENVIRONMENT = {"PATH": os.defpath, "PYTHONDONTWRITEBYTECODE": "1"}


def wintermute(python: Interpreter, *words: str | Path) -> Ended:
    """What a command did."""
    return python.run(*map(str, words), env=ENVIRONMENT)


def complaint(python: Interpreter, *words: str | Path) -> tuple[int, str]:
    """The exit code of a command, and what it complained of."""
    done = wintermute(python, *words)
    return done.returncode, done.stderr.decode()


def on_a_full_disk(largest_kb: int, *words: str | Path) -> tuple[int, str]:
    """The same in a real shell that lets no file get larger."""
    shell = ("bash", "-c", f'ulimit -f {largest_kb}; exec "$@"', "-")
    done = subprocess.run(
        [*shell, sys.executable, "-m", "wintermute", *words],
        capture_output=True,
        check=False,
        text=True,
        env=ENVIRONMENT,
    )
    return done.returncode, done.stderr


def test_a_missing_configuration_says_how_to_make_one(python: Interpreter, tmp_path: Path) -> None:
    code, told = complaint(python, "run", "--config", tmp_path / "config.yaml")
    assert (code, told.count("\n")) == (2, 1)
    assert "wintermute init DIR" in told


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ('matrix:\n  homeserver: "https://x\n', "close the quote or bracket"),
        ("matrix:\n  homeserver: https://x\n   owner: '@a:b'\n", "align this line"),
        ("matrix: {password: }}\n", "look at the indentation, quotes and brackets"),
        ("matrix:\n\thomeserver: x\n", "use spaces"),
        ("owner: @a:b\n", "needs quotes"),
    ],
)
def test_a_mistake_in_yaml_is_placed_and_explained(
    python: Interpreter, tmp_path: Path, text: str, advice: str
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(text)
    code, told = complaint(python, "check", "--config", config)
    assert (code, told.count("\n")) == (2, 1)
    assert f"{config}:" in told
    assert advice in told


def test_a_secret_that_is_not_set_says_how_to_set_it(python: Interpreter, tmp_path: Path) -> None:
    assert complaint(python, "init", tmp_path)[0] == 0
    code, told = complaint(python, "run", "--config", tmp_path / "config.yaml")
    assert (code, told.count("\n")) == (2, 1)
    assert "WINTERMUTE_PASSWORD is not set: export it" in told


@pytest.mark.parametrize("mode", [None, 0o500], ids=["a file", "not ours"])
def test_a_data_folder_that_cannot_be_used_is_named(
    python: Interpreter, tmp_path: Path, mode: int | None
) -> None:
    config = bare_settings(tmp_path)
    data = tmp_path / "data"
    if mode is None:
        data.rename(tmp_path / "elsewhere")
        data.touch()
    else:
        data.chmod(mode)
    code, told = complaint(python, "run", "--config", config)
    assert (code, told.count("\n")) == (2, 1)
    assert f"{data} cannot be used" in told
    assert "it must be writable" in told


def test_init_on_a_full_disk_leaves_no_half_file(tmp_path: Path) -> None:
    code, told = on_a_full_disk(3, "init", tmp_path / "new")
    assert (code, told.count("\n")) == (1, 1)
    assert "make room" in told
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_a_full_disk_is_not_taken_for_a_damaged_database(
    python: Interpreter, tmp_path: Path
) -> None:
    config = bare_settings(tmp_path / "bot")
    add = ("memory", "add", "Anna lives in Lyon", "--config", config)
    code, told = on_a_full_disk(20, *add)
    assert (code, told.count("\n")) == (1, 1)
    assert "make room on its disk" in told
    assert complaint(python, *add) == (0, "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "said", "told"),
    [
        (404, 'model "qwen" not found, try pulling it first', "check its base_url and model"),
        (401, "Incorrect API key provided", "check its api_key"),
        (400, "registry.ollama.ai/library/gemma:2b does not support tools", "supports no tool"),
    ],
)
async def test_a_model_that_is_of_no_use_is_told_by_check_and_in_the_chat(
    model: ModelServer, python: Interpreter, tmp_path: Path, status: int, said: str, told: str
) -> None:
    model.keyed(lambda _: Fail(status, {"error": {"message": said}}))
    config = bare_settings(tmp_path / "bot", model=model.url)
    checked = (await python.command("check", "--config", str(config))).stdout.decode()
    [line] = [line for line in checked.splitlines() if line.startswith("fail  model")]
    assert told in line
    assert said in line
    piped = await python.command("chat", "--config", str(config), env=ENVIRONMENT, given=b"hi")
    chatted = (piped.stdout + piped.stderr).decode()
    assert chatted.count("\n") == 1
    assert told in chatted


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (500, "tools param requires --jinja flag"),
        (400, '"auto" tool choice requires --enable-auto-tool-choice'),
        (404, "No endpoints found that support tool use."),
    ],
)
def test_a_model_without_tools_is_known_by_what_other_servers_say(status: int, said: str) -> None:
    failure = of_status(status, json.dumps({"error": {"message": said}}), {})
    assert isinstance(failure, Refused)
    assert "choose a model that does" in str(failure)


async def test_servers_that_are_away_are_told_with_what_to_do(
    python: Interpreter, tmp_path: Path
) -> None:
    away = f"http://127.0.0.1:{free_port()}"
    daemon = Bot(bare_settings(tmp_path / "bot", away, f"{away}/v1"), python)
    code, told = await daemon.command("check")
    failed = [line for line in told.splitlines() if line.startswith("fail")]
    assert (code, len(failed)) == (1, 2)
    assert "see that it runs, and check base_url of local in config.yaml" in failed[0]
    assert "check matrix.homeserver and that the server runs" in failed[1]
    await daemon.start(ready=False)
    try:
        await daemon.logged("login waits")
        assert "check matrix.homeserver and that the server runs" in daemon.log[-1]
    finally:
        await daemon.kill()


async def test_a_wrong_password_is_one_line(person: NewPerson, bot: NewBot) -> None:
    daemon = await bot(await person("ann"), start=False)
    (daemon.config.parent / "password").write_text("open sesame")
    code, told = await daemon.command("run")
    assert (code, told.count("\n")) == (2, 1)
    assert "check the account and its password" in told
