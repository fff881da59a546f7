"""`memory reconstruct`, `memory add -` and `memory import --split`: the write path at the command line."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.world.clock import WITHIN, HeldClock
from tests.world.house import ANN, PROMPTS, House, open_house
from tests.world.model import Calls, Fail, ModelServer, Seen, Slow, Step, Text, Use
from tests.world.reconstructed import BOTH, LYON, ROME, reconstruction
from tests.world.terminal import Terminal, beside, with_model
from wintermute.config.schema import Memory
from wintermute.memory.fact import storable_parts

LETTER = "Dear all,\n\nAnn moved to Rome in May. She has a dog called Rex.\n\nYours, Bob"
FACTS = ["Ann moved to Rome in May.", "Ann has a dog called Rex."]


@pytest.fixture
async def model(terminal: Terminal) -> AsyncIterator[ModelServer]:
    """The model of the person at the command line."""
    async with ModelServer(rules=False) as server:
        with_model(terminal, server, "fts5")
        yield server


async def test_the_queue_is_worked_when_somebody_asks(
    terminal: Terminal, model: ModelServer
) -> None:
    """M-070, M-097: core is the daemon's, and that is said."""
    for text in (LYON, ROME):
        assert (await beside(terminal, "memory", "add", text)).returncode == 0
    model.script(reconstruction(BOTH))
    done = await beside(terminal, "memory", "reconstruct")
    said = done.stdout.decode().splitlines()
    assert said[0] == "batches 1, kept 0, replaced 2, failed 0", done
    assert said[1:] == ["core.md: the daemon looks at the new memories while it runs"]
    listed = await beside(terminal, "memory", "list", "--json")
    assert [fact["text"] for fact in json.loads(listed.stdout)] == [BOTH]
    again = await beside(terminal, "memory", "reconstruct", "--json")
    assert json.loads(again.stdout) == {"batches": 0, "kept": 0, "replaced": 0, "failed": 0}
    assert len(model.requests) == 1


async def test_a_model_that_is_down_leaves_the_queue_and_fails(
    terminal: Terminal, model: ModelServer
) -> None:
    """M-043, M-070."""
    await beside(terminal, "memory", "add", ROME)
    model.script(Fail(503))
    done = await beside(terminal, "memory", "reconstruct")
    assert (done.returncode, done.stdout) == (1, b"batches 0, kept 0, replaced 0, failed 1\n")
    model.script(reconstruction(ROME))
    done = await beside(terminal, "memory", "reconstruct")
    assert done.stdout.startswith(b"batches 1, kept 1, replaced 0, failed 0\n")


@pytest.mark.parametrize("way", ["add", "import"])
async def test_a_long_text_is_taken_apart(terminal: Terminal, model: ModelServer, way: str) -> None:
    """M-044, M-045."""
    file = terminal.folder / "letter.txt"
    file.write_text(LETTER)
    words = ("add", "-") if way == "add" else ("import", "--split", str(file))
    model.script(Text(json.dumps({"contents": FACTS})))
    done = await beside(terminal, "memory", *words, "--json", given=LETTER.encode())
    assert json.loads(done.stdout)["contents"] == FACTS, done
    [request] = model.requests
    assert f"<raw_input>\n{LETTER}\n</raw_input>" in request.system


async def test_a_text_that_no_model_takes_apart_is_kept_as_it_is(
    terminal: Terminal, model: ModelServer
) -> None:
    """M-045."""
    model.script(Text("no"), Text("no"))
    done = await beside(terminal, "memory", "add", "-", "--json", given=LETTER.encode())
    [kept] = json.loads(done.stdout)["contents"]
    assert kept == " ".join(LETTER.split())


SECRET = "hunter2hunter2"
SECRETIVE = f"{LETTER.removesuffix('Yours, Bob')}The password is {SECRET}\n\nTom is a nurse."


@pytest.mark.parametrize(
    "step", [Text(json.dumps({"contents": FACTS})), Fail(503)], ids=["up", "down"]
)
async def test_a_paragraph_with_a_secret_is_named_and_the_others_are_kept(
    terminal: Terminal, model: ModelServer, step: Step
) -> None:
    """M-031, M-045: no model is shown it, nothing keeps it, and no output repeats it."""
    model.script(step)
    done = await beside(terminal, "memory", "add", "-", given=SECRETIVE.encode())
    assert done.returncode == 1
    assert b"line 5: the paragraph is not stored: it looks like it holds a pass" in done.stderr
    assert SECRET.encode() not in done.stdout + done.stderr
    listed = await beside(terminal, "memory", "list", "--json")
    kept = " ".join(fact["text"] for fact in json.loads(listed.stdout))
    assert "a dog called Rex" in kept
    assert "Tom is a nurse." in kept
    assert SECRET not in kept
    assert SECRET not in json.dumps([seen.body for seen in model.requests])


@pytest.mark.slow
async def test_a_secret_below_its_name_is_refused_with_it(
    terminal: Terminal, model: ModelServer
) -> None:
    """M-031."""
    given = f"Password:\n\n{SECRET}".encode()
    done = await beside(terminal, "memory", "add", "-", given=given)
    assert (done.returncode, done.stdout) == (1, b"stored 0, known already 0\n")
    assert [line.split(b":")[0] for line in done.stderr.splitlines()] == [b"line 1", b"line 3"]
    assert model.requests == []


async def test_each_part_of_a_long_text_is_kept_as_it_is_done(
    terminal: Terminal, model: ModelServer
) -> None:
    """M-045: in one change set, which one undo takes back."""
    gate = asyncio.Event()
    first, second = ("Ann lives in Rome. " * 300, "Tom lives in Bonn. " * 300)
    picked = [Text(json.dumps({"contents": [text[:18]]})) for text in (first, second)]
    model.script(picked[0], Slow(gate, picked[1]))
    async with asyncio.TaskGroup() as group:
        given = f"{first}\n\n{second}".encode()
        done = group.create_task(beside(terminal, "memory", "add", "-", given=given))
        async with asyncio.timeout(WITHIN):
            while len(model.requests) < 2:  # noqa: ASYNC110  a request tells nobody
                await asyncio.sleep(0.005)
        listed = await beside(terminal, "memory", "list", "--json")
        gate.set()
        assert [fact["text"] for fact in json.loads(listed.stdout)] == [first[:18]]
    assert done.result().stdout.endswith(b"stored 2, known already 0\n")
    await beside(terminal, "memory", "undo", "--last")
    listed = await beside(terminal, "memory", "list", "--json")
    assert json.loads(listed.stdout) == []


async def test_a_text_that_is_too_long_is_refused_with_what_to_do(
    terminal: Terminal, model: ModelServer
) -> None:
    given = ("Ann lives in Rome. " * 11_000).encode()
    done = await beside(terminal, "memory", "add", "-", given=given)
    assert done.returncode == 1
    assert b"at most 200,000 characters" in done.stderr
    assert b"Make several files of it" in done.stderr
    assert model.requests == []


PASTED = "Ann moved to Rome in May. She has a dog called Rex. " * 50
MINE = f"person:{ANN}"


def keeps_the_letter(seen: Seen) -> Step | None:
    if "<raw_input>" in seen.system:
        return Text(json.dumps({"contents": FACTS}))
    if "remember" in seen.last_user and seen.messages[-1]["role"] == "user":
        return Calls((Use("append_memory", {"entry": PASTED}),))
    return None


@asynccontextmanager
async def letter_kept(
    folder: Path,
    slots: int | None,
    memory: Memory = Memory(backend="fts5"),  # noqa: B008  frozen
    model_says: Callable[[Seen], Step | None] = keeps_the_letter,
) -> AsyncIterator[tuple[House, HeldClock, ModelServer]]:
    """A chat in which somebody just asked to remember a long letter."""
    clock = HeldClock()
    async with ModelServer(slots=slots) as model:
        model.keyed(model_says)
        opened = open_house(folder, model.url, prompts=PROMPTS, memory=memory, clock=clock)
        async with opened as house, house.working():
            await house.incoming("remember the letter")
            await house.said(1)
            yield house, clock, model


async def became(house: House, *texts: str) -> None:
    """Wait until just these are remembered."""
    async with asyncio.timeout(WITHIN):
        while [f.text for f in await house.stores.facts.live(MINE)] != [*texts]:  # noqa: ASYNC110  a job tells nobody
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("backend", ["fts5", "flat_file"])
async def test_a_pasted_letter_is_taken_apart_in_the_background(
    tmp_path: Path, backend: str
) -> None:
    """M-045, M-076: what is too long for one memory is not refused, and taken back by one gesture."""
    memory = Memory(backend=backend)  # type: ignore[arg-type]  # one of them
    async with letter_kept(tmp_path, None, memory) as (house, _, _):
        house.runner.wake("split")
        await became(house, *FACTS)
        queues = await house.stores.facts.queues(house.database)
        assert [queue.facts for queue in queues] == [len(FACTS)]
        sources = {fact.source for fact in await house.stores.facts.live(MINE)}
        assert sources == {"user_explicit"}
        await house.incoming("/undo")
        said = (await house.said(2))[1].splitlines()
        assert sorted(said) == [f"- the memory is gone again: {text}" for text in sorted(FACTS)]
        await became(house)
        again = await house.one("SELECT id FROM change_sets WHERE cause = 'undo'")
        await house.incoming(f"/undo {again['id']}")
        await house.said(3)
        await became(house, *FACTS)


KEY, DOSE = "The key is below the flowerpot.", "The cat takes 5 mg of ramipril at nine."
ROOMS = [f"Room {n} has a window." for n in range(140)]
PICKED = [KEY, *ROOMS]
BARKS = f"{DOSE} {'Rex barks at the postman. ' * 160}Yours, Bob"
LEFT = {
    "a sentence": (f"{KEY} {DOSE} {' '.join(ROOMS)}", [f"{KEY} {DOSE}"]),
    "a paragraph": (f"{DOSE}\n\n{KEY} {' '.join(ROOMS)}\n\nYours, Bob", [DOSE]),
    "a part": (f"{' '.join(PICKED)}\n\n{BARKS}", storable_parts(BARKS)),
}


@pytest.mark.parametrize(("letter", "left"), LEFT.values(), ids=LEFT)
async def test_what_no_fact_of_a_letter_says_stays_as_it_was_written(
    tmp_path: Path, letter: str, left: list[str]
) -> None:
    """M-039, M-045: only what is covered goes with the letter, and a part without a fact is kept."""

    def says(seen: Seen) -> Step | None:
        shown = seen.system
        if "<raw_input>" in shown:
            return Text(json.dumps({"contents": PICKED if KEY in shown else []}))
        if "remember" in seen.last_user and seen.messages[-1]["role"] == "user":
            return Calls((Use("append_memory", {"entry": f"Dear Ann,\n\n{letter}"}),))
        return None

    async with letter_kept(tmp_path, None, model_says=says) as (house, _, _):
        house.runner.wake("split")
        await became(house, *PICKED, *left)


async def test_a_letter_waits_for_a_quiet_hour_where_a_server_has_one_slot(tmp_path: Path) -> None:
    """M-045, M-064: it is found as it is meanwhile."""
    async with letter_kept(tmp_path, 1) as (house, clock, model):
        house.runner.wake("split")
        await house.incoming("/memory Rex")
        assert "called Rex" in (await house.said(2))[1]
        assert len(model.requests) == 2
        await clock.move(6 * 3600)
        house.runner.wake("split")
        await became(house, *FACTS)


async def test_a_letter_that_was_taken_back_meanwhile_is_not_taken_apart(tmp_path: Path) -> None:
    """M-076."""
    async with letter_kept(tmp_path, 1) as (house, clock, _):
        await house.incoming("/undo")
        await house.said(2)
        await clock.move(6 * 3600)
        house.runner.wake("split")
        async with asyncio.timeout(WITHIN):
            open_jobs = "SELECT 1 FROM jobs WHERE name = 'split' AND state <> 'done'"
            while await house.rows(open_jobs):  # noqa: ASYNC110  a job tells nobody
                await asyncio.sleep(0.005)
        assert await house.stores.facts.live(MINE) == []


async def test_what_a_person_says_of_a_long_text_holds_for_all_that_is_in_it(
    terminal: Terminal, model: ModelServer
) -> None:
    """M-045, M-074: whose it is, how it was learnt, and until when it is true."""
    bob = "person:@bob:example.org"
    file = terminal.folder / "letter.txt"
    file.write_text(LETTER)
    ways = (
        ("add", "-", "--source", "harvest", "--until", "2026-05-01", "--scope", bob),
        ("import", "--split", "--scope", bob, str(file)),
    )
    for words in ways:
        model.script(Text(json.dumps({"contents": FACTS})))
        done = await beside(terminal, "memory", *words, given=LETTER.encode())
        assert done.returncode == 0, done
    exported = await beside(terminal, "memory", "export", "-", "--scope", bob)
    lines = [json.loads(line) for line in exported.stdout.splitlines()]
    assert sorted(line["text"] for line in lines) == sorted(2 * FACTS)
    old = [line for line in lines if line["source"] == "harvest"]
    assert sorted(line["text"] for line in old) == sorted(FACTS)
    assert {line["valid_to"] for line in old} == {"2026-05-01T00:00:00.000000+00:00"}
    assert {line["source"] for line in lines} == {"harvest", "user_explicit"}
