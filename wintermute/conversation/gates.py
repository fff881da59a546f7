"""Gates: each call of a turn is stored as started, run, and stored with its result."""

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from wintermute.conversation.toolbox import (
    Accepted,
    Caller,
    Rejected,
    StoreTool,
    Toolbox,
    UntrustedTool,
)
from wintermute.conversation.view import INTERRUPTED
from wintermute.errors import ToolFailed
from wintermute.loom.records import Observation, Turn
from wintermute.messages import Call
from wintermute.stores import Stores

TWICE = "this call id was used before in the same answer; not run"
REPEATED = "the same call stands above in this answer; not run again"


class Gates:
    """Runs calls. `clean` removes secrets from results (L-089).

    Models of the backends in `small` repeat calls, so a repeated call is not run again, and they
    may only add where nobody watches.
    """

    def __init__(
        self, stores: Stores, clean: Callable[[Any], Any], small: Collection[str] = ()
    ) -> None:
        self._database = stores.database
        self._casts = stores.casts
        self._clean = clean
        self._small = small

    def is_by_small_model(self, turn: Turn) -> bool:
        """Return True if a small model wrote the turn."""
        return turn.backend in self._small

    async def observe(self, toolbox: Toolbox, caller: Caller, turn: Turn, n: int) -> Observation:
        """Return the observation of a turn's n-th call: from the record if it is complete (L-051)."""
        call = turn.calls[n]
        before = turn.observations[n] if n < len(turn.observations) else None
        if before is not None and before.completed:
            return before
        checked, earlier = toolbox.accept(call), turn.calls[:n]
        is_small = self.is_by_small_model(turn)
        if any(call.id == other.id for other in earlier):  # L-016
            checked = Rejected(TWICE, checked.args)
        elif is_small and any(_same(call, other) for other in earlier):
            checked = Rejected(REPEATED, checked.args)
        unattended = caller.only_adds or caller.origin in ("timer", "system")
        caller = replace(caller, only_adds=is_small and unattended)
        if before is None:
            async with self._database.transaction() as tx:
                await self._casts.begin_observation(tx, turn.id, n, call, checked.args)
        elif isinstance(checked, Accepted) and not _repeatable(checked):
            checked = Rejected(INTERRUPTED, checked.args)
        result, is_error = await self._effect(checked, caller, turn.id, n)
        return Observation(n, call.name, checked.args, result, is_error, call.id, completed=True)

    async def _effect(
        self, checked: Accepted | Rejected, caller: Caller, turn_id: str, n: int
    ) -> tuple[object, bool]:
        """Run a gate and store its result; a change to our own stores is one transaction with it."""
        result: object
        is_error = False
        try:
            if isinstance(checked, Rejected):
                result, is_error = checked.reason, True
            elif isinstance(checked.tool, StoreTool):
                async with self._database.transaction() as tx:
                    result = self._clean(await checked.tool.change(tx, caller, checked.args))
                    await self._casts.complete_observation(tx, turn_id, n, result, is_error)
                return result, is_error
            else:
                result = await checked.tool.run(caller, checked.args)
        except ToolFailed as error:
            result, is_error = str(error), True
        result = self._clean(result)
        async with self._database.transaction() as tx:
            await self._casts.complete_observation(tx, turn_id, n, result, is_error)
            if not is_error and _is_untrusted(checked, caller, result):
                await self._casts.taint(tx, turn_id)
        return result, is_error


def _same(call: Call, other: Call) -> bool:
    return (call.name, call.arguments) == (other.name, other.arguments)


def _is_untrusted(checked: Accepted | Rejected, caller: Caller, result: object) -> bool:
    if not isinstance(checked, Accepted) or not isinstance(checked.tool, UntrustedTool):
        return False
    return checked.tool.is_untrusted(caller, checked.args, result)


def _repeatable(accepted: Accepted) -> bool:
    """Return True if a gate may run again after a crash interrupted it (L-051)."""
    return isinstance(accepted.tool, StoreTool) or accepted.tool.durable
