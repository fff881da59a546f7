"""The eraser: empties rows that hold forgotten text, as their tables declare it (`SearchableText`, M-030)."""

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass

from wintermute.db.database import Row, Transaction
from wintermute.db.text_match import ERASED, TextMatcher
from wintermute.db.text_search import NO_MATCHES, RowKeys, SearchableText, TextMatches


@dataclass(frozen=True, slots=True)
class DerivedFrom:
    """Messages, casts, and sources of recordings: rows derived from them go, whatever their text.

    So do the opaque provider fields of turns that these `scopes` made `since` then.
    """

    events: Collection[str] = ()
    casts: Collection[str] = ()
    sources: Collection[str] = ()
    scopes: Collection[str] = ()
    since: str = ""

    def asked(self) -> dict[str, str]:
        """Return the SQL parameters for `SearchableText.derived` and `SearchableText.dependents`."""
        return {
            name: part if isinstance(part, str) else json.dumps([*part])
            for name, part in asdict(self).items()
        }


NOTHING_DERIVED = DerivedFrom()


@dataclass(frozen=True, slots=True)
class Erased:
    """The rows that were emptied, by table and key, and the names of work that still needs some."""

    rows: frozenset[tuple[object, ...]] = frozenset()
    waiting: frozenset[str] = frozenset()

    def __or__(self, other: "Erased") -> "Erased":
        return Erased(self.rows | other.rows, self.waiting | other.waiting)


async def erase(
    tx: Transaction,
    places: Iterable[SearchableText],
    traces: TextMatches = NO_MATCHES,
    came: DerivedFrom = NOTHING_DERIVED,
) -> Erased:
    """Empty the rows of these places that match or were derived from these messages, unless still needed."""
    done = Erased()
    for kept in places:
        asked = came.asked() | traces.asked(kept) | {"texts": json.dumps(traces.texts)}
        found = await tx.rows(kept.meant(), asked)
        gone = [_key(row, kept) for row in found if row["waits"] is None]
        asked["gone"] = json.dumps(gone)
        for change in kept.dependents:
            await tx.execute(change, asked)
        if gone and kept.cuts:
            await _cut(tx, kept, gone, traces.texts)
        elif gone:
            await tx.execute(kept.emptying(), asked)
        rows = frozenset((kept.table, *key) for key in gone)
        done |= Erased(rows, frozenset(row["waits"] for row in found) - {None})
    return done


async def _cut(tx: Transaction, kept: SearchableText, gone: RowKeys, texts: Sequence[str]) -> None:
    """Cut the words out of the texts, and keep the rest."""
    wanted = TextMatcher(texts)
    rows = await tx.rows(
        f"SELECT {kept.key}, {', '.join(kept.columns)} FROM {kept.table} WHERE {kept.among('gone')}",
        {"gone": json.dumps(gone)},
    )
    new = ", ".join(f"{column} = ?" for column in kept.columns)
    of = f"({kept.key}) = ({', '.join('?' * kept.width)})"
    left = [
        (*(_without(wanted, row[name], kept) for name in kept.columns), *_key(row, kept))
        for row in rows
    ]
    await tx.execute_many(f"UPDATE {kept.table} SET {new} WHERE {of}", left)


def _key(row: Row, kept: SearchableText) -> list[object]:
    return [row[n] for n in range(kept.width)]


def _without(wanted: TextMatcher, text: str | None, kept: SearchableText) -> str | None:
    if text is None or kept.cuts == "text":
        return text and wanted.cut(text, ERASED)
    left = wanted.cut_all(json.loads(text), ERASED)
    return json.dumps(left, ensure_ascii=False, sort_keys=True)
