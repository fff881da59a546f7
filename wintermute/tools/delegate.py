"""Tools that hand work out to sub-sessions."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from wintermute.conversation.toolbox import Caller, breach
from wintermute.db import Transaction
from wintermute.errors import ToolFailed
from wintermute.loom.sub_sessions import SubSession, SubSessionOrder
from wintermute.messages import Json
from wintermute.prompt.modes import mode_of
from wintermute.text import one_line
from wintermute.tools.definition import OwnTool, definition
from wintermute.work.delegation import Delegation, failure


class SpawnSubSession(OwnTool):
    """Tool `spawn_sub_session(objective, ...)`: its result comes later, as an event (L-058)."""

    name = "spawn_sub_session"
    doing = "handing out work"

    def __init__(self, delegation: Delegation, timezone: str) -> None:
        self._delegation = delegation
        self._zone = ZoneInfo(timezone)

    async def change(self, tx: Transaction, caller: Caller, args: Json) -> object:
        """Return the new sub-session's id and its dependencies."""
        node = await self._delegation.spawn(tx, caller, self._order(args))
        given: Json = {"id": node.id, "name": node.name, "depends_on": args.get("depends_on")}
        if node.not_before:
            given["not_before"] = node.not_before.astimezone(self._zone).isoformat()
        return {key: value for key, value in given.items() if value}

    def _order(self, args: Json) -> SubSessionOrder:
        return replace(
            _order(args, args["objective"]),
            name=one_line(args["name"]) or None if "name" in args else None,
            depends_on=tuple(map(one_line, args.get("depends_on", ()))),
            not_before=self._moment(args["not_before"]) if "not_before" in args else None,
            timeout_s=args.get("timeout_s"),
        )

    def _moment(self, text: str) -> datetime:
        """Parse an ISO 8601 time; without an offset it is in the configured time zone (L-066)."""
        try:
            when = datetime.fromisoformat(text)
            local = when.replace(tzinfo=when.tzinfo or self._zone).astimezone(self._zone)
            return local.astimezone(UTC)  # both conversions, so that it can be shown in either zone
        except (ValueError, OverflowError) as error:
            raise ToolFailed(
                f"not_before is no time in ISO 8601, such as 2026-06-12T09:00: {text[:100]};"
                " nothing was started"
            ) from error


class CallAgent(OwnTool):
    """Tool `call_agent(intent, ...)`: waits for the result (L-057)."""

    name = "call_agent"
    doing = "working on a part of it"
    durable = True

    def __init__(self, delegation: Delegation, *, for_small: bool) -> None:
        self.for_small = for_small
        self._delegation = delegation

    async def run(self, caller: Caller, args: Json) -> object:
        """Return the sub-session's answer."""
        node = await self._delegation.call(caller, _order(args, args["intent"]))
        if node.state != "done":
            raise ToolFailed(failure(node))
        return node.result


class CallAgentBatch(OwnTool):
    """Tool `call_agent_batch(calls)`: several at once, results in the same order (L-057)."""

    name = "call_agent_batch"
    doing = "working on several parts"
    durable = True

    def __init__(self, delegation: Delegation, max_parallel: int, max_batch: int) -> None:
        self._delegation = delegation
        self._max_parallel = max_parallel
        self._max_batch = max_batch

    async def run(self, caller: Caller, args: Json) -> object:
        """Return answer or failure of each; nothing starts unless all may."""
        self._check(args["calls"])
        orders = [_order(call, call["intent"]) for call in args["calls"]]
        if len(orders) > self._max_batch:
            raise ToolFailed(
                f"{len(orders)} calls in one batch, at most {self._max_batch} are allowed;"
                " nothing was started"
            )
        for order in orders:
            self._delegation.check(caller, order)
        places = asyncio.Semaphore(self._max_parallel)

        async def one(item: int, order: SubSessionOrder) -> SubSession:
            async with places:
                return await self._delegation.call(caller, order, item)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(*each)) for each in enumerate(orders)]
        return [_outcome(task.result()) for task in tasks]

    def _check(self, calls: Sequence[Json]) -> None:
        """Check the calls against the schema of `call_agent`, which this tool's schema does not repeat.

        Raises: ToolFailed.
        """
        for n, call in enumerate(calls):
            if problem := breach(definition(CallAgent.name)["parameters"], call, f"calls.{n}"):
                raise ToolFailed(f"calls.{n}: {problem}; nothing was started")


def _order(args: Json, objective: str) -> SubSessionOrder:
    return SubSessionOrder(
        objective=objective,
        context=args.get("context", ""),
        mode=mode_of(args.get("mode")),
        tools=tuple(args["tools"]) if "tools" in args else None,
        model=args.get("model"),
        max_depth=args.get("max_depth"),
    )


def _outcome(node: SubSession) -> Json:
    done = node.state == "done"
    return {"result": node.result if done else failure(node), "is_error": not done}
