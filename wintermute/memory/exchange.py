"""Facts as lines of JSON: exported for other programs, and imported from them (M-067, M-068)."""

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, tzinfo
from itertools import islice
from typing import Any, BinaryIO

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
    cleaned,
    entry,
    protection,
)
from wintermute.memory.facts import Facts
from wintermute.memory.flat_file import GENERATED
from wintermute.memory.lexical_overlap import says_something
from wintermute.messages import Json

BATCH = 500
"""Lines of one transaction."""
SCOPE = re.compile(r"(?:person:@[^\s:]+:|room:!)\S+")
MOST_NAME = 300
"""Characters of an id, a speaker or an origin."""
MOST_LINE = 1_000_000
"""Bytes of a line; a longer one is cut, which makes it a bad line."""
MOST_PROBLEMS = 1_000
"""Bad lines of an import that are kept; all are reported."""

ReportLine = Callable[[int, str], None]
"""Takes the number of a bad line, and what is wrong with it."""


class _Problem(Exception):
    """A bad line; its text says what is wrong."""


class _NoWords(Exception):
    """A line without a word: no memory, and no mistake either (M-075)."""


@dataclass(frozen=True, slots=True)
class ImportResult:
    """Counts of an import's lines. `problems`: the number of a bad line, and what is wrong with it."""

    stored: int = 0
    raised: int = 0
    ended: int = 0
    """Known facts that now have an end."""
    known: int = 0
    skipped: int = 0
    """Lines without a word."""
    left_out: int = 0
    """Lines that look like they hold a secret (M-098)."""
    bad: int = 0
    problems: tuple[tuple[int, str], ...] = ()
    """The first bad lines."""
    set_id: str | None = None
    scopes: frozenset[str] = field(default_factory=frozenset)
    """Scopes whose memories changed."""


@dataclass(frozen=True, slots=True)
class BatchQuestion:
    """A question of a batch. `before`: the last reply before it, if there was one."""

    id: str
    text: str
    scope: str
    before: str = ""


def ignore_problem(_number: int, _problem: str) -> None:
    """Ignore a bad line, for callers that read `ImportResult.problems`."""


def ignore_progress(_lines: int) -> None:
    """Ignore the progress of an import."""


def lines_of_file(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a file as they are needed, each of bounded size."""
    while line := file.readline(MOST_LINE):
        more = line
        while len(more) == MOST_LINE and not more.endswith(b"\n"):
            more = file.readline(MOST_LINE)
        yield line


def of_list(lines: Iterable[bytes]) -> Iterator[str | bytes]:
    """Yield the lines of a plain list, such as MEMORIES.txt, as lines of JSON."""
    for line in lines:
        try:
            text = line.decode("utf-8-sig").strip()
        except UnicodeDecodeError:
            yield line  # it is reported as a bad one
            continue
        yield json.dumps({"text": text}) if text and text != GENERATED else ""


def questions(
    lines: Iterable[str | bytes], scope: str, report: ReportLine
) -> Iterator[BatchQuestion]:
    """Yield the questions of a file of JSON lines; a bad line is reported (M-069).

    `scope`: for lines that name none.
    """
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield _asked(line, scope)
            except _Problem as problem:
                report(number, str(problem))


def _asked(line: str | bytes, scope: str) -> BatchQuestion:
    values = _object(line)
    text, before = values.get("query"), values.get("before") or ""
    if not isinstance(text, str) or not text.strip():
        raise _Problem('"query" is missing or not text')
    if not isinstance(before, str):
        raise _Problem('"before" is not text')
    name = _name(values, "id")
    if name is None:
        raise _Problem('"id" is missing')
    return BatchQuestion(name, text, _scope(values) or scope, before)


async def exported(facts: Facts, scopes: Collection[str]) -> list[str]:
    """Return one JSON line per fact of these scopes, ended facts included, oldest first (M-068)."""
    return [
        json.dumps(as_line(fact), ensure_ascii=False)
        for scope in scopes
        for fact in await facts.kept(scope)
    ]


class Import:
    """Reads facts from lines, in batches; a stop keeps the batches stored so far."""

    def __init__(
        self,
        database: Database,
        facts: Facts,
        changes: ChangeSets,
        scope: str,
        timezone: tzinfo,
        named: Callable[[str], str] = str,
    ) -> None:
        """`scope`: for lines that name none. `named`: maps a scope to its local name."""
        self._database = database
        self._facts = facts
        self._changes = changes
        self._scope = scope
        self._timezone = timezone
        self._named = named

    async def store_lines(
        self,
        lines: Iterable[str | bytes],
        why: Reason,
        told: ReportLine = ignore_problem,
        read: Callable[[int], None] = ignore_progress,
    ) -> ImportResult:
        """Store every good line, as one change set. Lines are read as they are needed.

        `told`: called for each bad line. `read`: called now and then with the number of lines done.
        """
        result = ImportResult()
        numbered = enumerate(lines, 1)
        while batch := list(islice(numbered, BATCH)):
            result = await self._take(batch, why, result, told)
            read(batch[-1][0])
        return result

    async def _take(
        self,
        batch: Sequence[tuple[int, str | bytes]],
        why: Reason,
        so_far: ImportResult,
        report: ReportLine,
    ) -> ImportResult:
        new, skipped, problems = self._read(batch)
        for problem in problems:
            report(*problem)
        async with self._database.transaction() as tx:
            taken = await self._facts.take(tx, new)
            changes = [done.change for done in taken if done.change]
            why = replace(why, into=so_far.set_id)
            set_id = await self._changes.record(tx, why, changes) if changes else why.into
        outcomes: list[AddOutcome] = [done.outcome for done in taken]
        return ImportResult(
            stored=so_far.stored + outcomes.count("stored"),
            raised=so_far.raised + outcomes.count("raised"),
            ended=so_far.ended + outcomes.count("ended"),
            known=so_far.known + outcomes.count("known"),
            skipped=so_far.skipped + skipped,
            left_out=so_far.left_out + outcomes.count("refused"),
            bad=so_far.bad + len(problems),
            problems=(*so_far.problems, *problems)[:MOST_PROBLEMS],
            set_id=set_id,
            scopes=so_far.scopes | {done.fact.scope for done in taken if done.change},
        )

    def _read(
        self, batch: Sequence[tuple[int, str | bytes]]
    ) -> tuple[list[NewFact], int, list[tuple[int, str]]]:
        """Return the facts, the number of wordless lines, and the bad lines."""
        facts: list[NewFact] = []
        problems: list[tuple[int, str]] = []
        skipped = 0
        for number, line in batch:
            if line.strip():
                try:
                    facts.append(self._fact(line))
                except _NoWords:
                    skipped += 1
                except (_Problem, ToolFailed) as problem:
                    problems.append((number, str(problem)))
        return facts, skipped, problems

    def _fact(self, line: str | bytes) -> NewFact:
        values = _object(line)
        if not isinstance(text := values.get("text"), str):
            raise _Problem('"text" is missing or not text')
        scope = _scope(values) or self._scope
        source = _name(values, "source") or EXPLICIT
        if source not in SOURCES:
            raise _Problem(f'"source" is none of {", ".join(SOURCES)}')
        fact = NewFact(
            scope=self._named(scope),
            text=cleaned(text),
            source=source,
            speaker=_name(values, "speaker"),
            origins=_names(values, "origins"),
            id=_name(values, "id"),
            at=self._moment(values, "at"),
            valid_from=self._moment(values, "valid_from"),
            valid_to=self._moment(values, "valid_to"),
            replaced_by=_name(values, "replaced_by"),
            protected=_truth(values, "protected"),
            archived=_truth(values, "resting"),
        )
        if not says_something(fact.text):
            raise _NoWords
        entry(fact.text, SHORTEST, LONGEST)
        return fact

    def _moment(self, values: Mapping[str, Any], key: str) -> datetime | None:
        text = _name(values, key)
        if text is None:
            return None
        found = moment_of(text, self._timezone)
        if found is None:
            raise _Problem(f'"{key}" is no ISO 8601 time such as 2026-05-04T12:00:00Z')
        return found


def moment_of(text: str, zone: tzinfo) -> datetime | None:
    """Return the time that a day or a time in ISO 8601 names, or None.

    A day means its beginning. `zone`: for a time that names none.
    """
    try:
        moment = datetime.fromisoformat(text)
        aware = moment if moment.tzinfo else moment.replace(tzinfo=zone)
        stamp(aware)  # the first and the last day of the calendar have no moment elsewhere
    except (ValueError, OverflowError):
        return None
    return aware


def _scope(values: Mapping[str, Any]) -> str | None:
    scope = _name(values, "scope")
    if scope is not None and not SCOPE.fullmatch(scope):
        raise _Problem('"scope" is neither person:@name:server nor room:!id')
    return scope


def _object(line: str | bytes) -> Json:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _Problem("not a line of JSON in UTF-8") from error
    if not isinstance(values, dict):
        raise _Problem("not a JSON object")
    return values


def _name(values: Mapping[str, Any], key: str) -> str | None:
    """Read a short text in one line, or nothing."""
    value = values.get(key)
    if value is None:
        return None
    if not isinstance(value, str) or not 0 < len(value) <= MOST_NAME or not value.isprintable():
        raise _Problem(f'"{key}" is not a text of 1 to {MOST_NAME} printable characters')
    return value


def _truth(values: Mapping[str, Any], key: str) -> bool:
    value = values.get(key, False)
    if not isinstance(value, bool):
        raise _Problem(f'"{key}" is neither true nor false')
    return value


def _names(values: Mapping[str, Any], key: str) -> tuple[str, ...]:
    found = values.get(key) or []
    if not isinstance(found, list):
        raise _Problem(f'"{key}" is not a list')
    names = (_name({key: name}, key) for name in found)
    return tuple(name for name in names if name is not None)


def as_line(fact: Fact) -> Json:
    """Return a fact as a JSON line (M-067)."""
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
    return line | {name: value for name, value in others.items() if value} | protection(fact)
