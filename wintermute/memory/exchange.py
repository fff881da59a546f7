"""Facts as lines of JSON: out to any other program, and in from one (M-067, M-068)."""

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from itertools import islice
from typing import Any

from wintermute.changes.change_sets import ChangeSets, Reason
from wintermute.clock import stamp
from wintermute.db import Database
from wintermute.errors import ToolFailed
from wintermute.memory.fact import (
    EXPLICIT,
    LONGEST,
    SHORTEST,
    SOURCES,
    AddOutcome,
    Fact,
    NewFact,
    entry,
)
from wintermute.memory.facts import Facts
from wintermute.messages import Json

BATCH = 500
"""Lines of one transaction."""
SCOPE = re.compile(r"(?:person:@[^\s:]+:|room:!)\S+")
MOST_NAME = 300
"""Characters of an id, a speaker or an origin."""


class _Problem(Exception):
    """What is wrong with a line."""


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import did. `problems`: number of the line, and what is wrong with it."""

    stored: int = 0
    raised: int = 0
    known: int = 0
    problems: tuple[tuple[int, str], ...] = ()
    set_id: str | None = None
    scopes: frozenset[str] = field(default_factory=frozenset)
    """Whose memories changed."""


async def exported(facts: Facts, scopes: Collection[str]) -> list[str]:
    """One JSON line per fact of these scopes, also of what is no longer true, oldest first (M-068)."""
    return [
        json.dumps(_line(fact), ensure_ascii=False)
        for scope in scopes
        for fact in await facts.kept(scope)
    ]


class Import:
    """Reads facts from lines, in batches; what was taken stays when it is stopped in between."""

    def __init__(
        self,
        database: Database,
        facts: Facts,
        changes: ChangeSets,
        scope: str,
        timezone: tzinfo,
        named: Callable[[str], str] = str,
    ) -> None:
        """`scope`: of lines that name none. `named`: the name by which a scope is known here."""
        self._database = database
        self._facts = facts
        self._changes = changes
        self._scope = scope
        self._timezone = timezone
        self._named = named

    async def run(self, lines: Iterable[str | bytes], why: Reason) -> Imported:
        """Take every good line; all of it is one change set. Lines are read as they are needed."""
        result = Imported()
        numbered = enumerate(lines, 1)
        while batch := list(islice(numbered, BATCH)):
            result = await self._take(batch, why, result)
        return result

    async def _take(
        self, batch: Sequence[tuple[int, str | bytes]], why: Reason, so_far: Imported
    ) -> Imported:
        problems: list[tuple[int, str]] = []
        new = list(self._read(batch, problems))
        async with self._database.transaction() as tx:
            taken = await self._facts.take(tx, new)
            changes = [done.change for done in taken if done.change]
            set_id = so_far.set_id
            if changes and set_id is None:
                set_id = await self._changes.record(tx, why, changes)
            elif changes and set_id:
                await self._changes.extend(tx, set_id, changes)
        outcomes: list[AddOutcome] = [done.outcome for done in taken]
        return Imported(
            stored=so_far.stored + outcomes.count("stored"),
            raised=so_far.raised + outcomes.count("raised"),
            known=so_far.known + outcomes.count("known"),
            problems=(*so_far.problems, *problems),
            set_id=set_id,
            scopes=so_far.scopes | {done.fact.scope for done in taken if done.change},
        )

    def _read(
        self, batch: Sequence[tuple[int, str | bytes]], problems: list[tuple[int, str]]
    ) -> Iterator[NewFact]:
        for number, line in batch:
            if line.strip():
                try:
                    yield self._fact(line)
                except (_Problem, ToolFailed) as problem:
                    problems.append((number, str(problem)))

    def _fact(self, line: str | bytes) -> NewFact:
        values = _object(line)
        if not isinstance(text := values.get("text"), str):
            raise _Problem('"text" is missing or not text')
        scope = _name(values, "scope") or self._scope
        if not SCOPE.fullmatch(scope):
            raise _Problem('"scope" is neither person:@name:server nor room:!id')
        source = _name(values, "source") or EXPLICIT
        if source not in SOURCES:
            raise _Problem(f'"source" is none of {", ".join(SOURCES)}')
        return NewFact(
            scope=self._named(scope),
            text=entry(text, SHORTEST, LONGEST),
            source=source,
            speaker=_name(values, "speaker"),
            origins=_names(values, "origins"),
            id=_name(values, "id"),
            at=self._moment(values, "at"),
            valid_from=self._moment(values, "valid_from"),
            valid_to=self._moment(values, "valid_to"),
            replaced_by=_name(values, "replaced_by"),
        )

    def _moment(self, values: Mapping[str, Any], key: str) -> datetime | None:
        text = _name(values, key)
        if text is None:
            return None
        try:
            found = datetime.fromisoformat(text)
            aware = found if found.tzinfo else found.replace(tzinfo=self._timezone)
            stamp(aware)  # the first and the last day of the calendar have no moment elsewhere
        except (ValueError, OverflowError) as error:
            raise _Problem(f'"{key}" is no ISO 8601 time such as 2026-05-04T12:00:00Z') from error
        return aware


def _object(line: str | bytes) -> Json:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _Problem("not a line of JSON in UTF-8") from error
    if not isinstance(values, dict):
        raise _Problem("not a JSON object")
    return values


def _name(values: Mapping[str, Any], key: str) -> str | None:
    """A short text in one line, or nothing."""
    value = values.get(key)
    if value is None:
        return None
    if not isinstance(value, str) or not 0 < len(value) <= MOST_NAME or not value.isprintable():
        raise _Problem(f'"{key}" is not a text of 1 to {MOST_NAME} printable characters')
    return value


def _names(values: Mapping[str, Any], key: str) -> tuple[str, ...]:
    found = values.get(key) or []
    if not isinstance(found, list):
        raise _Problem(f'"{key}" is not a list')
    names = (_name({key: name}, key) for name in found)
    return tuple(name for name in names if name is not None)


def _line(fact: Fact) -> Json:
    line: Json = {
        "id": fact.id,
        "text": fact.text,
        "at": stamp(fact.created_at),
        "scope": fact.scope,
        "source": fact.source,
        "valid_from": stamp(fact.valid_from),
        "valid_to": stamp(fact.valid_to) if fact.valid_to else None,
        "origins": list(fact.origins),
    }
    others = {"speaker": fact.speaker, "replaced_by": fact.replaced_by}
    return line | {name: value for name, value in others.items() if value}
