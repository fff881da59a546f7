"""The daemon is killed between keeping a block and the answer: what a model reads stays as it was."""

import pytest

from tests.world.model import Calls, Hang, ModelServer, Seen, Step, Text, Use
from tests.world.scene import NewBot, NewPerson, NewRoom

KEPT = {"casts": "UPDATE casts SET context_block", "turns": "UPDATE turns SET context_block"}
LEARNT = "# User Memories\nAnn is 40.\n"


def after_system(seen: Seen) -> str:
    """All that a request says, but for the system message."""
    return "\n".join(str(message["content"]) for message in seen.messages[1:])


@pytest.mark.quick("casts")
@pytest.mark.parametrize("table", KEPT)
async def test_a_block_that_was_kept_is_shown_again_byte_for_byte(
    person: NewPerson, bot: NewBot, room: NewRoom, model: ModelServer, table: str
) -> None:
    """L-051: killed once it is kept and before it is sent, then before the request has its answer."""
    ann = await person("ann")
    daemon = await bot(ann)
    chat = await room(ann, daemon)
    memories = daemon.data / "MEMORIES.txt"
    asked = 1 if table == "casts" else 2

    def answer(seen: Seen) -> Step:
        if table == "turns" and len(model.requests) == 0:
            memories.write_text("Ann is 40.\n")
            return Calls((Use("read_file", {"path": "data/MEMORIES.txt"}),))
        return Hang() if len(model.requests) < asked else Text("fine")

    model.keyed(answer)
    await daemon.stop()
    if table == "casts":
        memories.write_text("Ann is 40.\n")
    await ann.send(chat, "go")
    steps = [["executing", KEPT[table]], ["operation", "COMMIT"]]
    await daemon.start({"logger": "aiosqlite", "steps": steps}, ready=False)
    assert await daemon.ended() == -9
    assert len(model.requests) == asked - 1
    (kept,) = daemon.rows(f"SELECT context_block FROM {table} WHERE context_block <> ''")
    assert LEARNT in kept["context_block"]
    await daemon.start()
    before = await model.request_arrived(asked)
    assert before.messages[-1]["content"].endswith(f"\n\n{kept['context_block']}")
    await daemon.kill()
    await daemon.start()
    await ann.wait_for(chat, lambda said: said.body == "fine")
    after = model.requests[asked]
    assert after.messages == before.messages
    assert after.body["tools"] == before.body["tools"]
    await ann.send(chat, "and?")
    await model.request_arrived(asked + 2)
    assert after_system(model.requests[-1]).count(LEARNT) == 1
