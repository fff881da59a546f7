"""Search for rows that contain a text, in whatever form it was written there.

Searching 50,000 turns takes a second of Python code, which in a thread would block every answer. So a large file is
searched by a process of its own, which reads it, answers in JSON and exits.
"""

import asyncio
import json
import logging
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from wintermute.db import driver
from wintermute.db.text_match import AllWordsMatcher, TextMatcher, WordMatcher
from wintermute.messages import Json

AT_ONCE = 1000
"""Rows that are read together."""
LARGE = 16_000_000
"""Bytes of a file that is searched in some 50 ms, which is less than a process costs."""
NICENESS = 5
"""Niceness of that process: answers go first."""
LONGEST = 1 << 30
"""Bytes of one of its answers: keys of rows."""
CODE = "import sys; sys.path[:] = sys.argv[2:]; from wintermute.db.text_search import main; main()"

SCOPES = "(SELECT value FROM json_each(:scopes))"
"""SQL: the scopes to search."""
CONVERSATIONS = (
    f"(SELECT id FROM conversations WHERE scope IN {SCOPES}"
    f" UNION SELECT conversation_id FROM branches WHERE scope IN {SCOPES})"
)
"""SQL: the conversations that belong to these scopes, or once did."""
# A plus keeps the planner from an index: the rows are selected by their keys.
OURS_SINCE = "created_at >= :since"
OF_EVENTS = "IN (SELECT value FROM json_each(:events))"
OF_CASTS = "IN (SELECT value FROM json_each(:casts))"
GONE = "IN (SELECT value ->> 0 FROM json_each(:gone))"
"""SQL: the key of a row that is emptied."""
OF_CONVERSATIONS = f"+conversation_id IN {CONVERSATIONS}"
OF_BRANCHES = f"(SELECT id FROM branches WHERE conversation_id IN {CONVERSATIONS})"
ONLY_THEIRS = f"(SELECT id FROM branches WHERE scope IN {SCOPES})"
"""SQL: branches that only these scopes could read, as a chat may have become a room since."""

log = logging.getLogger(__name__)

RowKeys = Sequence[Sequence[Any]]
"""Keys of rows: each as the columns of its key."""
MatchedRows = tuple[RowKeys, Sequence[Any] | None]
"""The matching rows, and the last row that was read."""


@dataclass(frozen=True, slots=True)
class SearchableText:
    """Columns of a table that hold texts of people or models, and how to search and erase them.

    `key`: a number or text that orders its rows, or two separated by a comma. `where`: SQL for the rows that have
    text. `fixed`: rows are numbered and never change, so that only new ones need another search. `of`: SQL for rows
    that belong to some `:scopes`; rows of no scope are searched for everybody. `ours`: SQL for rows that the
    assistant wrote since `:since`.

    The eraser uses the rest. `derived`: SQL for rows derived from the `:events`, from `:casts`, or from `:sources`.
    `waits`: SQL for the name of work that still needs a row; NULL: it can go. `empties`: assignments that empty a
    row; none: all columns become ''. `cuts`: only the words are cut, out of texts or of JSON. `drops`: the whole row
    is deleted. `dependents`: statements to run before, for the keys `:gone`.
    """

    table: str
    columns: tuple[str, ...]
    key: str = "seq"
    where: str = "TRUE"
    fixed: bool = False
    of: str = "TRUE"
    ours: str = "FALSE"
    derived: str = ""
    waits: str = ""
    empties: tuple[str, ...] = ()
    cuts: Literal["", "text", "json"] = ""
    drops: bool = False
    dependents: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return its unique name, as an SQL parameter."""
        return "_".join((self.table, *self.columns))

    @property
    def width(self) -> int:
        """Return the number of its key columns."""
        return self.key.count(",") + 1

    def rows(self) -> str:
        """Return SQL for rows among the matches (`TextMatches.asked`)."""
        return self.among(self.name)

    def among(self, name: str) -> str:
        """Return SQL for rows whose key is in this JSON list."""
        parts = ", ".join(f"value ->> {n}" for n in range(self.width))
        return f"(({self.key}) IN (SELECT {parts} FROM json_each(:{name})))"

    def page(self, *, after: bool) -> str:
        """Return the query for keys and texts of the first rows, or of those after a key."""
        whole = " || char(10) || ".join(f"coalesce({column}, '')" for column in self.columns)
        beyond = f"({self.key}) > ({', '.join('?' * self.width)})" if after else "TRUE"
        return (
            f"SELECT {self.key}, CAST({whole} AS BLOB) FROM {self.table}"
            f" WHERE {beyond} AND {self.where} ORDER BY {self.key} LIMIT {AT_ONCE}"
        )

    def belonging(self, *, scoped: bool, words: bool = False) -> str:
        """Return the query for those of the rows `:found` that belong to the scopes, and which are ours.

        It is slower than matching a text, so it gets few rows. With `words`: all rows that nobody else could read.
        """
        of = f"({self.of})" if scoped else "TRUE"
        ours = "TRUE" if words else self.ours
        of = of.replace(OF_BRANCHES, ONLY_THEIRS) if words else of
        return f"SELECT {self.key}, {ours} FROM {self.table} WHERE {self.among('found')} AND {of}"

    def meant(self) -> str:
        """Return the query for rows to empty: their keys, and the work that each `waits` for."""
        changes = [each.replace(" = ", " IS NOT ", 1) for each in self._changes()]
        is_full = "TRUE" if self.cuts or self.drops else f"({' OR '.join(changes)})"
        is_meant = f"({self.rows()} OR {self.derived})" if self.derived else self.rows()
        is_open = f"({self.waits}) IS NOT NULL OR " if self.waits else ""
        return (
            f"SELECT {self.key}, {self.waits or 'NULL'} AS waits FROM {self.table}"
            f" WHERE {is_meant} AND ({is_open}{self.where} AND {is_full})"
        )

    def emptying(self) -> str:
        """Return the statement that empties the rows `:gone`."""
        change = f"UPDATE {self.table} SET {', '.join(self._changes())}"
        return f"{f'DELETE FROM {self.table}' if self.drops else change} WHERE {self.among('gone')}"

    def _changes(self) -> Sequence[str]:
        return self.empties or [f"{column} = ''" for column in self.columns]


@dataclass(frozen=True, slots=True)
class TextQuery:
    """Texts to search for in some tables and scopes. `scopes` None: everywhere.

    `words`: one of them is enough in rows that the assistant wrote `since` then. `every`: words that must all be in
    a row that only these scopes could read.
    """

    kept: Sequence[SearchableText]
    texts: Sequence[str]
    scopes: Sequence[str] | None = None
    words: Sequence[str] = ()
    since: str = ""
    every: str = ""


@dataclass(frozen=True, slots=True)
class TextMatches:
    """The rows that match, and the last rows read, by `SearchableText.name`."""

    texts: tuple[str, ...] = ()
    rows: Mapping[str, RowKeys] = field(default_factory=dict)
    upto: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    def asked(self, *kept: SearchableText) -> dict[str, str]:
        """Return the SQL parameters for `SearchableText.rows` of these tables; empty lists without a search."""
        return {each.name: json.dumps(self.rows.get(each.name, ())) for each in kept}

    def also(self, kept: SearchableText, keys: RowKeys) -> "TextMatches":
        """Return the matches with further rows of a table."""
        return replace(self, rows={**self.rows, kept.name: [*self.rows.get(kept.name, ()), *keys]})


NO_MATCHES = TextMatches()


class TextSearch:
    """A search over committed data of a database; see `open_text_search`."""

    def __init__(self, path: Path, child: asyncio.subprocess.Process | None) -> None:
        self._path = path
        self._child = child

    async def seek(
        self, queries: Sequence[TextQuery], since: TextMatches = NO_MATCHES
    ) -> TextMatches:
        """Return the rows that contain these texts, in whatever form (F-034).

        With `since`: only rows that are new or changed since that search.
        """
        asked = [
            {
                "texts": list(each.texts),
                "words": list(each.words),
                "every": each.every,
                "given": {"scopes": json.dumps(list(each.scopes or ())), "since": each.since},
                "places": [
                    _place(kept, since, each.scopes is not None, bool(each.every))
                    for kept in each.kept
                ],
            }
            for each in queries
            if each.texts or each.every
        ]
        found = await self._found(asked)
        return TextMatches(
            tuple(dict.fromkeys(text for each in queries for text in each.texts)),
            {name: rows for name, (rows, _) in found.items()},
            {name: upto for name, (_, upto) in found.items() if upto},
        )

    async def _found(self, asked: Sequence[Json]) -> Mapping[str, MatchedRows]:
        if self._child is not None and self._child.stdin and self._child.stdout:
            with suppress(ConnectionError):
                self._child.stdin.write(json.dumps(asked).encode() + b"\n")
                await self._child.stdin.drain()
                if answer := await self._child.stdout.readline():
                    found: Mapping[str, MatchedRows] = json.loads(answer)
                    return found
            log.warning("search process ended code=%s", self._child.returncode)
        return await asyncio.to_thread(_search, self._path, asked)


@asynccontextmanager
async def open_text_search(path: Path) -> AsyncIterator[TextSearch]:
    """Open a search over the file of a database."""
    size = (await asyncio.to_thread(path.stat)).st_size
    child = await _start_process(path) if size >= LARGE else None
    try:
        yield TextSearch(path, child)
    finally:
        if child is not None:
            with suppress(ProcessLookupError):
                child.kill()
            await asyncio.shield(child.wait())


async def _start_process(path: Path) -> asyncio.subprocess.Process | None:
    pipe = asyncio.subprocess.PIPE
    try:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-S", "-c", CODE, str(path), *sys.path),
            stdin=pipe,
            stdout=pipe,
            limit=LONGEST,
            start_new_session=True,  # Ctrl-C is for the one at the terminal
        )
    except OSError as error:  # no memory for it
        log.warning("search process not started reason=%s", error)
        return None


def _place(kept: SearchableText, since: TextMatches, scoped: bool, words: bool) -> list[Any]:
    upto = since.upto.get(kept.name) if kept.fixed else None
    belonging = kept.belonging(scoped=scoped, words=words)
    queries = kept.page(after=False), kept.page(after=True), belonging
    return [kept.name, kept.width, *queries, upto]


def _search(path: Path, asked: Sequence[Json]) -> dict[str, MatchedRows]:
    """Return for each table the keys of the rows that match, and the last key."""
    found: dict[str, MatchedRows] = {}
    with closing(driver.connect(path, read_only=True, extensions=False)) as connection:
        for each in asked:
            wanted = TextMatcher(each["texts"])
            words = AllWordsMatcher(each["every"]) if each["every"] else WordMatcher(each["words"])
            for name, *place in each["places"]:
                rows, upto = _rows(connection, wanted, words, each["given"], *place)
                before, _ = found.get(name, ((), None))
                found[name] = [*before, *rows], upto
    return found


def _rows(
    connection: Any,
    wanted: TextMatcher,
    words: WordMatcher | AllWordsMatcher,
    given: Json,
    width: int,
    first: str,
    after: str,
    belonging: str,
    upto: Sequence[Any] | None,
) -> MatchedRows:
    found: list[list[Any]] = []
    while page := connection.execute(after if upto else first, upto or ()).fetchall():
        texts = [row[width] for row in page]
        said, spoken = set(wanted.among(texts)), set(words.among(texts))
        keys = {n: [*page[n]][:width] for n in sorted(said | spoken)}
        if keys:
            asked = given | {"found": json.dumps([*keys.values()])}
            rows = [[*row] for row in connection.execute(belonging, asked)]
            of = {tuple(row[:width]) for row in rows}
            ours = {tuple(row[:width]) for row in rows if row[width]}
            found += [key for n, key in keys.items() if tuple(key) in (of if n in said else ours)]
        upto = [*page[-1]][:width]
    return found, upto


def main() -> None:
    """Run the search process: each line of JSON is a request, answered by one line."""
    os.nice(NICENESS)
    for line in sys.stdin:
        sys.stdout.write(json.dumps(_search(Path(sys.argv[1]), json.loads(line))) + "\n")
        sys.stdout.flush()
