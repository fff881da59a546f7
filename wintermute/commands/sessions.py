"""Sub-sessions as lines for a person. Pure."""

from collections.abc import Callable, Sequence
from zoneinfo import ZoneInfo

from wintermute.delegation.records import SubSession
from wintermute.text import one_line

OBJECTIVE_CHARACTERS = 100


def session_line(
    node: SubSession, needs: Sequence[SubSession], zone: ZoneInfo, plain: Callable[[str], str]
) -> str:
    """What it is to deliver, and how far it is. `plain` takes the formatting out of a text."""
    named = f"{plain(node.name)}: " if node.name else ""
    objective = plain(one_line(node.objective)[:OBJECTIVE_CHARACTERS])
    return f"`{node.id}` {named}{objective} ({_how_far(node, needs, zone, plain)})"


def _how_far(
    node: SubSession, needs: Sequence[SubSession], zone: ZoneInfo, plain: Callable[[str], str]
) -> str:
    if node.state == "collecting":
        return "waits for what it handed out"
    if node.state == "running":
        return "at work"
    missing = [plain(each.label) for each in needs if each.state != "done"]
    if missing:
        return f"waits for {', '.join(missing)}"
    if node.not_before is None:
        return "waits for its turn"
    return f"not before {node.not_before.astimezone(zone):%Y-%m-%d %H:%M}"
