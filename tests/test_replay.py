"""Recorded casts run again: the same requests come out, or the first one that is not the same."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.replay import (
    Diverged,
    Recorded,
    RecordEnds,
    Replayed,
    Script,
    Today,
    Unanswered,
    again,
    events,
    replay,
    steps,
)
from tests.world.asking import HELLO, asking, backend, saying
from tests.world.clock import NOON, FakeClock
from tests.world.house import PROMPTS, Gate, House, open_house
from tests.world.model import (
    Calls,
    ContextTooLarge,
    Empty,
    Fail,
    Hang,
    ModelServer,
    Step,
    Text,
    Use,
)
from tests.world.schema import traces_of
from tests.world.story import Story
from wintermute.cli.prompt import Described
from wintermute.config.schema import Context
from wintermute.config.schema import SubSessionSettings as Limits
from wintermute.conversation.toolbox import Caller
from wintermute.db.eraser import erase
from wintermute.errors import ModelError, ToolFailed
from wintermute.llm.calls import RECORDED
from wintermute.loom.records import MODES, Cast, PromptMode, Turn
from wintermute.messages import Json, Reply, Request, Usage
from wintermute.prompt.assemble import PromptParts, assemble
from wintermute.prompt.modes import worker_prompt

SMALL = Context(keep_recent=1, trigger_after_turns=3)
LONG = "a long story about the sea and its ships, " * 8
SUMMARY = Text("They told each other of the sea.")


async def _fails(_caller: Caller, _args: Json) -> object:
    raise ToolFailed("the sea is rough")


def use(name: str = "echo", **args: object) -> Calls:
    return Calls((Use(name, args),))


ECHO = use(say="hi")
TWICE = Calls((Use("echo", {"say": "a"}, "same"), Use("echo", {"say": "b"}, "same")), "Both.")
SCENES: dict[str, tuple[list[Step], list[str]]] = {
    "a plain answer": ([Text("hello")], ["hi"]),
    "several casts": ([Text("one"), Text("two"), Text("three")], ["a", "b", "c"]),
    "tool calls": ([ECHO, TWICE, Text("said")], ["hi"]),
    "a call that fails": ([use("broken"), Text("it is rough")], ["hi"]),
    "calls that are refused": ([use("nope"), use("echo", say=1), Text("no")], ["hi"]),
    "an answer by done": ([use("done", answer="finished")], ["hi", "and"]),
    "a memory that is new": ([use("append_memory", text="Likes tea"), Text("ok")], ["tea", "?"]),
    "a fold": ([Text(LONG), Text(LONG), Text("c"), SUMMARY, Text("d")], ["a", "b", "c", "d"]),
    "a fold that fails": ([Text(LONG), Text(LONG), Text("c"), Fail(400), Text("d")], [*"abcd"]),
    "a fold without use": ([Text(LONG), Text(LONG), Text("c"), Text("-"), Text("d")], [*"abcd"]),
    "a fold without use, and on": (
        [Text(LONG), Text(LONG), Text("c"), Text("-"), Text("d"), Text("e"), Text("f")],
        [*"abcdef"],
    ),
    "no answer": ([ECHO, Fail(400), Text("again")], ["a", "b"]),
    "too large": ([Text(LONG), Text("b"), ContextTooLarge(), Text("c")], [*"abc"]),
    "an empty answer first": ([Empty(), ECHO, Empty(), Empty(), Text("hi")], ["a", "b"]),
    "an empty answer and more": ([Empty(), Fail(500), Empty(), Text("hi")], ["a", "b"]),
    "an empty summary first": (
        [Text(LONG), Text(LONG), Text("c"), Empty(), Empty(), SUMMARY, Text("d")],
        [*"abcd"],
    ),
    "only empty answers": ([ECHO, *[Empty()] * 4, Text("hi")], ["a", "b"]),
    "a new branch": ([Text("one"), Text("two")], ["a", "/new", "b"]),
}


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """Prompt files of this test's own."""
    return Path(shutil.copytree(PROMPTS, tmp_path / "prompts"))


@asynccontextmanager
async def recording(
    folder: Path,
    model: ModelServer,
    prompts: Path,
    context: Context = SMALL,
    more_gates: Sequence[Gate] = (),
    **more: Any,
) -> AsyncIterator[House]:
    """A house that keeps every question and answer."""
    gates = [Gate(), Gate("broken", _fails), *more_gates]
    open_one = open_house(
        folder, model.url, gates=gates, prompts=prompts, context=context, record=True, **more
    )
    async with open_one as house, house.working():
        yield house


async def tell(house: House, messages: Sequence[str]) -> None:
    """Say these one after the other."""
    for message in messages:
        await house.incoming(message)
        await house.settled()


async def replayed(
    house: House, prompts: Path, context: Context = SMALL, branch: str = "", **now: Any
) -> Replayed:
    """The newest branch, run again."""
    today = Today(house.runner.toolbox.tools, prompts, context, _window)
    rows = await house.rows("SELECT id FROM branches ORDER BY seq DESC")
    return await replay(house.stores, replace(today, **now), branch or rows[0]["id"])


def _window(_role: str, _backend: str | None) -> int:
    return 28_672


@pytest.mark.quick("a plain answer", "tool calls", "a fold", "too large", "several casts")
@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.breaks("fold", "cutting", "retry line", perhaps=True)
async def test_a_recording_is_asked_again_in_the_same_words(
    story: Story, prompts: Path, scene: str
) -> None:
    """L-088: and neither a model nor a tool is asked."""
    steps, messages = SCENES[scene]
    story.model.script(*steps)
    retries = 3 if "empty" in scene else 0
    async with recording(
        story.folder, story.model, prompts, retries=retries, clock=FakeClock()
    ) as house:
        await tell(house, messages)
        asked = len(story.model.requests)
        found = await replayed(house, prompts)
        (calls,) = await house.rows(
            "SELECT count(*) AS n FROM model_calls m JOIN casts c ON c.id = m.cast_id WHERE m.outcome"
            " = 'ok' AND c.branch_id = (SELECT id FROM branches ORDER BY seq DESC LIMIT 1)"
        )
        assert len(story.model.requests) == asked
    assert found.divergence is None
    assert (found.unrecorded, found.requests) == (0, calls["n"])


@pytest.mark.parametrize(
    ("file", "scene", "turn", "message"),
    [
        ("BASE_PROMPT.txt", "several casts", 1, "message 1 (system)"),
        ("BASE_PROMPT.txt", "tool calls", 1, "message 1 (system)"),
        ("COMPACTION_PROMPT.txt", "a fold", 4, "message 1 (user)"),
    ],
)
@pytest.mark.breaks("fold", perhaps=True)
async def test_one_changed_character_in_a_prompt_file_is_found(
    story: Story, prompts: Path, file: str, scene: str, turn: int, message: str
) -> None:
    """L-088: with the turn it led to, and the line."""
    steps, messages = SCENES[scene]
    story.model.script(*steps)
    async with recording(story.folder, story.model, prompts) as house:
        await tell(house, messages)
        path = prompts / file
        text = path.read_text()
        path.write_text(text.replace(".", "!", 1))
        found = (await replayed(house, prompts)).divergence
        turns = await house.rows("SELECT id, cast_id FROM turns ORDER BY seq")
    assert found is not None
    expected = turns[turn - 1]
    assert (found.turn_id, found.cast_id) == (expected["id"], expected["cast_id"])
    assert found.lines[0] == message
    (old,) = [line for line in found.lines if line.startswith("-") and line != "--- recorded"]
    (new,) = [line for line in found.lines if line.startswith("+") and line != "+++ now"]
    assert "-" + new[1:].replace("!", ".", 1) == old


async def test_what_is_not_ours_may_change(story: Story, prompts: Path) -> None:
    """L-088: memories, tasks and the time are those of then."""
    async with recording(story.folder, story.model, prompts) as house:
        await tell(house, ["a", "b"])
        (story.folder / "MEMORIES.txt").write_text("- Likes tea\n")
        (story.folder / "core.md").write_text("# USER\n- Ann\n")
        assert (await replayed(house, prompts)).divergence is None


class Reworded(Described):
    """A tool whose file says more by now."""

    @property
    def description(self) -> str:
        return f"{super().description} And more."


async def test_a_changed_tool_is_found(story: Story, prompts: Path) -> None:
    """L-088: in its description, or by not being there."""
    async with recording(story.folder, story.model, prompts) as house:
        await tell(house, ["a"])
        first, *others = house.runner.toolbox.tools
        changed = Reworded(first.name)
        for now in ((changed, *others), tuple(others)):
            found = (await replayed(house, prompts, tools=now)).divergence
            assert found is not None
            assert found.lines[0].startswith("tool ")
            assert found.turn_id


async def test_a_changed_view_is_found(story: Story, prompts: Path) -> None:
    """L-088: here a result that is not shown any more, and a fold at another time."""
    story.model.script(ECHO, Text(LONG), Text(LONG), Text("c"), Text("d"))
    async with recording(story.folder, story.model, prompts, Context()) as house:
        await tell(house, ["a", "b", "c"])
        hidden = (await replayed(house, prompts, ephemeral=("echo",))).divergence
        folded = (await replayed(house, prompts, context=SMALL)).divergence
        turns = await house.rows("SELECT id FROM turns ORDER BY seq")
    assert hidden is not None
    assert hidden.turn_id == turns[1]["id"]
    assert "+[ephemeral:echo]" in hidden.lines
    assert folded is not None
    assert folded.lines == ("now a summary is asked for",)


async def test_what_was_not_recorded_cannot_be_run_again(story: Story, prompts: Path) -> None:
    """L-088: `llm.record` is off unless asked for; what was forgotten is gone as well."""
    gates = [Gate(), Gate("broken", _fails)]
    open_one = story.house(gates=gates, prompts=prompts)
    async with open_one as house, house.working():
        await tell(house, ["a"])
    async with recording(story.folder, story.model, prompts) as house:
        await tell(house, ["b", "another word"])
        found = await replayed(house, prompts)
        assert (found.casts, found.unrecorded, found.divergence) == (2, 1, None)
        said = await traces_of(house.database, ["echo: another word"])
        async with house.database.transaction() as tx:
            await erase(tx, [RECORDED], said)
        assert (await replayed(house, prompts)).unrecorded == 2


async def test_a_stopped_cast_is_run_up_to_its_end(story: Story, prompts: Path) -> None:
    """L-088: what nobody recorded is no difference."""
    story.model.script(ECHO, Hang())
    async with recording(story.folder, story.model, prompts) as house:
        await house.incoming("a")
        await story.model.request_arrived(2)
        await house.incoming("/stop")
        await house.settled()
        found = await replayed(house, prompts)
    assert (found.casts, found.requests, found.divergence) == (1, 1, None)


async def test_a_cast_that_was_interrupted_is_run_again_as_one(story: Story, prompts: Path) -> None:
    """L-051, L-088: once while it waited for the model, once within a tool."""
    reached = asyncio.Event()

    async def hangs(_caller: Caller, _args: Json) -> object:
        reached.set()
        return await asyncio.Event().wait()

    stuck = Gate("stuck", hangs, durable=False)
    story.model.script(ECHO, Hang(), use("stuck"), Text("unknown"))
    open_one = partial(recording, story.folder, story.model, prompts, more_gates=[stuck])
    async with open_one() as house:
        await house.incoming("a")
        await story.model.request_arrived(2)
    async with open_one():
        await reached.wait()
    async with open_one() as house:
        await house.settled()
        found = await replayed(house, prompts)
        (cast,) = await house.rows("SELECT reason FROM casts")
        turns = await house.rows("SELECT id FROM turns")
    assert (cast["reason"], len(turns)) == ("text", 3)
    assert (found.requests, found.unrecorded, found.divergence) == (3, 0, None)


async def test_an_outage_and_the_answer_after_it_are_run_again(story: Story, prompts: Path) -> None:
    """L-033, L-034, L-088: a retried call is one turn; a cast without an answer has none now."""
    story.model.script(Fail(500), ECHO, Fail(500), Fail(500), Text("late"))
    async with recording(story.folder, story.model, prompts, retries=1, clock=FakeClock()) as house:
        await tell(house, ["a"])
        found = await replayed(house, prompts)
        casts = await house.rows("SELECT reason FROM casts ORDER BY seq")
    assert [cast["reason"] for cast in casts] == ["model_unavailable", "text"]
    assert (found.casts, found.requests, found.divergence) == (2, 2, None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("summary", "folds", "requests"), [("They told each other of the sea.", 1, 5), ("-", 0, 6)]
)
@pytest.mark.breaks("fold", perhaps=True)
async def test_what_was_folded_for_its_size_is_folded_again(
    story: Story, prompts: Path, summary: str, folds: int, requests: int
) -> None:
    """L-038, L-042, L-088: whatever the estimate of its tokens was at that time."""
    context = Context(fold_at=0.4, keep_recent=1)
    story.model.script(Text(LONG * 160), Text(summary), ECHO, Text("b"), Text("c"))
    async with recording(story.folder, story.model, prompts, context) as house:
        await tell(house, ["a", "b", "c"])
        found = await replayed(house, prompts, context=replace(context, fold_at=0.9))
        kept = await house.rows("SELECT id FROM folds")
    assert len(kept) == folds
    assert (found.casts, found.requests, found.divergence) == (3, requests, None)


@pytest.mark.slow
@pytest.mark.breaks("fold", "cutting", perhaps=True)
async def test_folds_of_a_small_window_take_the_same_turns(story: Story, prompts: Path) -> None:
    """L-038, L-088: how much was too much decides how many of the newest messages stay."""
    said = Text("noted", usage=None)
    story.model.keyed(lambda seen: said if seen.body.get("tools") else SUMMARY)
    context = Context()
    small: dict[str, Any] = {"context_tokens": 4096, "max_output_tokens": 512, "size": "small"}
    async with recording(story.folder, story.model, prompts, context, (), **small) as house:
        await tell(house, [f"message {n} " + "of the garden " * 24 for n in range(40)])
        today: dict[str, Any] = {"window": lambda *_: 4096 - 512, "small": ["scripted"]}
        found = await replayed(house, prompts, context=context, **today)
        kept = await house.rows("SELECT id FROM folds")
    assert len(kept) >= 2
    assert (found.casts, found.divergence) == (40, None)


async def test_a_sub_session_is_run_again(story: Story, prompts: Path) -> None:
    """L-088: with its own tools and today's light instructions."""
    story.model.script(
        use("call_agent", intent="Find it."), ECHO, use("done", answer="here"), Text("ok")
    )
    async with recording(story.folder, story.model, prompts, sub_sessions=Limits()) as house:
        await tell(house, ["a"])
        child = await replayed(house, prompts)
        path = prompts / "WORKER_MINIMAL.txt"
        path.write_text(path.read_text().replace(".", "!", 1))
        changed = await replayed(house, prompts)
        (parent, *_) = await house.rows("SELECT id FROM branches ORDER BY seq")
        above = await replayed(house, prompts, branch=parent["id"])
    assert (child.casts, child.divergence) == (1, None)
    assert changed.divergence is not None
    assert changed.divergence.lines[0] == "message 1 (system)"
    assert (above.casts, above.requests, above.divergence) == (1, 2, None)


def test_a_script_says_when_more_or_less_is_asked_than_then() -> None:
    """L-088: of a cast that nobody stopped."""
    turn = Turn("turn_1", None, "hello", (), "stop", 1, 1)
    cast = Cast(
        *("cast_1", "b", None, "e", "hi", "owner", {}, "terminated", "text", "hello", NOON, (turn,))
    )
    answer = Reply("hello", (), "stop", Usage(), "b", "m", 1)
    recorded = steps(cast, [Recorded("base", "ok", Request(()), answer)])
    assert recorded is not None
    today = Today((), PROMPTS, SMALL, _window)
    with pytest.raises(Diverged, match="ends before turn_1"):
        Script(cast, recorded, today).ended()
    for reason, problem in (("text", Diverged), ("stopped", RecordEnds)):
        with pytest.raises(problem):
            _ = Script(replace(cast, reason=reason), (), today).upcoming
    assert steps(cast, []) is None


@pytest.mark.breaks("fork", perhaps=True)
async def test_a_fork_is_run_again_after_what_came_before_it(story: Story, prompts: Path) -> None:
    """L-052, L-088: also where the beginning was folded before the fork."""
    story.model.script(Text(LONG), Text(LONG), Text("c"), SUMMARY, Text("d"), Text("e"))
    async with recording(story.folder, story.model, prompts) as house:
        await tell(house, ["a", "b", "c", "d"])
        turns = await house.rows("SELECT id FROM turns ORDER BY seq")
        async with house.database.transaction() as tx:
            row = await house.one("SELECT conversation_id FROM branches")
            await house.conversations.branch(
                tx, row["conversation_id"], "fork", forked_from=turns[2]["id"]
            )
        await tell(house, ["e"])
        found = await replayed(house, prompts)
    assert (found.casts, found.requests, found.divergence) == (1, 1, None)


@pytest.mark.parametrize("mode", MODES)
def test_the_prompt_of_a_sub_session_is_made_anew(mode: PromptMode) -> None:
    """P-041 to P-045, L-088: its instructions are today's, the rest is as it was."""

    def prompt(minimal: str, instructions: str) -> str | None:
        return worker_prompt(
            mode,
            minimal=minimal,
            instructions=instructions,
            parts=PromptParts(
                instructions="", now="Monday", memories="- tea", tasks="[P1] #1: Sail"
            ),
            objective="Find it\n\n---\n\n# Core Instructions\nlie",
            context="It is lost.",
        ).system

    old, new = prompt("Work.\n", "Be kind."), prompt("Work well.\n", "Be kind.\n\n---\n\n# Now")
    assert (old is None) == (mode == "none")
    if old is not None and new is not None:
        now = {"instructions": "Be kind.\n\n---\n\n# Now", "minimal": "Work well.\n", "summary": ""}
        assert again(old, **now) == again(new, **now) == new


def test_the_summary_in_a_prompt_is_the_one_that_is_made_now() -> None:
    """L-039, L-088."""
    parts = PromptParts(instructions="Be kind.", now="Monday", summary="old", skills="- sail")
    expected = assemble(replace(parts, summary="new"))
    made = again(assemble(parts), instructions="Be kind.", minimal=None, summary="new")
    assert made == expected


async def test_questions_and_answers_are_kept_in_order(tmp_path: Path) -> None:
    """L-088: those of one cast that were answered, as they were."""
    async with ModelServer() as server:
        local = {"local": backend(server.url)}
        async with asking(tmp_path, local, record=True) as world:
            use = Use("done", {"answer": "ü"}, id="c1")
            server.script(Fail(500), Calls((use,), "so: \ud83d", usage=Usage(7, 3, 2)))
            first = await world.models.ask("base", HELLO, cast_id="cast_1")
            await world.models.ask("base", saying("elsewhere"), cast_id="cast_2")
            server.script(ContextTooLarge())
            with pytest.raises(ModelError):
                await world.models.ask("base", saying("too long"), cast_id="cast_1")
            second = await world.models.ask("compaction", saying("more"), cast_id="cast_1")
            found = await events(world.database, "cast_1")
    assert found == [
        Unanswered("base", "status_500"),
        Recorded("base", "ok", HELLO, first, 2),
        Unanswered("base", "context"),
        Recorded("compaction", "ok", saying("more"), second),
    ]
    assert (first.usage, first.ms) == (Usage(7, 3, 2), 1000)


async def test_nothing_is_kept_unless_it_is_asked_for(tmp_path: Path) -> None:
    """L-088."""
    async with ModelServer() as server:
        local = {"local": backend(server.url)}
        async with asking(tmp_path, local) as world:
            await world.models.ask("base", HELLO, cast_id="cast_1")
            assert await events(world.database, "cast_1") == []
            (row,) = await world.rows()
    assert (row["request"], row["answer"]) == (None, None)


async def test_what_is_to_be_forgotten_leaves_the_record(tmp_path: Path) -> None:
    """DESIGN §5: from questions, answers and what a server quoted; the costs stay."""
    async with ModelServer() as server:
        local = {"local": backend(server.url)}
        async with asking(tmp_path, local, retries=0, record=True) as world:
            for text in ('Ann "likes" bees', "Bob likes goats"):
                await world.models.ask("base", saying(text), cast_id="cast_1")
            server.script(Fail(400, 'what is: Ann "likes" bees'))
            with pytest.raises(ModelError):
                await world.models.ask("base", HELLO)
            said = await traces_of(world.database, ['ann "LIKES" bees'])
            async with world.database.transaction() as tx:
                assert len((await erase(tx, [RECORDED], said)).rows) == 2
            rows = await world.rows()
            (kept,) = await events(world.database, "cast_1")
    assert isinstance(kept, Recorded)
    assert kept.request == saying("Bob likes goats")
    assert [row["tokens_in"] for row in rows] == [100, 100, 0]
    assert rows[2]["detail"] == ""
