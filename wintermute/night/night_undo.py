"""Undo of a night: its change sets are reverted with a three-way merge (M-065, M-076)."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from wintermute.changes.change_sets import KEPT
from wintermute.changes.decisions import Decision
from wintermute.changes.nights import Night
from wintermute.changes.undo import Undone
from wintermute.errors import WintermuteError
from wintermute.night.report import is_forgotten
from wintermute.stores import Stores
from wintermute.verbs.undo import undo

AT_WORK = "that night is still running: undo it when it is over"
EXPIRED = f"it is too late to undo that: changes are kept for {KEPT.days} days"


@dataclass(frozen=True, slots=True)
class NightUndone:
    """Result of an undo: decisions that were fully undone, and the result for each change set."""

    items: tuple[Decision, ...]
    undone: tuple[Undone, ...]

    @property
    def is_nothing(self) -> bool:
        """True if the undo changed nothing."""
        return not any(each.back or each.merges for each in self.undone)


def is_old(night: Night, now: datetime) -> bool:
    """Decide if a night is too old to be undone."""
    return night.began_at <= now - KEPT


def require_kept(night: Night, items: Sequence[Decision], now: datetime) -> None:
    """Check that something of a night can still be undone. Raises: WintermuteError if it is too old."""
    done = any(item.state in ("done", "undone") for item in items)
    if not done and is_old(night, now):
        raise WintermuteError(EXPIRED)


async def undo_items(stores: Stores, items: Sequence[Decision], *, whole: bool) -> NightUndone:
    """Undo these decisions; `whole`: they are all decisions of their change sets.

    An item that was changed again since stays, and the result names it. Raises: WintermuteError if it is too late.
    """
    done = [i for i in items if i.state == "done" and i.change_set and not is_forgotten(i)]
    await stores.placing.finish()  # an earlier undo may have been killed
    at_work = {night.id for night in await stores.nights.running(stores.database)}
    if any(item.night in at_work for item in done):
        raise WintermuteError(AT_WORK)
    back = list[Undone]()
    for set_id in dict.fromkeys(str(item.change_set) for item in reversed(done)):
        wanted = await stores.changes.get(set_id)
        if wanted is None:
            raise WintermuteError(EXPIRED)
        of_set = [item for item in done if item.change_set == set_id]
        names = {name for item in of_set for _, name in item.names}
        undone = await undo(stores, wanted, None if whole else names)
        back.append(undone)
        held = {kept.item for kept in undone.kept}
        async with stores.database.transaction() as tx:
            for item in of_set:  # nothing records what somebody reverted by hand
                still = await stores.decisions.current(tx, item)
                if still and held.isdisjoint(name for _, name in item.names):
                    await stores.decisions.move(tx, still, "refused")
    left = [await stores.decisions.current(stores.database, item) for item in done]
    gone = [item for item, still in zip(done, left, strict=True) if still is None]
    return NightUndone(tuple(gone), tuple(back))
