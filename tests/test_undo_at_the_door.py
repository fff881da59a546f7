"""`/undo` in a chat: what the person did last, or any change by its name, over merges and hand edits."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.world.clock import until_so
from tests.world.house import PROMPTS, SCOPE, house_at_work, open_house
from tests.world.model import ModelServer, Seen, Step, Text
from tests.world.reconstructed import LYON, ROME, SINCE, VEGETARIAN, Chat, chat, reconstruction
from tests.world.request_rules import is_for_core
from tests.world.terminal import Terminal, beside, keep_by
from wintermute.changes.change_sets import Reason
from wintermute.commands.chat import NOTHING_TO_CONFIRM
from wintermute.config.schema import Memory, MemoryHarvest
from wintermute.db import Transaction
from wintermute.learning.reconstruction import CORE
from wintermute.mailbox.inbox import Inbox, InboxRow
from wintermute.memory.fact import NewFact

FIRST = "Ann plays chess and tennis"
SECOND = "Ann plays chess and tennis on Mondays"
CHESS, TENNIS, MONDAYS = "Ann plays chess", "Ann plays tennis", "Ann plays tennis on Mondays"
NOT_HERE = "I know no change"


@pytest.fixture
async def talk(tmp_path: Path) -> AsyncIterator[Chat]:
    async with chat(tmp_path) as talk:
        yield talk


async def sets(talk: Chat, cause: str) -> list[str]:
    """The ids of the change sets of a cause, oldest first."""
    rows = await talk.house.rows("SELECT id FROM change_sets WHERE cause = ? ORDER BY seq", cause)
    return [row["id"] for row in rows]


async def merged_twice(talk: Chat) -> None:
    """What was told is merged, and that with what is told next."""
    await talk.known(CHESS)
    await talk.told(TENNIS)
    await talk.worked(reconstruction(FIRST))
    assert await talk.remembered() == [FIRST]
    await talk.told(MONDAYS)
    await talk.worked(reconstruction(SECOND))
    assert await talk.remembered() == [SECOND]


async def test_a_bare_undo_means_what_was_asked_for_and_takes_its_merge_along(talk: Chat) -> None:
    """M-065, M-076: newest first, and it says so; work in the background is never meant."""
    await merged_twice(talk)
    said = await talk.says("/undo")
    assert f"- undone first, because it was merged since: the memory is back: {FIRST}" in said
    assert (
        f"- undone first, because it was merged since: the memory is gone again: {SECOND}" in said
    )
    assert f"- the memory is gone again: {MONDAYS}" in said
    assert await talk.remembered() == [FIRST]
    said = await talk.says("/undo")
    assert f"- the memory is gone again: {TENNIS}" in said
    assert await talk.remembered() == [CHESS]
    await talk.says("/undo")
    assert await talk.remembered() == []
    assert await talk.says("/undo") == "There is nothing to undo here."


async def test_an_undo_that_names_a_merge_takes_later_ones_back_first(talk: Chat) -> None:
    """M-065, M-076: and undone itself it is as it was."""
    await merged_twice(talk)
    first = (await sets(talk, "reconstruction"))[0]
    said = await talk.says(f"/undo {first}")
    assert f"merged since: the memory is gone again: {SECOND}" in said
    assert await talk.remembered() == sorted([CHESS, TENNIS, MONDAYS])
    assert await talk.queued() == 0
    for name in reversed(await sets(talk, "undo")):
        await talk.says(f"/undo `{name}`")
    assert await talk.remembered() == [SECOND]


async def test_an_undo_of_what_was_ended_since_takes_the_end_back_first(talk: Chat) -> None:
    """M-065, M-074, M-076."""
    lives = "Ann lives in Lyon with Rex."
    over = "Ann lived in Lyon with Rex until April 2026, in Rome since May 2026."
    await talk.known(LYON)
    await talk.told("Ann lives with Rex in Lyon")
    await talk.worked(reconstruction(lives))
    assert await talk.remembered() == [lives]
    first = (await sets(talk, "reconstruction"))[-1]
    await talk.told(ROME)
    await talk.worked(reconstruction(over))
    assert await talk.remembered() == [over]
    said = await talk.says(f"/undo {first}")
    assert f"merged since: the memory is gone again: {over}" in said
    assert f"- the memory is gone again: {lives}" in said
    assert await talk.remembered() == sorted([LYON, "Ann lives with Rex in Lyon", ROME])


async def test_what_had_ended_for_a_newer_word_is_back_where_that_is_undone(talk: Chat) -> None:
    """M-074, M-076: else nothing would be known of it any more, for the newer one is gone."""
    await talk.told("My doctor is Dr Weiss")
    await talk.told("My doctor is Dr Rossi")
    facts, now = talk.house.stores.facts, talk.clock.now()
    older, newer = await facts.live(SCOPE)
    async with talk.house.database.transaction() as tx:
        await facts.end(tx, Reason("night", SCOPE), older.id, now, newer.id)
    assert await talk.remembered() == [newer.text]
    added = (
        await talk.house.one("SELECT change_set_id AS id FROM changes WHERE item = ?", newer.id)
    )["id"]
    said = await talk.says(f"/undo {added}")
    assert f"merged since: the memory is as it was before: {older.text}" in said
    assert f"the memory is gone again: {newer.text}" in said
    assert await talk.remembered() == [older.text]


async def test_what_somebody_changed_since_stays_and_is_told_with_why(talk: Chat) -> None:
    """M-065: a merge whose result was given an end by hand."""
    await talk.known(VEGETARIAN)
    await talk.told(SINCE)
    await talk.worked(reconstruction(f"{SINCE}, says she"))
    facts, now = talk.house.stores.facts, talk.clock.now()
    [fact] = await facts.live(SCOPE)
    async with talk.house.database.transaction() as tx:
        await facts.end(tx, Reason("command", SCOPE), fact.id, now)
    merge = (await sets(talk, "reconstruction"))[-1]
    said = await talk.says(f"/undo {merge}")
    assert f"not undone, because a command changed it since: the memory {fact.text}" in said
    assert await talk.remembered() == sorted([VEGETARIAN, SINCE])


@pytest.mark.parametrize("name", ["set_0123456789abcdef", "`set_0123`", "nonsense * _"])
async def test_a_change_that_is_not_known_here_is_told_so(talk: Chat, name: str) -> None:
    await talk.told(LYON)
    assert (await talk.says(f"/undo {name}")).startswith(NOT_HERE)
    assert await talk.remembered() == [LYON]


async def test_nobody_takes_back_what_is_anothers(talk: Chat) -> None:
    """M-010: not even knowing its name."""
    await talk.told(LYON)
    [mine] = await sets(talk, "tool")
    room, scope = "!group:test", "room:!group:test"
    await talk.house.incoming(f"/undo {mine}", room=room, scope=scope)
    assert (await talk.house.said(1, room))[0].startswith(NOT_HERE)
    assert await talk.remembered() == [LYON]


async def test_what_was_picked_up_is_taken_back_by_its_name(tmp_path: Path) -> None:
    """M-076: a harvest, and never by a bare undo."""
    picked = {"contents": ["The user keeps bees."]}

    def choose(seen: Seen) -> Step | None:
        harvest = "<transcript>" in seen.system
        return Text(json.dumps(picked)) if harvest else None

    early = MemoryHarvest(message_threshold=2, min_messages=2)
    async with ModelServer() as model:
        model.keyed(choose)
        opened = open_house(
            tmp_path, model.url, prompts=PROMPTS, memory=Memory(backend="fts5"), harvest=early
        )
        async with opened as house, house.working():
            for n, text in enumerate(("hello", "I keep bees"), 1):
                await house.incoming(text)
                await house.said(n)
            house.runner.wake("harvest")

            async def learnt() -> bool:
                return bool(await house.stores.facts.live(SCOPE))

            await until_so(learnt)
            await house.incoming("/undo")
            assert (await house.said(3))[2] == "There is nothing to undo here."
            row = await house.one("SELECT id FROM change_sets WHERE cause = 'harvest'")
            await house.incoming(f"/undo {row['id']}")
            assert (await house.said(4))[3] == "- the memory is gone again: The user keeps bees."
            assert await house.stores.facts.live(SCOPE) == []


async def test_a_core_change_is_undone_and_a_hand_edit_stays(talk: Chat, tmp_path: Path) -> None:
    """M-051, M-076: also after it was undone, and by its name only."""
    page = tmp_path / "core.md"
    page.write_text("# SOUL\n- calm\n\n# TOOLS\n\n# RULE\n\n# USER\n")
    learnt = "- Ann is a vegetarian since 2020.\n"
    talk.model.updates_core = True
    keeps = talk.answer

    def choose(seen: Seen) -> Step | None:
        if not is_for_core(seen.body):
            return keeps(seen)
        wanted = SINCE in seen.system
        text = page.read_text() + learnt if wanted else None
        return Text(json.dumps({"should_update": wanted, "core_markdown": text}))

    talk.model.keyed(choose)
    await talk.known(VEGETARIAN)
    await talk.told(SINCE)
    await talk.worked(reconstruction(SINCE))
    talk.house.runner.wake(CORE)

    async def written() -> bool:
        open_jobs = await talk.house.rows("SELECT 1 FROM jobs WHERE state = 'running'")
        return learnt in page.read_text() and not open_jobs

    await until_so(written)
    row = await talk.house.one("SELECT change_set_id AS id FROM changes WHERE kind = 'core'")
    page.write_text(page.read_text().replace("- calm", "- calm and brief"))
    said = await talk.says(f"/undo {row['id']}")
    assert said == "- what I always keep in mind is as it was before"
    assert page.read_text() == "# SOUL\n- calm and brief\n\n# TOOLS\n\n# RULE\n\n# USER\n"
    assert await talk.remembered() == [SINCE]
    again = (await sets(talk, "undo"))[-1]
    page.write_text(page.read_text().replace("# TOOLS\n", "# TOOLS\n- a lamp\n"))
    await talk.says(f"/undo {again}")
    assert learnt in page.read_text()
    assert "- a lamp" in page.read_text()
    said = await talk.says("/undo")
    assert "keep in mind" not in said
    assert learnt in page.read_text()


async def test_undo_after_undo_with_a_list_that_is_edited_by_hand_between(tmp_path: Path) -> None:
    """M-015, M-065, M-076: what the file says counts, and each gesture is taken back by itself."""
    file = tmp_path / "MEMORIES.txt"
    async with chat(tmp_path, Memory(backend="flat_file")) as talk:
        await talk.told(LYON)
        await talk.told(ROME)
        await talk.says("/memory")
        file.write_text(file.read_text().replace(LYON, "Ann loves Lyon."))
        said = await talk.says("/undo")
        assert LYON in said
        assert await talk.remembered() == sorted([LYON, ROME])
        file.write_text(file.read_text() + "Ann has a cat\n")
        first = (await sets(talk, "tool"))[0]
        await talk.says(f"/undo {first}")
        assert await talk.remembered() == sorted([ROME, "Ann has a cat"])
        await talk.says(f"/undo {(await sets(talk, 'undo'))[-1]}")
        assert await talk.remembered() == sorted([LYON, ROME, "Ann has a cat"])
        await talk.says("/memory")
        lines = [line for line in file.read_text().splitlines() if line]
        assert sorted(lines) == sorted([LYON, ROME, "Ann has a cat"])


def keeps_on(page: Path, talk: Chat, lines: tuple[str, ...]) -> None:
    """The model puts the first of these that it is shown on the page of the core."""
    keeps = talk.answer

    def choose(seen: Seen) -> Step | None:
        if not is_for_core(seen.body):
            return keeps(seen)
        new = [line for line in lines if f"- {line}\n" in seen.system]
        text = f"{page.read_text()}- {new[0]}\n" if new else None
        return Text(json.dumps({"should_update": bool(new), "core_markdown": text}))

    talk.model.updates_core = True
    talk.model.keyed(choose)


async def looked(talk: Chat, times: int) -> None:
    """Wait until so many batches were looked through for the core."""
    talk.house.runner.wake(CORE)

    async def over() -> bool:
        jobs = await talk.house.rows("SELECT state FROM jobs WHERE name = ?", CORE)
        return [job["state"] for job in jobs] == ["done"] * times

    await until_so(over)


async def of_kind(talk: Chat, kind: str) -> list[str]:
    """The change sets of the background that touch such items, newest first."""
    rows = await talk.house.rows(
        "SELECT DISTINCT s.id, s.seq FROM changes c JOIN change_sets s ON s.id = c.change_set_id"
        " WHERE c.kind = ? AND s.cause = 'reconstruction' ORDER BY s.seq DESC",
        kind,
    )
    return [row["id"] for row in rows]


async def test_undo_after_merge_after_undo_with_files_edited_between(terminal: Terminal) -> None:
    """M-016, M-051, M-065, M-076: what hands wrote stays, and all else is as it was."""
    cat = "Ann has a cat"
    keep_by(terminal, "fts5")
    page, export = terminal.data / "core.md", terminal.data / "MEMORIES.txt"
    page.write_text("# SOUL\n- calm\n\n# TOOLS\n\n# RULE\n\n# USER\n")
    async with chat(terminal.data) as talk:
        talk.model.allow("edited core")
        keeps_on(page, talk, (SECOND, FIRST))
        await talk.known(CHESS)
        await talk.told(TENNIS)
        await talk.worked(reconstruction(FIRST))
        await looked(talk, 2)
        page.write_text(page.read_text().replace("- calm", "- calm and brief"))
        assert f"the memory is gone again: {TENNIS}" in await talk.says("/undo")
        await talk.house.stores.memories.refresh()
        export.write_text(f"{export.read_text()}{cat}\n")
        done = await beside(terminal, "memory", "import", str(export), "--scope", SCOPE)
        assert done.returncode == 0, done
        await talk.told(TENNIS)
        await talk.told(MONDAYS)
        await talk.worked(reconstruction(SECOND, cat))
        await looked(talk, 3)
        page.write_text(page.read_text().replace("# TOOLS\n", "# TOOLS\n- a lamp\n"))
        assert page.read_text().endswith(f"# USER\n- {FIRST}\n- {SECOND}\n")
        said = await talk.says(f"/undo {(await of_kind(talk, 'fact'))[0]}")
        assert f"the memory is gone again: {SECOND}" in said
        assert await talk.remembered() == sorted([CHESS, TENNIS, MONDAYS, cat])
        await talk.says(f"/undo {(await sets(talk, 'undo'))[-1]}")
        assert await talk.remembered() == sorted([SECOND, cat])
        for name in await of_kind(talk, "core"):
            said = await talk.says(f"/undo {name}")
            assert said == "- what I always keep in mind is as it was before"
        plain = "# SOUL\n- calm and brief\n\n# TOOLS\n- a lamp\n\n# RULE\n\n# USER\n"
        assert page.read_text() == plain
        for line in ("/undo", "/undo yes", "/undo"):  # of four items, which is asked; then of one
            await talk.says(line)
        assert await talk.remembered() == sorted([CHESS, cat])
        done = await beside(terminal, "memory", "undo", "--last", "--yes")
        assert cat.encode() in done.stdout, done
        assert await talk.remembered() == [CHESS]
        assert page.read_text() == plain


class WatchedInbox(Inbox):
    """Tells that the question before a yes was looked for."""

    looked = asyncio.Event()

    async def command_before(
        self, tx: Transaction, row: InboxRow, of: str = "/"
    ) -> InboxRow | None:
        self.looked.set()
        return await super().command_before(tx, row, of)


async def recorded(talk: Chat, *texts: str) -> None:
    """Have these remembered in one change set."""
    async with talk.house.database.transaction() as tx:
        new = [NewFact(SCOPE, text, "user_explicit") for text in texts]
        changes = [each.change for each in await talk.house.stores.facts.take(tx, new)]
        why = Reason("import", SCOPE)
        await talk.house.stores.changes.record(tx, why, [c for c in changes if c])


async def test_a_bare_undo_of_an_older_change_is_asked_and_confirmed_once(tmp_path: Path) -> None:
    """M-091: it says what it would take back; only a yes right after it does that, nothing newer."""
    async with chat(tmp_path, inbox_type=WatchedInbox) as talk:
        await talk.told(LYON)
        talk.clock.advance(3601)
        assert await talk.says("/undo yes") == NOTHING_TO_CONFIRM
        asked = await talk.says("/undo")
        assert f"- the memory is gone again: {LYON}" in asked
        await talk.says("never mind")
        assert await talk.says("/undo yes") == NOTHING_TO_CONFIRM
        assert await talk.remembered() == [LYON]
        assert await talk.says("/undo") == asked
        WatchedInbox.looked.clear()

        async def newer() -> None:
            await WatchedInbox.looked.wait()
            await recorded(talk, "Ann has bees")

        said, _ = await asyncio.gather(talk.says("/undo yes"), newer())
        assert said == f"- the memory is gone again: {LYON}"
        assert await talk.says("/undo yes") == NOTHING_TO_CONFIRM
        assert await talk.remembered() == ["Ann has bees"]


@pytest.mark.parametrize(("facts", "is_asked"), [(3, False), (4, True)])
async def test_a_bare_undo_of_many_items_is_asked(talk: Chat, facts: int, is_asked: bool) -> None:
    """M-091: of more than three; nothing of a look at it is left behind."""
    await recorded(talk, *(f"Ann has {n} bees" for n in range(facts)))
    said = await talk.says("/undo")
    assert ("`/undo yes`" in said, said.count("- the memory is gone again")) == (is_asked, facts)
    assert len(await talk.remembered()) == (facts if is_asked else 0)
    assert len(await sets(talk, "undo")) == (0 if is_asked else 1)
    if is_asked:
        await talk.says("/undo yes")
        assert await talk.remembered() == []


async def test_in_a_room_what_somebody_else_did_last_is_asked(tmp_path: Path) -> None:
    """M-091, M-076: one's own is what oneself said, or had remembered."""
    club = {"room": "!club:test", "scope": "room:!club:test"}
    ben = {"sender": "@ben:test", "name": "Ben", "origin": "other"}
    async with house_at_work(tmp_path, None, prompts=PROMPTS) as house:
        for n, (text, who) in enumerate(
            (("/remind tomorrow 09:00 tea", {}), ("/undo", ben), ("/undo", {})), 1
        ):
            await house.incoming(text, **club, **who)  # type: ignore[arg-type]  # as said
            said = (await house.said(n, "!club:test"))[-1]
            assert ("`/undo yes`" in said) == (text == "/undo" and who is ben)
        assert await house.stores.tasks.listed("room:!club:test") == ()
