"""Chats become pages: what was said to the assistant in private, each message once."""

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.world.clock import HeldClock
from tests.world.consolidated import CARP, POND, Chats, Scribe, consolidate_chat
from tests.world.forgetting import forgotten
from tests.world.harvested import CLUB, talking, unlocked
from tests.world.house import ANN, ROOM, SCOPE, House
from tests.world.model import Calls, Fail, ModelServer, Slow, Step, Text, Use
from tests.world.redacted import take_back
from tests.world.shelf import INDEX, Shelf, page
from wintermute.errors import WintermuteError
from wintermute.wiki.page_jobs import WikiJob

pytestmark = pytest.mark.breaks("edited wiki", perhaps=True)
BEN = "@ben:test"
GROUP: dict[str, Any] = {"room": "!club:test", "scope": CLUB, "direct": False}
BENS: dict[str, Any] = {"room": "!ben:test", "sender": BEN, "name": "Ben", "origin": "other"}


def shelf_of(house: House) -> Shelf:
    """The owner's store, with an index that a page can be linked from."""
    return Shelf.make(house.stores.wiki.root)


async def applied(house: House, room: str = ROOM) -> WikiJob:
    job = await consolidate_chat(house, room)
    assert job is not None
    assert job.status == "applied", job.reason
    return job


async def test_what_was_said_since_the_last_time_is_made_into_pages(chats: Chats) -> None:
    """W-058: people's words and the answers, each message once, then nothing is left."""
    async with chats.talking() as (house, shelf):
        said = await house.say("I planted 12 tulips", "and 3 roses")
        first = await applied(house)
        assert chats.pages.shown == [
            "[Monday, 2026-05-04]\nAnn (@ann:test): I planted 12 tulips\n"
            "assistant: echo: I planted 12 tulips\n"
            "Ann (@ann:test): and 3 roses\nassistant: echo: and 3 roses"
        ]
        assert (first.conversation, first.raw_copy) == (ROOM, "episodic-raw/20260504/chat")
        assert shelf.raw() == {
            "episodic-raw/20260504/chat/0001-user.md": "I planted 12 tulips\n",
            "episodic-raw/20260504/chat/0002-assistant.md": "echo: I planted 12 tulips\n",
            "episodic-raw/20260504/chat/0003-user.md": "and 3 roses\n",
            "episodic-raw/20260504/chat/0004-assistant.md": "echo: and 3 roses\n",
        }
        assert json.loads(shelf.read("meta/conversations.json")) == [first.raw_copy]
        assert await consolidate_chat(house) is None
        more = await house.say("a frog came")
        second = await applied(house)
        assert "a frog came" in chats.pages.shown[1]
        assert "tulips" not in chats.pages.shown[1]
        assert second.raw_copy == "episodic-raw/20260504/chat-1"
        assert await consolidate_chat(house) is None
        files = await house.rows(
            "SELECT event_id, path FROM raw_messages ORDER BY consolidation, path"
        )
        evidence = await house.rows("SELECT evidence FROM changes ORDER BY change_set_id, n")
    assert [(row["event_id"], row["path"].rpartition("chat")[2]) for row in files] == [
        (said[0], "/0001-user.md"),
        (said[0], "/0002-assistant.md"),
        (said[1], "/0003-user.md"),
        (said[1], "/0004-assistant.md"),
        (more[0], "-1/0001-user.md"),
        (more[0], "-1/0002-assistant.md"),
    ]
    assert [first.raw_copy, *said] in [json.loads(row["evidence"]) for row in evidence]
    sources = [f"Source: [[{job.raw_copy}/0001-user]]" for job in (first, second)]
    assert shelf.read(POND).endswith("\n".join(sources) + "\n")
    assert "[[Pond]]" in shelf.read(INDEX)


async def test_only_a_direct_chat_of_the_owner_becomes_pages(chats: Chats) -> None:
    """W-058: never a group, another person's chat, or what is no conversation."""
    async with chats.talking() as (house, shelf):
        before = shelf.pages()
        await house.say("in the club", **GROUP)
        await house.say("Ben speaks", **BENS)
        for room in ("!club:test", "!ben:test"):
            with pytest.raises(WintermuteError, match="not a direct chat of the owner"):
                await consolidate_chat(house, room)
        for name in ("!other:test", "", "%", "nowhere"):
            with pytest.raises(WintermuteError, match="no conversation"):
                await consolidate_chat(house, name)
        rows = await house.rows("SELECT 1 FROM consolidations")
    assert (rows, chats.pages.shown, shelf.jobs()) == ([], [], [])
    assert shelf.pages() == before


async def test_a_room_that_was_a_group_for_a_while_keeps_that_to_itself(chats: Chats) -> None:
    """W-058: only what was said in private is read, when it is private again."""
    async with chats.talking() as (house, _):
        await house.say("alone")
        await house.say("with others", scope=CLUB, direct=False)
        with pytest.raises(WintermuteError, match="not a direct chat"):
            await consolidate_chat(house)
        await house.say("alone again")
        await applied(house)
    [read] = chats.pages.shown
    assert ("alone again" in read, "with others" in read) == (True, False)


async def test_a_conversation_can_be_named_by_its_id(chats: Chats) -> None:
    async with chats.talking() as (house, _):
        await house.say("12 tulips")
        [row] = await house.rows("SELECT id FROM conversations WHERE room_id = ?", ROOM)
        assert (await applied(house, row["id"])).conversation == row["id"]


@pytest.mark.parametrize("step", [Fail(500), Text("# no page"), Text("x", finish="length")])
async def test_what_came_to_nothing_is_read_again_the_next_time(chats: Chats, step: Step) -> None:
    """W-065: no copy and no row is left of it, and no page."""
    chats.pages.step = step
    async with chats.talking() as (house, shelf):
        before = shelf.pages()
        await house.say("12 tulips")
        for _ in range(2):
            job = await consolidate_chat(house)
            assert job is not None
            assert (job.status == "applied", job.raw_copy) == (False, "")
            assert (shelf.pages(), shelf.raw()) == (before, {})
            assert json.loads(shelf.read("meta/conversations.json")) == []
            assert await house.rows("SELECT 1 FROM consolidations") == []
            assert await house.rows("SELECT 1 FROM raw_messages") == []
        chats.pages.step = None
        await house.say("3 roses")
        await applied(house)
    assert "12 tulips" in chats.pages.shown[-1]
    assert "3 roses" in chats.pages.shown[-1]


async def test_what_is_taken_back_while_the_model_writes_is_on_no_page(chats: Chats) -> None:
    """M-030, F-027: nor in a copy; what is left is read the next time."""
    chats.model.allow("redaction", perhaps=True)
    async with chats.talking() as (house, shelf):
        before = shelf.pages()
        said = await house.say("12 tulips", "a secret place")
        gate = asyncio.Event()
        chats.pages.step = Slow(gate, Text(CARP))
        async with asyncio.TaskGroup() as group:
            work = group.create_task(consolidate_chat(house))
            await chats.model.request_arrived(len(said) + 2)
            await take_back(house, said[1])
            gate.set()
        job = work.result()
        assert job is not None
        assert (job.status, job.reason) == (
            "failed",
            "messages were changed meanwhile; the next run reads them again",
        )
        chats.pages.step = None
        assert (shelf.pages(), shelf.raw()) == (before, {})
        await applied(house)
    assert "a secret place" not in chats.pages.shown[-1]
    assert "12 tulips" in chats.pages.shown[-1]
    assert "a secret place" not in "".join(shelf.raw().values())


async def test_the_last_wording_counts_and_what_is_decrypted_late_is_read_once(
    chats: Chats,
) -> None:
    """W-058, M-026: as the harvest reads."""
    chats.model.allow("edit", perhaps=True)
    async with chats.talking() as (house, _):
        [first] = await house.say("I live in Lyon")
        async with house.database.transaction() as tx:
            conversation = await house.conversations.in_room(tx, ROOM, SCOPE)
            await house.stores.edits.note(tx, "$edit", first, conversation, ANN, "I live in Rome")
            await house.inbox.store_locked(tx, conversation, ROOM, "$locked", {"sender": ANN})
        await house.say("and I have a dog")
        await applied(house)
        await unlocked(house, "I keep bees")
        await applied(house)
        assert await consolidate_chat(house) is None
        named = {row["event_id"] for row in await house.rows("SELECT event_id FROM raw_messages")}
    assert {first, "$edit", "$locked"} <= named
    whole = "\n".join(chats.pages.shown)
    assert "I live in Lyon" not in whole.replace("echo: I live in Lyon", "")
    assert [whole.count(f"(@ann:test): {text}") for text in ("I live in Rome", "I keep bees")] == [
        1,
        1,
    ]


async def test_what_comes_from_outside_is_not_shown_and_its_copy_is_marked(
    tmp_path: Path, model: ModelServer
) -> None:
    """W-058: a file that was read, and what a person pastes."""
    notes, data = tmp_path / "notes", tmp_path / "data"
    notes.mkdir()
    data.mkdir()
    (notes / "page.txt").write_text("The yacht Belle is Ann's.")
    pages = Scribe(model)
    pages.talk.answers["read it"] = Calls((Use("read_file", {"path": str(notes / "page.txt")}),))
    async with talking(data, model, HeldClock(), roots=[notes]) as house:
        shelf = shelf_of(house)
        await house.say("read it", "look:\n> quoted words\n\nmine")
        job = await applied(house)
        assert json.loads(shelf.read("meta/outside.json")) == [job.raw_copy, POND]
        assert shelf.read(INDEX).endswith("\n- [[Pond]]\n")
        await house.say("12 tulips")
        await applied(house)
        assert json.loads(shelf.read("meta/outside.json")) == [job.raw_copy, POND]
    assert "Belle" not in "".join(pages.shown)
    assert "quoted words" not in "".join(pages.shown)
    assert "quoted words" in "".join(shelf.raw().values())


@pytest.mark.slow
async def test_a_long_talk_is_read_whole_at_once(chats: Chats) -> None:
    """W-058: also more than one look at the inbox finds."""
    async with chats.talking() as (house, shelf):
        await house.say("the first")
        async with house.database.transaction() as tx:
            await tx.execute(
                "INSERT INTO inbox (event_id, conversation_id, room_id, sender, sender_name, origin,"
                " kind, body, sent_at, received_at, direct, by_bot, raw, state)"
                " WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000)"
                " SELECT '$more' || i, conversation_id, room_id, sender, sender_name, origin, kind,"
                " 'message ' || i, sent_at, received_at, direct, by_bot, '{}', 'answered'"
                " FROM n, inbox WHERE body = 'the first'"
            )
        await applied(house)
        assert await consolidate_chat(house) is None
    said = [text for path, text in shelf.raw().items() if path.endswith("-user.md")]
    assert len(said) == 1001
    assert len({*said}) == 1001


async def test_a_job_that_was_recorded_and_not_put_in_place_is_taken_back(chats: Chats) -> None:
    """W-065: as a kill between the two leaves it; what was said is read again."""
    async with chats.talking() as (house, shelf):
        before = shelf.pages()
        await house.say("12 tulips")
        job = await applied(house)
        told = json.loads(shelf.read(job.file)) | {"status": "failed", "reason": "interrupted"}
        shelf.write(job.file, json.dumps(told))
        for path, content in before.items():
            shelf.write(path, content.decode())
        (shelf.root / POND).unlink()
        async with house.database.transaction() as tx:
            await tx.execute("UPDATE consolidations SET settled = 0")
        again = await applied(house)
        assert "12 tulips" in chats.pages.shown[1]
        sets = await house.rows("SELECT id FROM change_sets WHERE cause = 'consolidation'")
        assert [row["id"] for row in sets] == [again.change_set]
        assert await house.rows("SELECT job, settled FROM consolidations") == [
            {"job": again.name, "settled": 1}
        ]
    assert {path.rpartition("/")[0] for path in shelf.raw()} == {again.raw_copy}


async def test_a_job_that_was_put_in_place_is_known_to_be(chats: Chats) -> None:
    """W-058: killed right behind it, each message is still read once."""
    async with chats.talking() as (house, _):
        await house.say("12 tulips")
        await applied(house)
        async with house.database.transaction() as tx:
            await tx.execute("UPDATE consolidations SET settled = 0")
        assert await consolidate_chat(house) is None
        [row] = await house.rows("SELECT settled FROM consolidations")
    assert row["settled"] == 1


async def test_a_page_that_a_chat_would_take_away_waits_and_the_chat_is_read(chats: Chats) -> None:
    """W-064: it would be proposed again each night, else."""
    async with chats.talking() as (house, shelf):
        shelf.write(POND, page("# Pond\n\nMine.\n\n[[Garden]]"))
        shelf.write(INDEX, shelf.read(INDEX) + "- [[Pond]]\n")
        before = shelf.pages()
        await house.say("12 tulips")
        chats.pages.step = Text(page("# Pond\n\nAnother's."))
        job = await applied(house)
        assert (job.changed_files, job.proposed, job.change_set) == ((), (POND,), None)
        [wish] = await house.stores.decisions.waiting(SCOPE, "page")
        assert (wish.before, "Another's." in wish.after) == ((POND,), True)
        assert await consolidate_chat(house) is None
    assert shelf.pages() == before


async def test_an_undo_in_the_chat_takes_pages_back_and_names_them(chats: Chats) -> None:
    """Issue 20, 7: page changes by us are change sets; what a person edited since stays."""
    async with chats.talking() as (house, shelf):
        before = shelf.read(INDEX)
        await house.say("I planted 12 tulips")
        job = await applied(house)
        assert POND in shelf.pages()
        await house.incoming(f"/undo {job.change_set}")
        told = (await house.said(2))[1]
        assert POND not in shelf.pages()
        assert shelf.read(INDEX) == before
    assert POND in told
    assert "Said:" not in told
    assert "Source:" not in told


async def test_a_deleted_message_of_few_letters_goes_from_its_raw_copy(chats: Chats) -> None:
    """M-030: too short to be looked for, it is known by its event; the rest of the copy stays."""
    async with chats.talking() as (house, shelf), house.working():
        short, _ = await house.say("12 tulips", "and 3 roses came in May")
        await applied(house)
        await take_back(house, short)
        await forgotten(house)
        raw = shelf.raw()
        again = await house.rows("SELECT args FROM jobs WHERE name = 'page again'")
    texts = {path.rpartition("/")[2]: text for path, text in raw.items()}
    assert texts["0001-user.md"] == texts["0002-assistant.md"] == "[this message was erased]\n"
    assert texts["0003-user.md"] == "and 3 roses came in May\n"
    assert [json.loads(row["args"]) for row in again] == [{"page": POND}]


async def test_what_a_job_proposed_goes_with_it_when_it_came_to_nothing(chats: Chats) -> None:
    """W-065: the raw copy that it cites is gone as well."""
    async with chats.talking() as (house, shelf):
        shelf.write(POND, page("# Pond\n\nWritten by me."))
        chats.pages.step = Text(page("# Pond\n\nOther words."))
        await house.say("My pond is deep.")

        (shelf.root / "sleep" / "applying" / "in the way").mkdir(parents=True)
        job = await consolidate_chat(house)
        assert job is not None
        assert job.status == "failed"
        states = await house.stores.database.scalars("SELECT state FROM decisions")
        assert states == ["outdated"]
        shutil.rmtree(shelf.root / "sleep" / "applying")
        assert (await applied(house)).proposed == (POND,)
        assert len(await house.stores.decisions.waiting(SCOPE, "page")) == 1
