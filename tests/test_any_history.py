"""Whatever happened in a room, each request that leaves is one that a model can answer."""

import asyncio
import json
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.tiers import examples
from tests.world.forks import edit
from tests.world.house import SYSTEM, Gate, House, open_house, open_thread
from tests.world.model import (
    Calls,
    ContextTooLarge,
    Empty,
    Hang,
    ModelServer,
    Seen,
    Step,
    Text,
    Use,
    is_for_summary,
)
from tests.world.prefixes import CAUSES
from tests.world.schema import traces_of
from wintermute.config.schema import Context
from wintermute.conversation.toolbox import Caller
from wintermute.db.eraser import erase
from wintermute.loom.casts import LOOM
from wintermute.messages import Json

CONTEXT, ANSWER = 3000, 600
DEEDS = ("say", "long", "huge", "use", "done", "edit", "fork", "thread", "forget")
COMMANDS = ("/compact", "/new", "/stop")
MOODS = ("good summaries", "bad summaries", "smaller window", "kill")


async def big(_caller: Caller, args: Json) -> object:
    return {"say": args.get("say", ""), "found": "y" * 700}


class Drive:
    """One room, what happens in it, and what its model sees."""

    def __init__(self, folder: Path, model: ModelServer, keep: int) -> None:
        self._folder = folder
        self._model = model
        self._keep = keep
        self._stack = AsyncExitStack()
        self._said = 0
        self._hang = False
        self._bad = False
        self._window = CONTEXT - ANSWER
        self.wrong: list[str] = []
        model.keyed(self._answer)

    def _answer(self, seen: Seen) -> Step:
        if is_for_summary(seen.body):
            return Empty() if self._bad else Text("a summary of what was said", usage=None)
        self._look(seen)
        if self._hang:
            self._hang = False
            return Hang()
        body = [seen.messages, seen.body["tools"]]
        if len(json.dumps(body, ensure_ascii=False).encode()) / 3 > self._window:
            return ContextTooLarge()
        if seen.messages[-1]["role"] == "user" and "use" in seen.last_user:
            spoilt = (Use("echo", '{"say": "b",}', "x"), Use("fly"), Use("echo", '{"say'))
            return Calls((Use("echo", {"say": "a"}, "x"), *spoilt), "let me see", usage=None)
        if seen.messages[-1]["role"] == "user" and "done" in seen.last_user:
            return Calls((Use("done", {"answer": "so"}), Use("echo")), usage=None)
        return Text(f"noted {seen.last_user[:9]}", usage=None)

    def _look(self, seen: Seen) -> None:
        size = len(json.dumps([seen.messages, seen.body["tools"]], ensure_ascii=False).encode())
        if size / 3 > CONTEXT - ANSWER:
            self.wrong.append(f"too large: {size}")
        if not seen.system.startswith(SYSTEM):
            self.wrong.append("no system prompt")
        if any(not m["content"] for m in seen.messages if m["role"] != "assistant"):
            self.wrong.append("an empty message")

    async def open(self) -> House:
        context = Context(keep_recent=self._keep)
        opened = open_house(
            self._folder,
            self._model.url,
            gates=[Gate(act=big)],
            context=context,
            context_tokens=CONTEXT,
            max_output_tokens=ANSWER,
        )
        house = await self._stack.enter_async_context(opened)
        await self._stack.enter_async_context(house.working())
        return house

    async def aclose(self) -> None:
        await self._stack.aclose()

    async def do(self, house: House, deed: str) -> House:
        """Let something happen; the house it happened in, or the one after a kill."""
        self._said += 1
        if deed in MOODS[:3]:
            self._bad = deed == "bad summaries"
            self._window = (CONTEXT - ANSWER) // (2 if deed == "smaller window" else 1)
        elif deed == "kill":
            asked, self._hang = len(self._model.requests), True
            await house.incoming(f"hang {self._said}")
            while self._hang:
                asked += 1
                await self._model.request_arrived(asked)
            await self.aclose()
            house = await self.open()
        else:
            await self._say(house, deed)
        await house.settled()
        return house

    async def _say(self, house: House, deed: str) -> None:
        newest = await house.rows(
            "SELECT event_id FROM inbox WHERE kind = 'message' AND edits IS NULL"
            " ORDER BY seq DESC LIMIT 1"
        )
        if deed in COMMANDS:
            await house.incoming(deed)
        elif deed == "edit" and newest:
            await edit(house, newest[0]["event_id"], f"edit {self._said}")
        elif deed == "fork":
            await self._fork(house)
        elif deed == "thread" and newest:
            rows = await house.rows("SELECT event_id FROM inbox WHERE kind = 'message'")
            thread = await open_thread(house.stores, root=rows[self._said % len(rows)]["event_id"])
            await house.incoming(f"use {self._said}", conversation=thread)
        elif deed == "forget" and newest:
            said = await traces_of(house.database, ["a summary"])
            async with house.database.transaction() as tx:
                came = await house.casts.came_of(tx, [newest[0]["event_id"]])
                await erase(tx, LOOM, said, came)
        else:
            words = {"long": "word " * 200, "huge": "word " * 5000}
            await house.incoming(f"{deed} {self._said} {words.get(deed, '')}")

    async def _fork(self, house: House) -> None:
        turns = await house.rows("SELECT id FROM turns")
        rooms = await house.rows("SELECT id FROM conversations")
        if turns:
            turn = turns[(self._said * 7) % len(turns)]["id"]
            async with house.database.transaction() as tx:
                await house.conversations.branch(tx, rooms[0]["id"], "fork", None, turn)


async def drive(deeds: Sequence[str], keep: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with ModelServer() as model:
            model.allow(*CAUSES, perhaps=True)  # whatever happens, requests can be answered
            room = Drive(Path(folder), model, keep)
            try:
                house = await room.open()
                for deed in [*deeds, "say", "use"]:
                    house = await room.do(house, deed)
                open_casts = await house.rows("SELECT 1 FROM casts WHERE state = 'running'")
                broken = await house.rows("SELECT 1 FROM casts WHERE reason = 'internal_error'")
                said = await house.spoken()
            finally:
                await room.aclose()
    assert room.wrong == []
    assert open_casts == broken == []
    assert all(said)
    assert said[-1].startswith("noted use")


@settings(max_examples=examples(12))
@given(
    st.lists(st.sampled_from([*DEEDS, *COMMANDS, *MOODS, "long", "use"]), max_size=14),
    st.sampled_from([1, 2, 4, 10]),
)
@example(["long"] * 6 + ["forget", "long", "edit", "bad summaries", "long", "huge", "kill"], 2)
@example(["use", "long", "long", "/compact", "fork", "use", "/compact", "fork", "long"] * 2, 1)
@example(["use", "long", "thread", "long", "/compact", "thread", "forget", "thread", "kill"] * 2, 2)
@example(["smaller window", *["use"] * 6, "kill", "done", "/compact", "forget", "edit"], 4)
def test_every_request_can_be_answered_whatever_happened(deeds: list[str], keep: int) -> None:
    """L-006, L-017, L-036, L-041, L-051 to L-054, X-042: the server checks order and pairs of each."""
    asyncio.run(drive(deeds, keep))
