"""A window that is too small is told before anybody waits for an answer."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.test_llm_windows import PROPS, serving
from tests.world.bot import write_settings
from tests.world.homeserver import Login
from tests.world.model import Fail, ModelServer, Seen, Step, Text
from tests.world.scene import NewBot, NewPerson, NewRoom
from tests.world.warm import Interpreter
from wintermute.messages import Json, Usage

NOWHERE = "http://127.0.0.1:9"
ANN = "@ann:test"


def settings(folder: Path, url: str, **backend: Any) -> Path:
    login = Login("@bot:test", "token", "DEVICE", "secret")
    known = {"base_url": url, "model": "qwen", **backend}
    return write_settings(
        folder / "bot", NOWHERE, login, url, ANN, llm={"backends": {"scripted": known}}
    )


async def check(python: Interpreter, config: Path) -> tuple[int, dict[str, list[str]]]:
    """How it ended, and what it says of the window by state."""
    done = await python.command(
        *("check", "--json", "--config", str(config)), cwd=config.parent, env={"PATH": os.defpath}
    )
    assert done.stderr == b""
    found: dict[str, list[str]] = {}
    for fact in json.loads(done.stdout):
        if fact["name"] == "window of scripted":
            found.setdefault(fact["state"], []).append(fact["text"])
    return done.returncode, found


def counting(tokens: int | None) -> Any:
    """Answers as a server that counts so many tokens for what has the instructions."""

    def choose(seen: Seen) -> Step:
        is_whole = seen.messages[0]["role"] == "system"
        usage = Usage(tokens, 1) if is_whole and tokens is not None else None
        return Text("ok", usage=usage, finish="length" if is_whole else "stop")

    return choose


@pytest.mark.parametrize(
    ("tokens", "window", "state", "told"),
    [
        (4000, {"context_tokens": 16_384}, "ok", "4000 tokens of the 12288 that context_tokens:"),
        (5500, {"context_tokens": 8192}, "warn", "5500 tokens of the 6144"),
        (5500, {"context_tokens": 4096}, "fail", "so no message fits -> raise llm.backends"),
        (None, {"context_tokens": 32_768}, "ok", "take about"),
    ],
)
async def test_check_asks_once_how_much_the_fixed_part_takes(
    tmp_path: Path,
    model: ModelServer,
    python: Interpreter,
    tokens: int | None,
    window: Json,
    state: str,
    told: str,
) -> None:
    """Where a server counts nothing our estimate says it."""
    model.keyed(counting(tokens))
    code, found = await check(python, settings(tmp_path, model.url, **window))
    assert list(found) == [state], found
    assert told in found[state][0]
    asked = [request.body for request in model.requests if request.body["max_tokens"] == 1]
    assert len(asked) == 1
    assert asked[0]["messages"][0]["content"].startswith("# Core Instructions\n")
    assert "task" in {tool["function"]["name"] for tool in asked[0]["tools"]}
    assert code == 1  # there is no homeserver


async def test_check_sends_no_secret_and_writes_nothing(
    tmp_path: Path, model: ModelServer, python: Interpreter
) -> None:
    """L-089: core memory goes out as in a chat."""
    config = settings(tmp_path, model.url)
    core = config.parent / "data/core.md"
    core.write_text("## USER\n- my password is secret\n")
    before = sorted(config.parent.rglob("*"))
    await check(python, config)
    (whole,) = [r for r in model.requests if r.body["max_tokens"] == 1]
    assert "my password is [secret]" in whole.messages[0]["content"]
    assert sorted(config.parent.rglob("*")) == before


async def test_check_names_the_window_that_a_server_refuses_with(
    tmp_path: Path, model: ModelServer, python: Interpreter
) -> None:
    error = {"message": "maximum context length is 2048 tokens", "code": "context_length_exceeded"}
    model.keyed(
        lambda seen: (
            Fail(400, {"error": error}) if seen.messages[0]["role"] == "system" else Text("ok")
        )
    )
    _, found = await check(python, settings(tmp_path, model.url))
    assert "set llm.backends.scripted.context_tokens to 2048" in found["fail"][0]


async def test_check_compares_what_the_server_says_of_its_window(
    tmp_path: Path, python: Interpreter
) -> None:
    """A server that serves nothing else is told of as well: it is no traceback."""
    answer = {
        "choices": [{"message": {"content": "ok"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 5000, "completion_tokens": 1},
    }
    async with serving({"/props": PROPS, "/v1/chat/completions": json.dumps(answer)}) as stub:
        _, found = await check(python, settings(tmp_path, stub.url))
    assert "5000 tokens" in found["ok"][0]
    wrong = "its server takes 4096 tokens, config.yaml says context_tokens: 32768"
    assert wrong in found["fail"][0]


async def test_no_chat_begins_where_no_message_can_fit(
    tmp_path: Path, model: ModelServer, python: Interpreter
) -> None:
    """Exit code 2 and both numbers, before anything is asked."""
    config = settings(tmp_path, model.url, context_tokens=2048)
    words = "--config", str(config), "chat"
    done = await python.command(*words, cwd=tmp_path, env={"PATH": os.defpath}, given=b"hi\n")
    said = done.stderr.decode()
    assert (done.returncode, done.stdout) == (2, b"")
    assert said.startswith("wintermute: scripted: instructions and tools take about ")
    assert "of the 1536 that context_tokens: 2048 and max_output_tokens: 512 leave" in said
    assert model.requests == []


async def test_a_daemon_leaves_with_the_numbers_and_another_one_tells_what_is_tight(
    person: NewPerson, bot: NewBot, room: NewRoom, model: ModelServer
) -> None:
    """By the last reported usage where it is less than our estimate; `status` names it as well."""
    ann = await person("ann")
    known = {"base_url": model.url, "model": "qwen"}
    tight: Json = {"backends": {"scripted": {**known, "context_tokens": 6_144}}}
    daemon = await bot(ann, llm=tight)
    chat = await room(ann, daemon)
    await ann.send(chat, "hello")
    [answer] = await ann.wait_for_count(chat, daemon.user_id, 1)
    assert answer.body == "echo: hello"
    code, told = await daemon.command("status")
    assert (code, "warn  windows: scripted: instructions and tools take about" in told) == (0, True)
    small: Json = {"backends": {"scripted": {**known, "context_tokens": 1024}}}
    lost = await bot(ann, llm=small, start=False)
    await lost.start(ready=False)
    assert await lost.ended() == 2
    await lost.logged("so no message fits -> raise llm.backends.scripted.context_tokens")
