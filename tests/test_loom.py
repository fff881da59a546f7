"""The loom is append-only: the database itself refuses to change what was said and done."""

from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.world.clock import FakeClock
from tests.world.house import Gate
from tests.world.model import Calls, Fail, Text, Use
from tests.world.schema import open_migrated
from tests.world.story import Story
from wintermute.db import Database, Error
from wintermute.ids import new_id
from wintermute.loom.casts import Casts
from wintermute.loom.conversations import Conversations
from wintermute.messages import Call, Reply, Usage

REFUSED = "loom is append-only"
NOW = "2026-05-04T12:00:00.000000+00:00"

# One row of each table as the loom writes it; `cast_r` still runs, the others have ended.
ROWS = f"""
INSERT INTO conversations (id, kind, room_id, scope, created_at)
    VALUES ('conv', 'room', '!r', 'room', '{NOW}');
INSERT INTO branches (id, conversation_id, reason, scope, created_at)
    VALUES ('b', 'conv', 'start', 'room', '{NOW}');
INSERT INTO prompts (hash, parts) VALUES ('h', '[["", "p"]]'), ('h2', '[]');
INSERT INTO prompt_parts (hash, text) VALUES ('p', 'be brave');
INSERT INTO edits (event_id, edited, conversation_id, sender, text, created_at)
    VALUES ('$edit', '$e', 'conv', '@ann:test', 'hello there', '{NOW}');
INSERT INTO casts (id, branch_id, event_id, entity_id, intent, origin, wards, prompt_hash, state,
    reason, result, started_at, ended_at)
    VALUES ('cast', 'b', '$e', 'ent', 'hello', 'owner', '{{}}', 'h', 'terminated', 'text', 'hi',
    '{NOW}', '{NOW}'),
    ('cast_r', 'b', '$f', 'ent2', 'hello', 'owner', '{{}}', 'h', 'running', NULL, NULL, '{NOW}', NULL);
INSERT INTO turns (id, cast_id, parent_id, entity_id, utterance, calls, finish_reason, backend,
    model, tokens_in, tokens_out, tokens_cached, ms, error, created_at, prompt_hash, sender, provider_fields)
    VALUES ('t', 'cast', NULL, 'ent', 'hi', '[{{"id": 1}}]', 'stop', 'b', 'm', 1, 2, 3, 4, NULL,
    '{NOW}', 'h', 's', '{{}}'),
    ('t2', 'cast', 't', 'ent', '', '[]', 'x', '', '', 0, 0, 0, 0, 'away', '{NOW}', NULL, '', '');
INSERT INTO observations (turn_id, n, gate, args, result, tool_call_id, via, state, started_at,
    completed_at)
    VALUES ('t', 0, 'echo', '{{"a": 1}}', '"r"', 'c0', 'call', 'completed', '{NOW}', '{NOW}'),
    ('t', 1, 'echo', '{{"a": 1}}', NULL, 'c1', 'call', 'started', '{NOW}', NULL);
INSERT INTO folds (id, branch_id, from_turn, to_turn, summary, tokens_before, tokens_after, created_at,
    turns, made_at)
    VALUES ('f', 'b', 't', 't2', 'they spoke', 9, 1, '{NOW}', 2, 2);
INSERT INTO rewards (id, turn_id, value, sender, event_id, created_at)
    VALUES ('w', 't', 1, '@ann:test', '$w', '{NOW}');
"""

COLUMNS = {
    "branches": "seq id conversation_id forked_from reason scope created_at",
    "prompts": "hash parts",
    "prompt_parts": "hash text",
    "casts": "seq id branch_id event_id entity_id intent context_block origin taint wards prompt_hash"
    " fold_refused bare state reason result started_at ended_at",
    "turns": "seq id cast_id parent_id entity_id utterance calls context_block finish_reason backend"
    " model sender provider_fields prompt_hash tokens_in tokens_out tokens_cached ms waited_ms error"
    " created_at",
    "observations": "seq turn_id n gate args result is_error tool_call_id via state started_at"
    " completed_at",
    "folds": "seq id branch_id from_turn to_turn turns made_at summary tokens_before tokens_after"
    " night created_at",
    "edits": "seq event_id edited conversation_id sender text created_at",
    "rewards": "id turn_id value sender event_id created_at",
}
EVERY_COLUMN = [(table, column) for table, names in COLUMNS.items() for column in names.split()]
OVER = {"casts": "id = 'cast'", "observations": "n = 0", "turns": "id IN ('t', 't2')"}
NUMBERS = {"seq", "n", "taint", "ms", "value", "is_error", "turns", "fold_refused", "bare"}

CASTS_FIELDS = "reason = 'text', result = 'x', ended_at = 'now'"

# What may change, and only this: (statement, what it is).
ALLOWED = [
    f"UPDATE casts SET state = 'terminated', {CASTS_FIELDS} WHERE id = 'cast_r'",
    f"UPDATE casts SET state = 'truncated', {CASTS_FIELDS} WHERE id = 'cast_r'",
    "UPDATE casts SET prompt_hash = 'h2' WHERE id = 'cast_r'",
    "UPDATE casts SET taint = 1 WHERE id = 'cast_r'",
    "UPDATE casts SET context_block = 'told' WHERE id = 'cast_r'",
    "UPDATE casts SET fold_refused = 4, bare = 1 WHERE id = 'cast_r'",
    "UPDATE casts SET intent = '', result = '', context_block = '' WHERE id = 'cast'",
    "UPDATE casts SET context_block = '' WHERE id = 'cast'",
    "UPDATE casts SET intent = '', prompt_hash = NULL WHERE id = 'cast'",
    "UPDATE turns SET utterance = '', calls = '[]' WHERE id = 't'",
    "UPDATE turns SET provider_fields = '' WHERE id = 't'",
    "UPDATE turns SET utterance = '', calls = '[]', error = '' WHERE id = 't2'",
    "UPDATE observations SET state = 'completed', result = '1', is_error = 1, completed_at = 'now'"
    " WHERE n = 1",
    "UPDATE observations SET args = NULL, result = '' WHERE n = 0",
    "UPDATE observations SET args = NULL, result = '' WHERE n = 1",
    "UPDATE folds SET summary = ''",
    "UPDATE prompt_parts SET text = ''",
    "UPDATE edits SET text = ''",
]

# Tries to say less than the whole truth by one of the exceptions.
SLY = [
    "UPDATE casts SET result = 'better' WHERE id = 'cast_r'",
    "UPDATE casts SET reason = 'text' WHERE id = 'cast_r'",
    "UPDATE casts SET ended_at = 'now' WHERE id = 'cast_r'",
    "UPDATE casts SET state = 'terminated' WHERE id = 'cast_r'",
    "UPDATE casts SET state = 'terminated', reason = 'text' WHERE id = 'cast_r'",
    f"UPDATE casts SET state = 'terminated', intent = 'x', {CASTS_FIELDS} WHERE id = 'cast_r'",
    "UPDATE casts SET taint = -1 WHERE id = 'cast_r'",
    "UPDATE casts SET state = 'running', reason = NULL WHERE id = 'cast'",
    "UPDATE casts SET intent = 'hello ', result = '' WHERE id = 'cast'",
    "UPDATE casts SET prompt_hash = 'h2' WHERE id = 'cast'",
    "UPDATE turns SET utterance = '' WHERE id = 't'",
    "UPDATE turns SET calls = '[]' WHERE id = 't'",
    "UPDATE turns SET utterance = '', calls = '[]', error = '' WHERE id = 't'",
    "UPDATE turns SET utterance = '', calls = '[]', error = NULL WHERE id = 't2'",
    "UPDATE turns SET utterance = '', calls = '[]', tokens_in = 0 WHERE id = 't'",
    "UPDATE turns SET utterance = '', calls = '[]', ms = NULL WHERE id = 't'",
    "UPDATE turns SET utterance = x'', calls = '[]' WHERE id = 't'",
    "UPDATE observations SET state = 'started', result = NULL, completed_at = NULL WHERE n = 0",
    "UPDATE observations SET state = 'completed', result = '1', completed_at = 'now' WHERE n = 0",
    "UPDATE observations SET args = NULL WHERE n = 0",
    "UPDATE observations SET args = '{}', result = '' WHERE n = 0",
    "UPDATE observations SET result = '', is_error = 1 WHERE n = 0",
    "UPDATE observations SET state = 'completed', result = '1', args = '{}', completed_at = 'now'"
    " WHERE n = 1",
    "UPDATE observations SET state = 'completed', completed_at = 'now' WHERE n = 1",
    "UPDATE observations SET state = 'completed', result = '1' WHERE n = 1",
    "UPDATE observations SET result = '1' WHERE n = 1",
    "UPDATE prompts SET parts = '[]' WHERE hash = 'h'",
    "UPDATE casts SET fold_refused = 4 WHERE id = 'cast'",
    "UPDATE casts SET bare = 1 WHERE id = 'cast'",
    "UPDATE casts SET bare = 2 WHERE id = 'cast_r'",
    "UPDATE prompt_parts SET text = '', hash = 'q'",
    "INSERT INTO prompt_parts VALUES ('p', 'x') ON CONFLICT (hash) DO UPDATE SET text = 'x'",
    "UPDATE turns SET prompt_hash = 'h2' WHERE id = 't'",
    "UPDATE turns SET prompt_hash = NULL WHERE id = 't'",
    "UPDATE turns SET prompt_hash = 'h' WHERE id = 't2'",
    "UPDATE turns SET utterance = '', calls = '[]', prompt_hash = 'h2' WHERE id = 't'",
    "UPDATE turns SET utterance = '', calls = '[]', prompt_hash = NULL WHERE id = 't'",
    "UPDATE folds SET turns = 1",
    "UPDATE folds SET summary = '', turns = 1",
    "UPDATE edits SET text = '', sender = '@bob:test'",
    "UPDATE edits SET text = '', edited = '$f'",
    "UPDATE edits SET text = 'hello'",
    "UPDATE folds SET summary = '', tokens_after = 0",
    "UPDATE OR IGNORE turns SET utterance = 'x'",
    "UPDATE OR REPLACE turns SET id = 't2' WHERE id = 't'",
    "INSERT INTO prompts (hash, parts) VALUES ('h', 'x') ON CONFLICT (hash) DO UPDATE SET parts = 'x'",
    "INSERT INTO observations (turn_id, n, gate, via, state, started_at) VALUES"
    " ('t', 0, 'x', 'call', 'started', '') ON CONFLICT DO UPDATE SET gate = excluded.gate",
]


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    async with open_migrated(tmp_path / "loom.db") as database:
        async with database.transaction() as tx:
            for statement in ROWS.split(";\n"):
                await tx.execute(statement)
        yield database


async def snapshot(database: Database) -> list[tuple[object, ...]]:
    found = [await database.rows(f"SELECT * FROM {table}") for table in COLUMNS]
    return [tuple(row[name] for name in row.keys()) for rows in found for row in rows]  # noqa: SIM118


async def refused(database: Database, statement: str) -> None:
    """The statement fails with our words, and nothing changed."""
    before = await snapshot(database)
    with pytest.raises(Error, match=REFUSED):
        async with database.transaction() as tx:
            await tx.execute(statement)
    assert await snapshot(database) == before


async def test_the_columns_above_are_all_there_are(database: Database) -> None:
    """So that a new column cannot be forgotten here."""
    for table, names in COLUMNS.items():
        rows = await database.rows("SELECT name FROM pragma_table_info(?)", (table,))
        assert [row["name"] for row in rows] == names.split()


async def test_no_column_can_be_updated_or_emptied(database: Database) -> None:
    """L-048: of rows whose story is over. NULL is neither equal nor different, which a condition can
    overlook; twice, the second time with whatever the first has let through.
    """
    emptied = set()
    for table, column in EVERY_COLUMN:
        number = column in NUMBERS or column.startswith("tokens")
        value = f"{column} + 10" if number else f"coalesce({column}, '') || 'x'"
        over = f"WHERE {OVER.get(table, '1')}"
        await refused(database, f"UPDATE {table} SET {column} = {value} {over}")
        before = await snapshot(database)
        for _ in range(2):
            with suppress(Error):
                async with database.transaction() as tx:
                    await tx.execute(f"UPDATE {table} SET {column} = NULL {over}")
        if await snapshot(database) != before:
            emptied.add((table, column))
    assert emptied == {("casts", "prompt_hash")}  # the prompt of a redacted cast


@pytest.mark.parametrize("table", COLUMNS)
async def test_no_row_can_be_deleted_or_replaced(database: Database, table: str) -> None:
    """L-048: also by INSERT OR REPLACE, which deletes without saying so."""
    await refused(database, f"DELETE FROM {table}")
    await refused(database, f"INSERT OR REPLACE INTO {table} SELECT * FROM {table}")
    await refused(database, f"REPLACE INTO {table} SELECT * FROM {table} LIMIT 1")


@pytest.mark.parametrize("statement", SLY)
async def test_the_exceptions_let_nothing_else_through(database: Database, statement: str) -> None:
    """L-047, L-048."""
    await refused(database, statement)


@pytest.mark.parametrize("statement", ALLOWED)
async def test_ends_and_redactions_are_allowed(database: Database, statement: str) -> None:
    """L-048."""
    async with database.transaction() as tx:
        assert await tx.execute(statement) >= 1


SAID = "[late]\n<room_context>\nEve: one\nEve: two\n</room_context>\nAnn: so?"


@pytest.mark.parametrize("state", ["running", "terminated"])
async def test_only_what_was_said_before_may_get_less(database: Database, state: str) -> None:
    """F-027, L-048: a line that was taken back goes out of it; all around it stays."""
    ended = "'running', NULL, NULL, NULL" if state == "running" else "'terminated', 'text', '', ''"
    async with database.transaction() as tx:
        await tx.execute(
            "INSERT INTO casts (id, branch_id, entity_id, intent, origin, wards, state, reason,"
            f" result, ended_at, started_at) VALUES ('g', 'b', 'e', ?, 'owner', '{{}}', {ended}, '')",
            (SAID,),
        )
    for intent in (
        SAID.replace("one", "1 or 2"),
        SAID.replace("so", ""),
        SAID.replace("late", ""),
        SAID.replace("one\n", "").replace("so", "no"),
        SAID.partition("</")[0],
        SAID.replace("<room_context>", ""),
        SAID.replace("</room_context>", ""),
    ):
        await refused(database, f"UPDATE casts SET intent = '{intent}' WHERE id = 'g'")
    less = SAID.replace("Eve: one\n", "")
    await refused(database, f"UPDATE casts SET intent = '{less}', taint = 1 WHERE id = 'g'")
    async with database.transaction() as tx:
        assert await tx.execute(f"UPDATE casts SET intent = '{less}' WHERE id = 'g'") == 1


async def test_a_conversation_with_history_cannot_be_deleted(database: Database) -> None:
    """L-048: nor take its history along into another name."""
    for statement in ("DELETE FROM conversations", "UPDATE conversations SET id = 'other'"):
        with pytest.raises(Error):
            async with database.transaction() as tx:
                await tx.execute(statement)


async def test_a_redaction_is_shown_as_nothing_and_keeps_its_place(tmp_path: Path) -> None:
    """L-017, L-048: a blanked turn can still be read and told to a model."""
    clock = FakeClock()
    async with open_migrated(tmp_path / "loom.db") as database:
        conversations = Conversations(database, clock, new_id)
        casts = Casts(database, clock, new_id)
        async with database.transaction() as tx:
            conversation = await conversations.in_room(tx, "!r", "room")
            branch = await conversations.current_branch(tx, conversation)
            cast = await casts.start(tx, branch, "$e", "hello", "owner", {})
            said = Reply("hi", (Call("c", "echo", "{}"),), "stop", Usage(1, 2, 0), "b", "m", 4)
            turn = await casts.add_turn(tx, cast, None, said, None)
            await casts.begin_observation(tx, turn.id, 0, said.calls[0], {})
            await casts.complete_observation(tx, turn.id, 0, "secret", is_error=False)
            await casts.end(tx, cast.id, "terminated", "text", "hi")
            await tx.execute("UPDATE turns SET utterance = '', calls = '[]'")
            await tx.execute("UPDATE observations SET args = NULL, result = ''")
            await tx.execute("UPDATE casts SET intent = '', result = ''")
        (found,) = await casts.of_branch(branch)
    assert (found.id, found.intent, found.result, found.state) == (cast.id, "", "", "terminated")
    (left,) = found.turns
    assert (left.id, left.utterance, left.calls, left.tokens) == (turn.id, "", (), 3)
    assert [(seen.gate, seen.args, seen.result) for seen in left.observations] == [
        ("echo", None, "")
    ]


async def test_a_changed_scope_begins_a_new_branch(tmp_path: Path) -> None:
    """X-031, L-074: nothing said before is carried over, and the old branch stays."""
    clock = FakeClock()
    async with open_migrated(tmp_path / "loom.db") as database:
        conversations = Conversations(database, clock, new_id)
        branches = []
        for scope in ("person:@ann:test", "person:@ann:test", "room:!r", "person:@ann:test"):
            async with database.transaction() as tx:
                conversation = await conversations.in_room(tx, "!r", scope)
                branches.append(await conversations.current_branch(tx, conversation))
            assert (await conversations.get(conversation)).scope == scope
        rows = await database.rows("SELECT id, reason FROM branches ORDER BY seq")
    assert branches[0] == branches[1]
    assert [(row["id"], row["reason"]) for row in rows] == [
        (branches[0], "start"),
        (branches[2], "scope"),
        (branches[3], "scope"),
    ]


async def test_the_end_of_a_cast_is_recorded_once(tmp_path: Path) -> None:
    """L-047."""
    clock = FakeClock()
    async with open_migrated(tmp_path / "loom.db") as database:
        conversations = Conversations(database, clock, new_id)
        casts = Casts(database, clock, new_id)
        async with database.transaction() as tx:
            conversation = await conversations.in_room(tx, "!r", "room")
            branch = await conversations.current_branch(tx, conversation)
            cast = await casts.start(tx, branch, "$e", "hello", "owner", {"max_turns": 2})
        assert await casts.running("$e") == cast
        assert await casts.running("$f") is None
        for reason in ("stopped", "text"):
            async with database.transaction() as tx:
                ended = await casts.end(tx, cast.id, "truncated", reason, "")
            assert ended == (reason == "stopped")
        (found,) = await casts.of_branch(branch)
        assert (found.state, found.reason) == ("truncated", "stopped")
        assert await casts.running("$e") is None


async def test_the_turns_of_a_branch_are_one_chain(story: Story) -> None:
    """L-046: over several casts, calls, failures and branches; ids are never given twice."""
    use = Calls((Use("echo", {"say": "x"}), Use("echo", {"say": "y"})))
    story.model.script(use, use, Text("one"), Fail(400), Text("two"), use, Text("three"))
    async with story.at_work(gates=[Gate()]) as house:
        for n, text in enumerate(("a", "b", "c", "/new", "d", "e"), start=1):
            await house.incoming(text)
            await house.said(n)
        await house.incoming("a", room="!other:test")
        await house.said(1, "!other:test")
        turns = await house.rows(
            "SELECT t.id, t.parent_id, t.entity_id, t.cast_id, c.branch_id FROM turns t"
            " JOIN casts c ON c.id = t.cast_id ORDER BY t.seq"
        )
    branches: dict[str, list[dict[str, object]]] = {}
    for turn in turns:
        branches.setdefault(str(turn["branch_id"]), []).append(turn)
    assert [len(chain) for chain in branches.values()] == [5, 3, 1]
    for chain in branches.values():
        ids = [turn["id"] for turn in chain]
        assert [turn["parent_id"] for turn in chain] == [None, *ids[:-1]]
    assert len({turn["id"] for turn in turns}) == len(turns)
    casts = {turn["cast_id"] for turn in turns}
    assert len({(turn["cast_id"], turn["entity_id"]) for turn in turns}) == len(casts)
    assert len({turn["entity_id"] for turn in turns}) == len(casts) == 6
