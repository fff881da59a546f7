"""Events as a sync brings them, and how the door reads them."""

from datetime import UTC, datetime
from typing import Any

from wintermute.matrix.inbox import Account, Policy, RoomView, read_event
from wintermute.matrix.relations import Reaction, read_edit, read_reaction
from wintermute.messages import Incoming
from wintermute.owner import Owner

Json = dict[str, Any]
BOT, ANN, BOB, EVE = "@bot:home", "@ann:home", "@bob:home", "@eve:far"
NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
SENT = datetime(2026, 3, 1, 11, 59, 58, tzinfo=UTC)
ACCOUNT = Account(BOT, "DEVICE", "Wintermute")
POLICY = Policy(
    owner=Owner(ANN),
    allowed=frozenset({ANN, BOB}),
    rooms=frozenset(),
    mention_in_groups=True,
    commands=frozenset({"/stop", "/new", "/help", "/status"}),
)
EDIT: Json = {"m.relates_to": {"rel_type": "m.replace", "event_id": "$old"}}
REMINDER_ROWS = (
    "INSERT INTO tasks (id, scope, content, priority, status, created_at, changed_at)"
    " VALUES ('task_1', 'person:@ann:home', 'drink water', 5, 'active', '', '')",
    "INSERT INTO occurrences (task_id, due_at, mode, content, state, conversation_id, outbox_id,"
    " claimed_at) SELECT 'task_1', '2026-05-04T12:00:00+00:00', 'reminder', 'drink water', 'done',"
    " conversation_id, id, '' FROM outbox WHERE cast_id IS NOT NULL",
)
"""SQL that makes a reminder of the answer of a cast."""


def room_of(*members: str, invited: tuple[str, ...] = ()) -> RoomView:
    """Make a room with the bot and these members."""
    names = {member: member[1:4].title() for member in members}
    return RoomView("!room", {BOT: "Wintermute"} | names, frozenset(invited), encrypted=True)


DIRECT = room_of(ANN)


GROUP = room_of(ANN, BOB, EVE)


def message_event(body: Any, sender: str = ANN, **content: Any) -> Json:
    """Make a message as a sync brings it."""
    return {
        "type": "m.room.message",
        "event_id": "$one",
        "sender": sender,
        "origin_server_ts": int(SENT.timestamp() * 1000),
        "content": {"msgtype": "m.text", "body": body, **content},
    }


def read_message(
    event: object, room: RoomView = DIRECT, policy: Policy = POLICY
) -> Incoming | None:
    """Read an event as a new message."""
    return read_event(event, room, ACCOUNT, policy, NOW)


def read_change(event: object, room: RoomView = DIRECT, policy: Policy = POLICY) -> Incoming | None:
    """Read an event as an edit."""
    return read_edit(event, room, ACCOUNT, policy, NOW)


def read_sign(event: object, room: RoomView = DIRECT, policy: Policy = POLICY) -> Reaction | None:
    """Read an event as a reaction."""
    return read_reaction(event, room, ACCOUNT, policy, NOW)


def kind_and_body(
    event: object, room: RoomView = DIRECT, policy: Policy = POLICY
) -> tuple[str, str]:
    """Read an event; the kind and text of the message, or "nothing"."""
    found = read_message(event, room, policy)
    return (found.kind, found.body) if found else ("nothing", "")


def sign_event(key: Any, sender: str = ANN, **relation: Any) -> Json:
    """Make a reaction as a sync brings it."""
    relation = {"rel_type": "m.annotation", "event_id": "$old", "key": key} | relation
    event = message_event("", sender) | {
        "type": "m.reaction",
        "content": {"m.relates_to": relation},
    }
    return event | {"event_id": "$sign"}
