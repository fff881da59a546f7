"""What came of sub-sessions, as text for those who asked. Pure."""

from collections.abc import Sequence

from wintermute.conversation.history import as_text
from wintermute.delegation.records import SubSession
from wintermute.loom.records import Cast
from wintermute.prompt.events import EventKind
from wintermute.text import one_line, shortened

MOST_CHARACTERS = 40_000  # of all results in one text
FEWEST_CHARACTERS = 80  # of each of them
MANY = 200  # characters that are left for each where only beginnings are shown
OBJECTIVE_CHARACTERS = 200
STEP_CHARACTERS = 500
KINDS: dict[str, EventKind] = {
    "done": "sub_session_result",
    "timed_out": "sub_session_timeout",
}
STATUS = {"timed_out": "timed out", "ended": "stopped"}


def report(members: Sequence[SubSession]) -> tuple[EventKind, str]:
    """The event for a workflow that is over, or for a single sub-session (L-067)."""
    if len(members) > 1:
        return "workflow_complete", listed(members)
    (only,) = members
    return KINDS.get(only.state, "sub_session_failed"), listed(members)


def listed(members: Sequence[SubSession]) -> str:
    """Each with its status and result."""
    most = max(MOST_CHARACTERS // max(len(members), 1), FEWEST_CHARACTERS)
    return "\n\n".join(_entry(each, most) for each in members)


def _entry(node: SubSession, most: int) -> str:
    head = f"## {node.label}: {status(node)}"
    if most < MANY:
        return f"{head}\n{one_line(node.result)[:most]}"
    objective = one_line(node.objective)[:OBJECTIVE_CHARACTERS]
    return f"{head}\nObjective: {objective}\n{shortened(node.result, most)}"


def status(node: SubSession) -> str:
    """How it ended, with the reason unless that says nothing more."""
    state = STATUS.get(node.state, node.state)
    return f"failed ({node.reason})" if node.state == "failed" else state


def failure(node: SubSession) -> str:
    """What a parent that waited is told of a sub-session that gave no answer (L-061)."""
    last = f" Its last step: {shortened(node.result, MOST_CHARACTERS)}" if node.result else ""
    return f"sub-session {node.label} {status(node)}.{last}"


def with_results(context: str, needed: Sequence[SubSession]) -> str:
    """The context of a sub-session with the results that it waited for, labelled (L-063)."""
    most = max(MOST_CHARACTERS // max(len(needed), 1), FEWEST_CHARACTERS)
    labelled = [f"## Result of {each.label}\n{shortened(each.result, most)}" for each in needed]
    return "\n\n".join(filter(None, [context, *labelled]))


def with_spawned(answer: str, spawned: Sequence[SubSession]) -> str:
    """The result of a sub-session together with what it has handed out (L-067)."""
    return "\n\n".join(filter(None, [answer, listed(spawned)]))


def last_step(cast: Cast) -> str:
    """What a cast without an answer said or did last."""
    if cast.last_words or not cast.turns:
        return cast.last_words
    calls = [f"{call.name} {call.arguments}" for call in cast.turns[-1].calls]
    return shortened("; ".join(calls) or as_text(cast.turns[-1].error or ""), STEP_CHARACTERS)
