"""With `llm.record` questions and answers are kept, and can be forgotten."""

from pathlib import Path

import pytest

from tests.replay import Recorded, Unanswered, events
from tests.world.asking import HELLO, asking, backend, saying
from tests.world.model import Calls, ContextTooLarge, Fail, ModelServer, Use
from tests.world.schema import traces_of
from wintermute.db.eraser import erase
from wintermute.errors import ModelError
from wintermute.llm.calls import RECORDED
from wintermute.messages import Usage


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
