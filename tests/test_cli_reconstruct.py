"""`memory reconstruct`, `memory add -` and `memory import --split`: the write path at the command line."""

import asyncio
import json
from pathlib import Path

import pytest

from tests.test_memory_beside import beside
from tests.test_reconstruction import BOTH, LYON, ROME, answer
from tests.world.house import PROMPTS, WITHIN, open_house
from tests.world.model import Calls, Fail, ModelServer, Seen, Step, Text, Use
from tests.world.terminal import Terminal
from wintermute.config.schema import Memory
from wintermute.templates import shipped_prompts

LETTER = "Dear all,\n\nAnn moved to Rome in May. She has a dog called Rex.\n\nYours, Bob"
FACTS = ["Ann moved to Rome in May.", "Ann has a dog called Rex."]


def asks(terminal: Terminal, model: ModelServer, memory: str) -> None:
    """A configuration that asks the scripted model."""
    (terminal.data / "prompts").mkdir(exist_ok=True)
    for name, text in shipped_prompts().items():
        (terminal.data / "prompts" / name).write_text(text)
    config = terminal.folder / "config.yaml"
    lines = [
        "data_dir: data",
        "matrix: {homeserver: http://localhost, user_id: '@bot:example.org',"
        " password: {env: WINTERMUTE_PASSWORD}, owner: '@you:example.org'}",
        f"llm: {{max_retries: 0, backends: {{local: {{base_url: '{model.url}', model: scripted}}}},"
        " roles: {base: [local]}}",
        f"memory: {{backend: {memory}, embeddings: {{provider: none}}}}",
    ]
    config.write_text("\n".join(lines) + "\n")


async def test_the_queue_is_worked_when_somebody_asks(terminal: Terminal) -> None:
    """M-070."""
    async with ModelServer(rules=False) as model:
        asks(terminal, model, "fts5")
        for text in (LYON, ROME):
            assert (await beside(terminal, "memory", "add", text)).returncode == 0
        model.script(answer(BOTH))
        done = await beside(terminal, "memory", "reconstruct")
        assert done.stdout == b"batches 1, kept 0, replaced 2, failed 0\n", done
        listed = await beside(terminal, "memory", "list", "--json")
        assert [fact["text"] for fact in json.loads(listed.stdout)] == [BOTH]
        again = await beside(terminal, "memory", "reconstruct", "--json")
        assert json.loads(again.stdout) == {"batches": 0, "kept": 0, "replaced": 0, "failed": 0}
    assert len(model.requests) == 1


async def test_a_model_that_is_down_leaves_the_queue_and_fails(terminal: Terminal) -> None:
    """M-043, M-070."""
    async with ModelServer(rules=False) as model:
        asks(terminal, model, "fts5")
        await beside(terminal, "memory", "add", ROME)
        model.script(Fail(503))
        done = await beside(terminal, "memory", "reconstruct")
        assert (done.returncode, done.stdout) == (1, b"batches 0, kept 0, replaced 0, failed 1\n")
        model.script(answer(ROME))
        done = await beside(terminal, "memory", "reconstruct")
        assert done.stdout == b"batches 1, kept 1, replaced 0, failed 0\n"


@pytest.mark.parametrize("way", ["add", "import"])
async def test_a_long_text_is_taken_apart(terminal: Terminal, way: str) -> None:
    """M-044, M-045."""
    file = terminal.folder / "letter.txt"
    file.write_text(LETTER)
    words = ("add", "-") if way == "add" else ("import", "--split", str(file))
    async with ModelServer(rules=False) as model:
        asks(terminal, model, "fts5")
        model.script(Text(json.dumps({"contents": FACTS})))
        done = await beside(terminal, "memory", *words, "--json", given=LETTER.encode())
        assert json.loads(done.stdout)["contents"] == FACTS, done
    [request] = model.requests
    assert f"<raw_input>\n{LETTER}\n</raw_input>" in request.messages[0]["content"]


async def test_a_text_that_no_model_takes_apart_is_kept_as_it_is(terminal: Terminal) -> None:
    """M-045."""
    async with ModelServer(rules=False) as model:
        asks(terminal, model, "fts5")
        model.script(Text("no"), Text("no"))
        done = await beside(terminal, "memory", "add", "-", "--json", given=LETTER.encode())
        [kept] = json.loads(done.stdout)["contents"]
        assert kept == " ".join(LETTER.split())


async def test_a_pasted_letter_is_taken_apart_in_the_background(tmp_path: Path) -> None:
    """M-045: what is too long for one memory is not refused."""
    letter = "Ann moved to Rome in May. She has a dog called Rex. " * 50
    async with ModelServer() as model:

        def steps(seen: Seen) -> Step | None:
            if "<raw_input>" in seen.prompt or "<raw_input>" in seen.last_user:
                return Text(json.dumps({"contents": FACTS}))
            if "remember" in seen.last_user and seen.messages[-1]["role"] == "user":
                return Calls((Use("append_memory", {"entry": letter}),))
            return Text("kept")

        model.keyed(steps)
        opened = open_house(tmp_path, model.url, prompts=PROMPTS, memory=Memory(backend="fts5"))
        async with opened as house, house.working():
            await house.incoming("remember the letter")
            await house.said(1)
            house.runner.ring("split")

            async def there() -> bool:
                return bool(await house.stores.facts.live("person:@ann:test"))

            async with asyncio.timeout(WITHIN):
                while not await there():  # noqa: ASYNC110  a job that is over tells nobody
                    await asyncio.sleep(0)
            texts = [fact.text for fact in await house.stores.facts.live("person:@ann:test")]
    assert texts == FACTS
