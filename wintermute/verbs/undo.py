"""Undo for every door: it waits for forgetting, reads manual edits first, and updates the files."""

from collections.abc import Collection

from wintermute.changes.change_sets import ChangeSet
from wintermute.changes.undo import Undone
from wintermute.forgetting.forget_jobs import refuse_meanwhile
from wintermute.stores import Stores


async def undo(
    stores: Stores,
    wanted: ChangeSet,
    items: Collection[str] | None = None,
    key: str | None = None,
) -> Undone:
    """Undo a change set, or only some of its items. `key`: id of the command, so that a repeat finds the result.

    Raises: WintermuteError while something is being forgotten, and for a file that cannot be written.
    """
    await refuse_meanwhile(stores)
    if any(change.kind == "fact" for change in wanted.changes):
        await stores.memories.text(wanted.scope)
    undone = await stores.undo.apply(wanted, items, key)
    for scope in undone.memory_scopes:
        await stores.memories.text(scope)
    return undone
