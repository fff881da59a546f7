"""A conversation of a program that told nothing in blocks, after the upgrade: it goes on as it was."""

import json
import sqlite3  # noqa: TID251  a look from outside, with another library than the program's
from pathlib import Path
from typing import Any

import pytest

from tests.world.clock import FakeClock
from tests.world.house import ANN, PROMPTS, ROOM, WARDS, open_house
from tests.world.model import ModelServer, Text
from wintermute.db.database import shipped_migrations
from wintermute.db.migrate import migrate

OPEN = {"running", "casting"}
NOW = "2026-05-04T11:00:00.000000+00:00"
SCOPE = f"person:{ANN}"
TABLES = ("conversations", "branches", "casts", "turns", "observations", "folds", "inbox", "tasks")
STORED = {"id": "fact_1", "text": "Ann likes tea.", "source": "user_explicit", "stored": "stored"}
LOOKED = [
    {"id": "c1", "name": "read_file", "arguments": '{"path": "data/skills/tea.md"}'},
    {"id": "c2", "name": "append_memory", "arguments": '{"entry": "Ann likes tea."}'},
]
WHOLE = (
    "<context>\n# Current Time\nMonday, 2026-05-04 14:00 CEST\n\n---\n\n"
    "# User Memories\nAnn likes milk.\nno longer: Ann likes tea.\n\n---\n\n"
    "# Active Tasks\n[P5] #task_00000001: Buy milk\n\n---\n\n"
    "# Skills\nLoad a skill with read_file when relevant to the current task.\n</context>"
)


def put(connection: sqlite3.Connection, table: str, **row: object) -> None:
    places = ", ".join(f":{name}" for name in row)
    connection.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({places})", row)


def rows(path: Path, columns: dict[str, list[str]]) -> dict[str, list[Any]]:
    """What the tables hold in these columns."""
    connection = sqlite3.connect(path)
    try:
        return {
            table: connection.execute(f"SELECT {', '.join(names)} FROM {table}").fetchall()
            for table, names in columns.items()
        }
    finally:
        connection.close()


def of_schema_19(path: Path, *, running: bool) -> dict[str, list[str]]:
    """Two answered messages, the first of them folded; perhaps one that is being answered."""
    connection = sqlite3.connect(path, isolation_level=None)
    migrate(connection, path, [step for step in shipped_migrations() if step.number <= 19])
    put(connection, "conversations", id="c", kind="room", room_id=ROOM, scope=SCOPE, created_at=NOW)
    put(
        connection,
        "branches",
        **{"id": "b", "conversation_id": "c", "reason": "start", "created_at": NOW, "scope": SCOPE},
    )
    said(connection, 1, "hello", ("nice to meet you", []))
    said(connection, 2, "look it up", ("", LOOKED), ("I see", []))
    for n, result in enumerate(("Boil water.", STORED)):
        put(
            connection,
            "observations",
            **{"turn_id": "t2.0", "n": n, "gate": LOOKED[n]["name"], "args": "{}", "via": "call"},
            **{"result": json.dumps(result), "tool_call_id": LOOKED[n]["id"]},
            **{"state": "completed", "started_at": NOW, "completed_at": NOW},
        )
    put(
        connection,
        "folds",
        **{"id": "f", "branch_id": "b", "from_turn": "t1.0", "to_turn": "t1.0", "turns": 1},
        **{"summary": "They met.", "tokens_before": 9, "tokens_after": 5, "created_at": NOW},
    )
    put(
        connection,
        "tasks",
        **{"id": "task_00000001", "scope": SCOPE, "content": "Buy milk", "priority": 5},
        **{"status": "active", "created_at": NOW, "changed_at": NOW},
    )
    if running:
        said(connection, 3, "three", state="running")
    names = {
        table: [column[1] for column in connection.execute(f"PRAGMA table_info({table})")]
        for table in TABLES
    }
    connection.close()
    return names


def said(
    connection: sqlite3.Connection,
    n: int,
    text: str,
    *turns: tuple[str, list[dict[str, str]]],
    state: str = "terminated",
) -> None:
    """A message and what became of it."""
    is_over = state != "running"
    put(
        connection,
        "inbox",
        **{"event_id": f"$old{n}", "conversation_id": "c", "room_id": ROOM, "sender": ANN},
        **{"sender_name": "Ann", "origin": "owner", "kind": "message", "body": text, "direct": 1},
        **{"raw": "{}", "sent_at": NOW, "received_at": NOW},
        **{"state": "answered" if is_over else "casting"},
    )
    put(
        connection,
        "casts",
        **{"id": f"k{n}", "branch_id": "b", "event_id": f"$old{n}", "entity_id": "e"},
        **{"intent": text, "origin": "owner", "wards": json.dumps(WARDS.record()), "state": state},
        **{"reason": "answered" if is_over else None, "started_at": NOW},
        **{"result": turns[-1][0] if is_over else None, "ended_at": NOW if is_over else None},
    )
    (parent,) = connection.execute("SELECT max(id) FROM turns").fetchone()
    for m, (utterance, calls) in enumerate(turns):
        put(
            connection,
            "turns",
            **{"id": f"t{n}.{m}", "cast_id": f"k{n}", "parent_id": parent, "entity_id": "e"},
            **{"utterance": utterance, "calls": json.dumps(calls), "finish_reason": "stop"},
            **{"backend": "scripted", "model": "scripted", "tokens_in": 9, "tokens_out": 5},
            **{"tokens_cached": 0, "ms": 5, "created_at": NOW},
        )
        parent = f"t{n}.{m}"


@pytest.mark.parametrize("running", [False, True])
async def test_what_was_said_before_there_were_blocks_is_shown_and_all_is_told_behind_it(
    tmp_path: Path, model: ModelServer, running: bool
) -> None:
    """F-004, L-051, L-056: every row is kept, also a message that the upgrade interrupted goes on."""
    path = tmp_path / "wintermute.db"
    columns = of_schema_19(path, running=running)
    before = rows(path, columns)
    (tmp_path / "MEMORIES.txt").write_text("Ann likes milk.\n")
    model.script(Text("here I am"), Text("yes"))
    async with (
        open_house(tmp_path, model.url, prompts=PROMPTS, clock=FakeClock()) as house,
        house.working(),
    ):
        if not running:
            await house.incoming("three")
        await house.settled()
        await house.incoming("four")
        await house.settled()
        assert await house.spoken() == ["here I am", "yes"]
    after = rows(path, columns)
    for table in TABLES:
        assert {row for row in before[table] if not OPEN & {*row}} <= {*after[table]}, table
    first, second = model.requests
    shown = [(m["role"], m["content"]) for m in first.messages[1:]]
    assert shown == [
        ("user", "# Conversation Summary\n[Folded: turns 1-1]\nThey met.\n\n---\n\nlook it up"),
        ("assistant", None),
        ("tool", "[ephemeral:read_file]"),
        ("tool", json.dumps(STORED)),
        ("assistant", "I see"),
        ("user", f"three\n\n{WHOLE}"),
    ]
    assert second.messages[: len(first.messages)] == first.messages
    only_time = "<context>\n# Current Time\nMonday, 2026-05-04 14:00 CEST\n</context>"
    assert second.messages[-1]["content"] == f"four\n\n{only_time}"
