"""Events that people send us and that we do not read: who sends one hears so (F-024). Pure.

As in `inbox`, nothing here raises on what strangers send.
"""

from typing import NamedTuple

from wintermute.matrix.inbox import (
    MEDIA,
    Account,
    Policy,
    RoomView,
    is_addressed,
    is_direct,
    is_fresh,
    is_marked_by,
    mapping,
    string,
)
from wintermute.messages import Json


class Unread(NamedTuple):
    """A kind of event that is not read, and what its sender is told."""

    kind: str
    line: str


STICKER = Unread("sticker", "I cannot read stickers. Please say it in words.")
LOCATION = Unread("location", "I cannot read locations. Please write where it is.")
POLL = Unread(
    "poll", "I cannot read polls. Please write the question and the answers as a message."
)
OTHER = Unread("other", "I cannot read messages of this kind. Please write it as text.")
EVENTS = {
    "m.sticker": STICKER,
    "m.poll.start": POLL,
    "org.matrix.msc3381.poll.start": POLL,
    "org.matrix.msc3381.v2.poll.start": POLL,
    "m.location": LOCATION,
    "org.matrix.msc3488.location": LOCATION,
    **dict.fromkeys(("m.message", "org.matrix.msc1767.message", "m.voice", *MEDIA), OTHER),
}
"""Types of events that are messages of a person, stable and unstable (MSC1767, MSC3381, MSC3488).

What has another type is none: answers to polls, positions on the way, calls, steps of a verification.
"""
READ = frozenset({"m.text", "m.emote", *MEDIA})
BY_MACHINES = frozenset({"m.notice", "m.server_notice", "m.key.verification.request"})
"""Kinds of messages that want no word of us; verifications say theirs."""


def unread(
    source: object, room: RoomView, account: Account, policy: Policy, *, answers_us: bool = False
) -> Unread | None:
    """What is not read of an event that an allowed person sends us; in a group if it addresses us."""
    event = mapping(source)
    content, sender = mapping(event.get("content")), string(event, "sender")
    found = kind_of(string(event, "type"), content)
    if (
        found is None
        or not is_fresh(event, content)
        or sender not in policy.allowed - {account.user_id}
        or is_marked_by(content, sender)
    ):
        return None
    addressed = answers_us or not policy.mention_in_groups or is_addressed(content, account)
    here = not policy.rooms or room.room_id in policy.rooms
    return found if here and (addressed or is_direct(room, account, policy)) else None


def kind_of(event_type: str, content: Json) -> Unread | None:
    """Which kind of those that are not read an event is; what was taken back is none."""
    if event_type != "m.room.message":
        return EVENTS.get(event_type) if content else None
    msgtype = string(content, "msgtype")
    if not msgtype or msgtype in READ | BY_MACHINES:
        return None
    return LOCATION if msgtype == "m.location" else OTHER
