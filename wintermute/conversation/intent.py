"""What a message looks like to the model. Pure; the result is stored as the cast's intent."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from wintermute.mailbox.inbox import Waiting
from wintermute.text import span, untagged

MOST_CONTEXT_CHARACTERS = 1000
TAKEN_UP = timedelta(minutes=2)
"""What was written longer ago than that speaks of another time than now (F-029)."""
NO_ADDRESS = str.maketrans("", "", "@:()<>")


def intent(row: Waiting, context: Sequence[Waiting], age: str = "", replied: str = "") -> str:
    """A direct message as it is; in a group with the sender and the lines said before.

    Events are ours and keep their tags; nobody else's text can look like one (L-070, L-071).
    `age`: a line that says when it was written, if it is no longer new. `replied`: the block of
    what it replies to.
    """
    if row.kind == "event":
        return row.body
    before = [part for part in (replied, age) if part]
    if row.direct or not row.body.strip():
        return "\n".join([*before, untagged(row.body)])
    said = [
        line(each.sender_name, each.sender, each.body[:MOST_CONTEXT_CHARACTERS]) for each in context
    ]
    lines = ["<room_context>", *said, "</room_context>"] if said else []
    return "\n".join([*lines, *before, line(row.sender_name, row.sender, row.body)])


def written(row: Waiting, now: datetime) -> datetime | None:
    """When a message was written from which its relative times count; None: from now (F-029)."""
    is_said = row.kind in ("message", "command")
    return row.sent_at if is_said and now - row.sent_at > TAKEN_UP else None


def age(row: Waiting, now: datetime, zone: ZoneInfo) -> str:
    """The line that says when a message was written; "": just now."""
    since = written(row, now)
    if since is None:
        return ""
    local = since.astimezone(zone)
    day = "" if local.date() == now.astimezone(zone).date() else f"{local:%Y-%m-%d} "
    return f"[written {day}{local:%H:%M}, {span(now - since)} ago]"


def line(sender_name: str, sender: str, body: str) -> str:
    """What somebody said, under their name and id: each further line of it is indented."""
    # Neither a name nor a line of the text can pass for the beginning of somebody else's line.
    name = " ".join(sender_name.translate(NO_ADDRESS).split())
    who = f"{name} ({sender})" if name else sender
    return untagged("\n  ".join(f"{who}: {body}".splitlines()))
