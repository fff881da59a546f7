"""A window that is too small is told before anybody waits for an answer."""

import json
import os
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.world.bot import write_settings
from tests.world.homeserver import Login
from tests.world.model import Fail, ModelServer, Seen, Step, Text
from tests.world.scene import Scene
from tests.world.schema import LATER, lay_schema
from tests.world.story import Story
from tests.world.stub import PROPS, stub_serving
from tests.world.warm import Interpreter
from wintermute.db import driver
from wintermute.llm.tokens import Measure
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


async def test_a_list_longer_than_the_window_is_named(story: Story, python: Interpreter) -> None:
    """M-092: once a model was asked, also where no daemon runs."""
    story.model.keyed(lambda _: Text("ok", usage=None))
    config = settings(story.folder, story.model.url, context_tokens=12_000, max_output_tokens=1_000)
    (config.parent / "data").mkdir(exist_ok=True)
    listed = "".join(f"fact {n} is true\n" for n in range(3_000))
    (config.parent / "data" / "MEMORIES.txt").write_text(listed)
    at: dict[str, Any] = {"cwd": config.parent, "env": {"PATH": os.defpath}}
    await python.command("chat", "--config", str(config), given=b"hello\n", **at)
    for verb in ("check", "status"):
        done = await python.command(verb, "--json", "--config", str(config), **at)
        found = {each["name"]: each["text"] for each in json.loads(done.stdout)}
        assert "memory.backend: fts5" in found["data/MEMORIES.txt"]


COUNTED: dict[str, tuple[list[tuple[int, int]], int | None]] = {
    "three that are cut, among others": (
        [(5000, 4096), (300, 250), (6300, 4070), (9000, 4000), (8000, 4110)],
        4096,
    ),
    "two of them": ([(5000, 4096), (6300, 4096), (300, 250)], None),
    "nearly as long": ([(5000, 4096), (6200, 4096), (7700, 4096)], None),
    "a longer one after them": ([(5000, 4096), (6300, 4096), (8000, 4096), (9000, 6000)], None),
    "what was not in a cache": ([(5000, 5000), (6300, 700), (8000, 700), (10_000, 700)], None),
    "fewer than a window": ([(5000, 100), (6300, 100), (8000, 100)], None),
}


@pytest.mark.parametrize("row", COUNTED)
def test_a_server_cuts_what_it_counts_alike(row: str) -> None:
    """F-064: within a hundredth, of three that differ by a quarter."""
    counted, cut = COUNTED[row]
    measure = Measure()
    for estimated, tokens in counted:
        measure.learn(estimated, Usage(tokens))
    assert measure.cut == cut


async def test_check_and_status_tell_of_a_server_that_cuts_prompts(
    scene: Scene, model: ModelServer
) -> None:
    """F-064: with its window and what helps, once three of its requests were so far apart."""
    model.keyed(lambda _: Text("ok", usage=Usage(4096, 1)))
    ann = await scene.person("ann")
    daemon = await scene.bot(ann)
    chat = await scene.room(ann, daemon)
    for n, text in enumerate(("hello", "a " * 9_000, "b " * 20_000), 1):
        await ann.send(chat, text)
        await ann.wait_for_count(chat, daemon.user_id, n)
    await daemon.until(lambda: bool(daemon.rows("SELECT 1 FROM health WHERE detail LIKE '%cuts%'")))
    model.keyed(lambda _: Text("ok", usage=Usage(90, 1)))
    for verb in ("check", "status"):
        _, said = await daemon.command(verb)
        (line,) = [
            each for each in said.splitlines() if each.startswith("warn  backend scripted: ")
        ]
        assert "cuts from the front" in line
        assert "its context window is 4096 -> set llm.backends.scripted.context_tokens" in line
        assert "num_ctx in a Modelfile" in line


@pytest.mark.quick(every=3)
@pytest.mark.parametrize(
    ("tokens", "window", "state", "told"),
    [
        (4000, {"context_tokens": 16_384}, "ok", "4000 tokens (measured) of the 12288 that"),
        (5500, {"context_tokens": 8192}, "warn", "5500 tokens (measured) of the 6144"),
        (5500, {"context_tokens": 4096}, "fail", "so no message fits -> raise llm.backends"),
        (None, {"context_tokens": 32_768}, "ok", "take about"),
        (None, {"context_tokens": 4096}, "fail", "(estimated) of the 3072"),
        (5500, {"context_tokens": 4096}, "fail", "5500 tokens (measured) of the 3072"),
    ],
)
async def test_check_asks_once_how_much_the_fixed_part_takes(
    story: Story, python: Interpreter, tokens: int | None, window: Json, state: str, told: str
) -> None:
    """Where a server counts nothing our estimate says it."""
    story.model.keyed(counting(tokens))
    code, found = await check(python, settings(story.folder, story.model.url, **window))
    assert list(found) == [state], found
    assert told in found[state][0]
    asked = [request.body for request in story.model.requests if request.body["max_tokens"] == 1]
    assert len(asked) == 1
    assert asked[0]["messages"][0]["content"].startswith("# Core Instructions\n")
    assert "task" in {tool["function"]["name"] for tool in asked[0]["tools"]}
    assert code == 1  # there is no homeserver


async def test_check_sends_no_secret_and_writes_nothing(story: Story, python: Interpreter) -> None:
    """L-089: core memory goes out as in a chat."""
    config = settings(story.folder, story.model.url)
    core = config.parent / "data/core.md"
    core.write_text("# USER\n- my password is secret\n")
    before = sorted(config.parent.rglob("*"))
    await check(python, config)
    (whole,) = [r for r in story.model.requests if r.body["max_tokens"] == 1]
    assert "my password is [secret]" in whole.system
    assert sorted(config.parent.rglob("*")) == before


async def test_check_names_the_window_of_a_refusal(story: Story, python: Interpreter) -> None:
    error = {"message": "maximum context length is 2048 tokens", "code": "context_length_exceeded"}
    story.model.keyed(
        lambda seen: (
            Fail(400, {"error": error}) if seen.messages[0]["role"] == "system" else Text("ok")
        )
    )
    _, found = await check(python, settings(story.folder, story.model.url))
    assert "set llm.backends.scripted.context_tokens to 2048" in found["fail"][0]


async def test_check_leaves_a_database_of_an_earlier_version_to_who_starts_with_it(
    story: Story, later_python: Interpreter
) -> None:
    """Right after an upgrade of the program: nothing is kept there, and no table is missed."""
    story.model.keyed(counting(4000))
    config = settings(story.folder, story.model.url, context_tokens=16_384)
    path = config.parent / "data/wintermute.db"
    lay_schema(path)
    _, found = await check(later_python, config)
    assert "4000 tokens (measured)" in found["ok"][0]
    with closing(driver.connect(path, read_only=True)) as old:
        assert old.execute("PRAGMA user_version").fetchone()[0] < LATER


async def test_check_compares_what_the_server_says(tmp_path: Path, python: Interpreter) -> None:
    """A server that serves nothing else is told of as well: it is no traceback."""
    answer = {
        "choices": [{"message": {"content": "ok"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 5000, "completion_tokens": 1},
    }
    async with stub_serving({"/props": PROPS, "/v1/chat/completions": json.dumps(answer)}) as stub:
        _, found = await check(python, settings(tmp_path, stub.url))
    assert "5000 tokens" in found["ok"][0]
    wrong = "its server takes 4096 tokens, config.yaml says context_tokens: 32768"
    assert wrong in found["fail"][0]


async def chat(python: Interpreter, config: Path) -> tuple[int, str, str]:
    words = "--config", str(config), "chat"
    done = await python.command(*words, cwd=config.parent, env={"PATH": os.defpath}, given=b"hi\n")
    return done.returncode, done.stdout.decode(), done.stderr.decode()


async def test_what_only_an_estimate_says_is_told_by_check_and_chat_in_the_same_words(
    story: Story, python: Interpreter
) -> None:
    """L-090: of a server that counts nothing; today and tomorrow, before anything is asked."""
    story.model.keyed(counting(None))
    config = settings(story.folder, story.model.url, context_tokens=4096)
    _, found = await check(python, config)
    asked = len(story.model.requests)
    for _ in range(2):
        refused = 2, "", f"wintermute: scripted: {found['fail'][0]}\n"
        assert await chat(python, config) == refused
    assert "(estimated) of the 3072 that context_tokens: 4096 and max" in found["fail"][0]
    assert len(story.model.requests) == asked


async def test_what_answers_told_refuses_the_next_chat(story: Story, python: Interpreter) -> None:
    story.model.keyed(counting(3600))
    config = settings(story.folder, story.model.url, context_tokens=8192)
    assert (await chat(python, config))[::2] == (0, "")
    config = settings(story.folder, story.model.url, context_tokens=4096)
    code, _, told = await chat(python, config)
    assert (code, "(measured) of the 3072" in told) == (2, True), told
    done = await python.command(
        "status", "--config", str(config), cwd=story.folder, env={"PATH": os.defpath}
    )
    noted = told.removeprefix("wintermute: ").strip()
    assert f"fail  windows: {noted}" in done.stdout.decode()


OLD = "does not say what <context> blocks are: it is from before them -> move it away, then"


@pytest.mark.slow
@pytest.mark.breaks("edited prompt", "layout system")
async def test_old_instructions_are_told_with_what_to_do(story: Story, python: Interpreter) -> None:
    """By `check` and on stderr by a chat, in the same words, and what they name helps."""
    config = settings(story.folder, story.model.url)
    file = config.parent / "data/prompts/BASE_PROMPT.txt"
    file.write_text(file.read_text().replace("<context>", "further"))
    words = "check", "--config", str(config)
    done = await python.command(*words, cwd=story.folder, env={"PATH": os.defpath})
    code, said, told = await chat(python, config)
    assert (code, said, told.count("\n")) == (0, "echo: hi\n", 1)
    assert f"warn  prompts: {told}" in done.stdout.decode()
    assert told.startswith(f"BASE_PROMPT.txt {OLD} `wintermute init DIR` writes the new one")
    file.rename(config.parent / "kept")
    await python.command("init", str(config.parent), cwd=story.folder, env={"PATH": os.defpath})
    assert await chat(python, config) == (0, "echo: hi\n", "")
    file.write_text((config.parent / "kept").read_text())
    sections = json.loads(config.read_text())
    config.write_text(json.dumps({**sections, "context": {"layout": "system"}}))
    assert (await chat(python, config))[2] == ""


async def test_only_instructions_that_are_read_are_old(story: Story, python: Interpreter) -> None:
    config = settings(story.folder, story.model.url, size="small")
    prompts = config.parent / "data/prompts"
    (prompts / "BASE_PROMPT.txt").write_text("Be kind.")
    assert await chat(python, config) == (0, "echo: hi\n", "")
    (prompts / "BASE_PROMPT.small.txt").write_text("Be kind.")
    words = "check", "--config", str(config)
    done = await python.command(*words, cwd=story.folder, env={"PATH": os.defpath})
    assert f"warn  prompts: BASE_PROMPT.small.txt {OLD}" in done.stdout.decode()


async def test_a_daemon_logs_old_instructions_once(scene: Scene) -> None:
    daemon = await scene.bot(await scene.person("ann"), start=False)
    file = daemon.data / "prompts/BASE_PROMPT.txt"
    file.write_text(file.read_text().replace("<context>", "further"))
    await daemon.start()
    assert sum(OLD in line for line in daemon.log) == 1


@pytest.mark.slow
async def test_a_daemon_leaves_with_the_numbers_and_another_one_tells_what_is_tight(
    scene: Scene, model: ModelServer
) -> None:
    """By the last reported usage where it is less than our estimate; `status` names it as well."""
    ann = await scene.person("ann")
    known = {"base_url": model.url, "model": "qwen"}
    tight: Json = {"backends": {"scripted": {**known, "context_tokens": 7_000}}}
    daemon = await scene.bot(ann, llm=tight)
    chat = await scene.room(ann, daemon)
    await ann.send(chat, "hello")
    [answer] = await ann.wait_for_count(chat, daemon.user_id, 1)
    assert answer.body == "echo: hello"
    code, told = await daemon.command("status", "--all")
    assert (code, "warn  windows: scripted: instructions and tools take about" in told) == (0, True)
    small: Json = {"backends": {"scripted": {**known, "context_tokens": 1024}}}
    lost = await scene.bot(ann, llm=small, start=False)
    await lost.start(ready=False)
    assert await lost.ended() == 2
    await lost.logged("so no message fits -> raise llm.backends.scripted.context_tokens")
