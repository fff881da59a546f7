"""A cast as it was when it began, with what it had in view, in a database of its own."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from wintermute.clock import stamp
from wintermute.db import Database, Row, Transaction
from wintermute.loom.path import PATH
from wintermute.loom.records import Cast

BEGUN: dict[str, Any] = {"state": "running", "reason": None, "result": None, "ended_at": None}


async def begin_again(source: Database, tx: Transaction, cast: Cast) -> Cast:
    """Copy into an empty loom what a cast had in view, and the cast without its turns."""
    await tx.execute("PRAGMA defer_foreign_keys = ON")
    asked = {"branch": cast.branch_id, "cast": cast.id, "begun": stamp(cast.started_at)}
    fold = await source.row(
        f"{PATH} SELECT f.*, c.seq AS last_cast FROM path p"
        " JOIN folds f ON f.branch_id = p.branch_id AND f.created_at < :begun"
        " JOIN turns t ON t.id = f.to_turn JOIN casts c ON c.id = t.cast_id"
        " WHERE t.seq <= p.until AND f.summary <> '' ORDER BY t.seq DESC, f.seq DESC LIMIT 1",
        asked,
    )
    casts = await source.rows(
        f"{PATH} SELECT c.* FROM path p JOIN casts c ON c.branch_id = p.branch_id"
        " WHERE c.seq BETWEEN :from AND (SELECT seq FROM casts WHERE id = :cast) ORDER BY c.seq",
        {**asked, "from": fold["last_cast"] if fold else 0},
    )
    earlier = json.dumps([row["id"] for row in casts if row["id"] != cast.id])
    turns = await source.rows(
        "SELECT * FROM turns WHERE cast_id IN (SELECT value FROM json_each(?)) ORDER BY seq",
        (earlier,),
    )
    observations = await source.rows(
        "SELECT o.* FROM observations o JOIN turns t ON t.id = o.turn_id"
        " WHERE t.cast_id IN (SELECT value FROM json_each(?)) ORDER BY o.seq",
        (earlier,),
    )
    await _branches(source, tx, asked, {row["id"] for row in turns})
    for row in casts:
        begun = BEGUN if row["id"] == cast.id else {}
        await _insert(tx, "casts", row, prompt_hash=None, **begun)
    for row in turns:
        await _insert(tx, "turns", row, prompt_hash=None, parent_id=None)
    for row in observations:
        await _insert(tx, "observations", row)
    if fold is not None:
        await _insert(tx, "folds", fold, without=("last_cast",), from_turn=fold["to_turn"])
    return replace(cast, state="running", reason=None, result=None, turns=())


async def _branches(
    source: Database, tx: Transaction, asked: dict[str, Any], turns: set[str]
) -> None:
    conversation = await source.row(
        "SELECT c.* FROM conversations c JOIN branches b ON b.conversation_id = c.id"
        " WHERE b.id = :branch",
        asked,
    )
    if conversation is None:
        raise LookupError(asked["branch"])
    await _insert(tx, "conversations", conversation, parent_cast=None, parent_turn=None)
    for row in await source.rows(
        f"{PATH} SELECT b.* FROM path p JOIN branches b ON b.id = p.branch_id ORDER BY b.seq",
        asked,
    ):
        fork = row["forked_from"] if row["forked_from"] in turns else None  # else it was folded
        await _insert(tx, "branches", row, forked_from=fork)


async def _insert(
    tx: Transaction, table: str, row: Row, *, without: Sequence[str] = (), **other: Any
) -> None:
    values = {name: row[name] for name in row.keys() if name not in without} | other  # noqa: SIM118
    places = ", ".join(f":{name}" for name in values)
    await tx.execute(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({places})", values)
