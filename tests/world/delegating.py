"""How tests of sub-sessions script the model: by what a request is about."""

from collections.abc import Callable, Sequence
from typing import Any

from tests.world.clock import until_so
from tests.world.house import House
from tests.world.model import Calls, ModelServer, Seen, Step, Text, Use

OPEN = {"waiting", "running", "collecting"}
Child = Callable[[str, Seen], Step | None]


def objective(seen: Seen) -> str:
    """What a sub-session is asked for; empty in the room's own requests."""
    return seen.system.partition("# Objective\n")[2]


def context(seen: Seen) -> str:
    """What a sub-session is told to know."""
    head = seen.system
    return head.partition("# Task Context\n")[2].partition("\n\n---")[0]


def results(seen: Seen) -> list[str]:
    """What the calls of a request gave."""
    return [message["content"] for message in seen.messages if message["role"] == "tool"]


def done(answer: object) -> Calls:
    """The end of a sub-session."""
    return Calls((Use("done", {"answer": answer}),))


def spawn(objective: str, **more: Any) -> Use:
    """Work that nobody waits for."""
    return Use("spawn_sub_session", {"objective": objective, **more})


def workflow(*steps: str) -> list[Use]:
    """Spawn each under its own name: `c < a b` depends on `a` and `b`."""
    parts = [(name.strip(), needs.split()) for name, _, needs in (s.partition("<") for s in steps)]
    return [spawn(name, name=name, **({"depends_on": n} if n else {})) for name, n in parts]


def call(intent: str, **more: Any) -> Use:
    """Work that is waited for."""
    return Use("call_agent", {"intent": intent, **more})


def batch(*intents: str) -> Use:
    """Several pieces of work that are waited for."""
    return Use("call_agent_batch", {"calls": [{"intent": intent} for intent in intents]})


def behave(model: ModelServer, first: Sequence[Use], child: Child | None = None) -> None:
    """At `go` the room calls `first` and says what came back; a child answers `did X` for X.

    Events are said again, other messages echoed.
    """

    def choose(seen: Seen) -> Step | None:
        asked = objective(seen)
        if asked:
            return (child(asked, seen) if child else None) or done(f"did {asked}")
        if "<event" in seen.last_user:
            return Text(f"told: {seen.last_user}")
        if seen.messages[-1]["role"] == "tool":
            return Text("; ".join(results(seen)[-len(first) :]))
        return Calls(tuple(first)) if seen.last_user == "go" else None

    model.keyed(choose)


async def states(house: House) -> dict[str, str]:
    """The state of each sub-session, by what it is called."""
    rows = await house.rows("SELECT coalesce(name, objective) AS n, state FROM sub_sessions")
    return {row["n"]: row["state"] for row in rows}


async def reasons(house: House) -> dict[str, str]:
    """Why each ended."""
    rows = await house.rows("SELECT coalesce(name, objective) AS n, reason FROM sub_sessions")
    return {row["n"]: row["reason"] for row in rows}


async def reports(house: House) -> list[str]:
    """The events about sub-sessions."""
    rows = await house.rows("SELECT body FROM inbox WHERE event_id LIKE 'result_%' ORDER BY seq")
    return [row["body"] for row in rows]


async def all_over(house: House, n: int = 1) -> None:
    """Wait until there are so many and none is open, and the room has said what it will."""

    async def over() -> bool:
        found = await house.rows("SELECT state FROM sub_sessions")
        return len(found) >= n and not {row["state"] for row in found} & OPEN

    await until_so(over)
    await house.settled()
