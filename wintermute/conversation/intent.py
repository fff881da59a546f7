"""What a message looks like to the model. Pure; the result is stored as the cast's intent."""

from collections.abc import Sequence

from wintermute.mailbox.inbox import Waiting
from wintermute.text import untagged

MOST_CONTEXT_CHARACTERS = 1000
NO_ADDRESS = str.maketrans("", "", "@:()<>")


def intent(row: Waiting, context: Sequence[Waiting]) -> str:
    """A direct message as it is; in a group with the sender and the lines said before.

    Events are ours and keep their tags; nobody else's text can look like one (L-070, L-071).
    """
    if row.kind == "event":
        return row.body
    if row.direct or not row.body.strip():
        return untagged(row.body)
    said = [_line(line) for line in context]
    lines = ["<room_context>", *said, "</room_context>"] if said else []
    return "\n".join([*lines, _line(row, whole=True)])


def _line(row: Waiting, *, whole: bool = False) -> str:
    body = row.body if whole else row.body[:MOST_CONTEXT_CHARACTERS]
    # Neither a name nor a line of the text can pass for the beginning of somebody else's line.
    name = " ".join(row.sender_name.translate(NO_ADDRESS).split())
    who = f"{name} ({row.sender})" if name else row.sender
    return untagged("\n  ".join(f"{who}: {body}".splitlines()))
