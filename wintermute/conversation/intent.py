"""What a message looks like to the model. Pure; the result is stored as the cast's intent."""

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from wintermute.mailbox.inbox import Waiting
from wintermute.text import span, untagged

MOST_CONTEXT_CHARACTERS = 1000
DELETED = "[deleted]"
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
    said = [_shown(each) for each in context]
    lines = ["<room_context>", *said, "</room_context>"] if said else []
    return "\n".join([*lines, *before, line(row.sender_name, row.sender, row.body)])


def without(said: str, gone: Waiting) -> str | None:
    """An intent without a line that was said before its message; None: it has no such line.

    Of a line whose text is not kept any more it is not known which it is: without all of its sender.
    """
    head, opened, rest = said.partition("<room_context>\n")
    block, closed, tail = rest.partition("</room_context>")
    sender = re.escape(gone.sender)
    anything = rf"(?:[^\n(]* \({sender}\)|{sender}): .*(?:\n  .*)*"
    shown = re.escape(_shown(gone)) if gone.body else anything
    left, found = re.subn(rf"(?m)^{shown}\n(?!  )", "", block, count=int(bool(gone.body)))
    return f"{head}{opened}{left}{closed}{tail}" if found else None


def without_quote(said: str) -> str:
    """An intent without the text that its message replies to."""
    head, opened, rest = said.partition("<replied_to>\n")
    _, closed, tail = rest.partition("</replied_to>")
    return f"{head}{opened}{DELETED}\n{closed}{tail}" if closed else said


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


def _shown(row: Waiting) -> str:
    return line(row.sender_name, row.sender, row.body[:MOST_CONTEXT_CHARACTERS])


def line(sender_name: str, sender: str, body: str) -> str:
    """What somebody said, under their name and id: each further line of it is indented."""
    # Neither a name nor a line of the text can pass for the beginning of somebody else's line.
    name = " ".join(sender_name.translate(NO_ADDRESS).split())
    who = f"{name} ({sender})" if name else sender
    return untagged("\n  ".join(f"{who}: {body}".splitlines()))
