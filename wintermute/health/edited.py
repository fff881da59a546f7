"""What files that people edit last held in order, and whether their owner knows when they do not."""

import json
from collections.abc import Collection, Iterable, Sequence

from wintermute.db import Database, Transaction
from wintermute.db.traces import holds


class EditedFiles:
    """A row per file, under the name by which prompt and tools call it (F-031)."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def text(self, name: str) -> str | None:
        """What a file last held; None: nobody knows."""
        row = await self._database.row("SELECT text FROM edited_files WHERE name = ?", (name,))
        return row["text"] if row else None

    async def texts(self, folder: str) -> dict[str, str]:
        """What the files in a folder last held, by their names in there."""
        rows = await self._database.rows(
            "SELECT substr(name, length(:folder) + 2) AS name, text FROM edited_files"
            " WHERE text IS NOT NULL AND substr(name, 1, length(:folder) + 1) = :folder || '/'",
            {"folder": folder},
        )
        return {row["name"]: row["text"] for row in rows}

    async def keep(self, texts: Iterable[tuple[str, str]]) -> None:
        """Remember what files hold now, as (name, text)."""
        async with self._database.transaction() as tx:
            await tx.execute_many(
                "INSERT INTO edited_files (name, text) VALUES (?, ?) ON CONFLICT (name) DO UPDATE"
                " SET text = excluded.text WHERE text IS NOT excluded.text",
                list(texts),
            )

    async def told(self) -> set[str]:
        """The files of which the owner knows that they cannot be used."""
        rows = await self._database.rows("SELECT name FROM edited_files WHERE told")
        return {row["name"] for row in rows}

    async def tell(self, tx: Transaction, names: Collection[str]) -> None:
        """From now on the owner knows it of exactly these."""
        listed = json.dumps(list(names))
        await tx.execute(
            "UPDATE edited_files SET told = 0"
            " WHERE told AND name NOT IN (SELECT value FROM json_each(?))",
            (listed,),
        )
        await tx.execute(
            "INSERT INTO edited_files (name, told) SELECT value, 1 FROM json_each(?) WHERE true"
            " ON CONFLICT (name) DO UPDATE SET told = 1",
            (listed,),
        )

    async def forget(self, tx: Transaction, traces: Sequence[str]) -> int:
        """Drop what holds one of the `traces`; how many. The files themselves are a person's."""
        return await tx.execute(
            f"UPDATE edited_files SET text = NULL WHERE {holds('text')}",
            {"traces": json.dumps(list(traces))},
        )
