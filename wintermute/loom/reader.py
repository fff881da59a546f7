"""Reads the loom for people: lists of branches, and the full record of one, as JSON."""

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from wintermute.db import Database, Row
from wintermute.db.values import reader
from wintermute.errors import WintermuteError
from wintermute.loom.casts import LAST, PATH
from wintermute.messages import Json

_TURN = (
    "id parent_id entity_id utterance calls finish_reason model backend tokens_in tokens_out"
    " tokens_cached ms created_at prompt_hash error block"
)
_CAST = (
    "id branch_id event_id entity_id intent block origin wards state reason result started_at"
    " ended_at"
)
_FOLD = "id branch_id from_turn to_turn turns summary tokens_before tokens_after created_at"
_BRANCH = (
    "id conversation_id kind room_id scope reason forked_from created_at parent_cast parent_turn"
)
SUMS = ("tokens_in", "tokens_out", "tokens_cached", "ms")

_BRANCHES = (
    "SELECT b.id, b.conversation_id, c.kind, c.room_id, b.scope"
    " AS scope, b.reason, b.forked_from, b.created_at, c.parent_cast, c.parent_turn, b.seq,"
    " c.scope AS scope_now FROM branches b JOIN conversations c ON c.id = b.conversation_id"
)


@dataclass(frozen=True, slots=True)
class ForkPoint:
    """A turn that can be forked, with its conversation's present state."""

    turn_id: str
    branch_id: str
    conversation_id: str
    room_id: str | None
    parent_turn: str | None
    scope: str
    scope_now: str
    intent: str


_spot = reader(ForkPoint)


class LoomReader:
    """Queries for the command line and for pages; it never changes anything."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def branches(self, limit: int) -> list[Json]:
        """Return the branches, most recently active first, with sums."""
        rows = await self._database.rows(
            f"WITH newest AS ({_BRANCHES} ORDER BY coalesce((SELECT k.started_at FROM casts k"
            "  WHERE k.branch_id = b.id ORDER BY k.seq DESC LIMIT 1), b.created_at) DESC,"
            "  b.seq DESC LIMIT :limit)"
            " SELECT n.*, count(DISTINCT k.id) AS casts, count(t.id) AS turns,"
            " coalesce(sum(t.tokens_in + t.tokens_out), 0) AS tokens,"
            " coalesce(max(max(k.started_at, coalesce(t.created_at, ''),"
            "  coalesce(k.ended_at, ''))), n.created_at) AS last,"
            " coalesce(max(k.state = 'running'), 0) AS running"
            " FROM newest n LEFT JOIN casts k ON k.branch_id = n.id"
            " LEFT JOIN turns t ON t.cast_id = k.id GROUP BY n.id ORDER BY last DESC, n.seq DESC",
            {"limit": limit},
        )
        names = f"{_BRANCH} casts turns tokens last"
        return [{**_selected(row, names), "running": bool(row["running"])} for row in rows]

    async def find(self, name: str) -> str:
        """Return the branch of this id, or the newest one of the conversation or room of this id.

        Raises: WintermuteError when there is none.
        """
        row = await self._database.row(
            "SELECT b.id FROM branches b JOIN conversations c ON c.id = b.conversation_id"
            " WHERE b.id = :name OR c.id = :name OR c.room_id = :name AND c.thread_id = ''"
            " ORDER BY b.seq DESC LIMIT 1",
            {"name": name},
        )
        if row is None:
            raise WintermuteError(f"no branch {name}: `wintermute loom list` shows those there are")
        return str(row["id"])

    async def spot(self, turn_id: str) -> ForkPoint:
        """Return a turn's place. Raises: WintermuteError when there is no turn with this id."""
        row = await self._database.row(
            "SELECT t.id AS turn_id, b.id AS branch_id, v.id AS conversation_id, v.room_id,"
            " v.parent_turn, b.scope,"
            " v.scope AS scope_now, k.intent FROM turns t JOIN casts k ON k.id = t.cast_id"
            " JOIN branches b ON b.id = k.branch_id"
            " JOIN conversations v ON v.id = b.conversation_id WHERE t.id = ?",
            (turn_id,),
        )
        if row is None:
            raise WintermuteError(f"no turn {turn_id}: `wintermute loom show BRANCH` names them")
        return _spot(row)

    async def story(self, branch_id: str) -> Json:
        """Return a branch with its whole path, oldest first: casts, their turns, folds, edits."""
        rows = await self._database.rows(
            f"{PATH} SELECT c.*, c.context_block AS block, p.until FROM path p JOIN casts c ON c.branch_id = p.branch_id"
            " ORDER BY c.seq",
            {"branch": branch_id},
        )
        until = {row["id"]: row["until"] for row in rows}
        turns = await self._turns(until)
        folds = await self._database.rows(
            f"{PATH} SELECT f.* FROM path p JOIN folds f ON f.branch_id = p.branch_id"
            " JOIN turns t ON t.id = f.to_turn AND t.seq <= p.until ORDER BY f.seq",
            {"branch": branch_id},
        )
        edits = await self._database.rows(
            "SELECT event_id, edited, sender, text, created_at FROM edits"
            " WHERE edited IN (SELECT value FROM json_each(?)) ORDER BY seq",
            (json.dumps([row["event_id"] for row in rows if row["event_id"]]),),
        )
        return {
            "branch": await self.branch(branch_id),
            "casts": [
                _cast(row, turns.get(row["id"], ()))
                for row in rows
                if row["until"] == LAST or turns.get(row["id"])
            ],
            "folds": [_selected(row, _FOLD) for row in folds],
            "edits": [_selected(row, "event_id edited sender text created_at") for row in edits],
        }

    async def prompts(self, hashes: Collection[str]) -> dict[str, list[Json]]:
        """Return the system prompts of these hashes, each as its named pieces."""
        rows = await self._database.rows(
            "SELECT p.hash, part.value ->> 0 AS name, x.text"
            " FROM prompts p JOIN json_each(p.parts) part JOIN prompt_parts x ON x.hash = part.value ->> 1"
            " WHERE p.hash IN (SELECT value FROM json_each(?)) ORDER BY p.hash, part.key",
            (json.dumps(sorted(hashes)),),
        )
        prompts: dict[str, list[Json]] = {}
        for row in rows:
            prompts.setdefault(row["hash"], []).append({"name": row["name"], "text": row["text"]})
        return prompts

    async def recalled(self, casts: Collection[str]) -> dict[str, list[tuple[str, str]]]:
        """Return the wiki pages that these casts read: the path and the title of each, by cast."""
        rows = await self._database.rows(
            "SELECT t.cast_id, o.result ->> '$.path' AS path, o.result ->> '$.title' AS title"
            " FROM json_each(?) c JOIN turns t ON t.cast_id = c.value"
            " JOIN observations o ON o.turn_id = t.id WHERE o.gate = 'recall'"
            " AND o.state = 'completed' AND json_valid(o.result)"
            " AND json_type(o.result, '$.path') = 'text' ORDER BY t.seq, o.n",
            (json.dumps(sorted(casts)),),
        )
        pages: dict[str, list[tuple[str, str]]] = {}
        for row in rows:
            pages.setdefault(row["cast_id"], []).append((row["path"], row["title"] or row["path"]))
        return pages

    async def casts_of(self, room_id: str, results: Collection[str]) -> dict[str, str]:
        """Return the newest cast in a room that ended with each of these texts, by the text."""
        rows = await self._database.rows(
            "SELECT rtrim(k.result, char(10)) AS result, k.id FROM conversations v"
            " JOIN branches b ON b.conversation_id = v.id JOIN casts k ON k.branch_id = b.id"
            " WHERE v.room_id = ? AND rtrim(k.result, char(10)) IN (SELECT value FROM json_each(?))"
            " ORDER BY k.seq",
            (room_id, json.dumps([*results])),
        )
        return {row["result"]: row["id"] for row in rows}

    async def branch(self, branch_id: str) -> Json:
        """Return one branch."""
        row = await self._database.row(f"{_BRANCHES} WHERE b.id = ?", (branch_id,))
        if row is None:
            raise LookupError(branch_id)
        return _selected(row, _BRANCH)

    async def _turns(self, until: dict[str, int]) -> dict[str, list[Json]]:
        """Return the turns of these casts, each cast's up to a place, by cast."""
        parameters = (json.dumps(list(until)),)
        of_casts = "t.cast_id IN (SELECT value FROM json_each(?))"
        rows = await self._database.rows(
            f"SELECT t.*, t.context_block AS block, t.seq = (SELECT max(x.seq) FROM turns x WHERE x.cast_id = t.cast_id)"
            f" AS last FROM turns t WHERE {of_casts} ORDER BY t.seq",
            parameters,
        )
        observations = await self._database.rows(
            "SELECT o.* FROM observations o JOIN turns t ON t.id = o.turn_id"
            f" WHERE {of_casts} ORDER BY o.turn_id, o.n",
            parameters,
        )
        rewards = await self._database.rows(
            "SELECT r.* FROM rewards r JOIN turns t ON t.id = r.turn_id"
            f" WHERE {of_casts} ORDER BY r.created_at",
            parameters,
        )
        children = await self._database.rows(
            "SELECT b.id AS branch, v.parent_turn AS turn_id, (SELECT k.state FROM casts k"
            "  WHERE k.branch_id = b.id ORDER BY k.seq DESC LIMIT 1) AS state FROM turns t"
            " JOIN conversations v ON v.parent_turn = t.id"
            f" JOIN branches b ON b.conversation_id = v.id WHERE {of_casts} ORDER BY b.seq",
            parameters,
        )
        below = (_by_turn(observations), _by_turn(rewards), _by_turn(children))
        turns: dict[str, list[Json]] = {}
        for row in rows:
            if row["seq"] <= until[row["cast_id"]]:
                lists = (each.get(row["id"], ()) for each in below)
                turns.setdefault(row["cast_id"], []).append(_turn(row, *lists))
        return turns


def lines(story: Json) -> list[Json]:
    """Return a record as one object for each turn, from the first to the last (L-049)."""
    return [_line(cast, turn) for cast in story["casts"] for turn in cast["turns"]]


def _line(cast: Json, turn: Json) -> Json:
    line = {
        "id": turn["id"],
        "parent_id": turn["parent_id"],
        "cast": cast["id"],
        "branch": cast["branch_id"],
        "thread": cast["branch_id"],
    }
    if turn is cast["turns"][0]:
        line |= {"intent": cast["intent"], "intent_block": cast["block"]}
    line |= {key: turn[key] for key in turn if key not in ("children", "last")}
    if turn["last"]:
        line |= {key: cast[key] for key in ("state", "reason", "result")}
    return line


def sums(turns: Iterable[Json]) -> dict[str, int]:
    """Add up the tokens and the time of turns (L-047)."""
    listed = list(turns)
    return {key: sum(turn[key] for turn in listed) for key in SUMS}


def _cast(row: Row, turns: Iterable[Json]) -> Json:
    listed = list(turns)
    named = _selected(row, _CAST)
    return {**named, "wards": json.loads(row["wards"]), "turns": listed, "sums": sums(listed)}


def _turn(
    row: Row, observations: Iterable[Row], rewards: Iterable[Row], children: Iterable[Row]
) -> Json:
    return {
        **_selected(row, _TURN),
        "calls": json.loads(row["calls"]),
        "observations": [_observation(each) for each in observations],
        "rewards": [_selected(each, "value sender created_at") for each in rewards],
        "children": [_selected(each, "branch state") for each in children],
        "last": bool(row["last"]),
    }


def _observation(row: Row) -> Json:
    """Return the canonical shape (L-027). `result` is null for a gate that only started."""
    return {
        "gate": row["gate"],
        "args": json.loads(row["args"]) if row["args"] else None,
        "result": json.loads(row["result"]) if row["result"] else row["result"],
        "is_error": bool(row["is_error"]),
        "tool_call_id": row["tool_call_id"],
    }


def _by_turn(rows: Iterable[Row]) -> dict[str, list[Row]]:
    grouped: dict[str, list[Row]] = {}
    for row in rows:
        grouped.setdefault(row["turn_id"], []).append(row)
    return grouped


def _selected(row: Row, names: str) -> dict[str, Any]:
    return {name: row[name] for name in names.split()}
