"""Parsing of room events into an `Incoming`, or nothing. Pure.

Events come from anybody: a field may be missing, of another type, deeply nested or huge. No
function here raises an error for them. Events that people send and we cannot read get a notice
(F-024).
"""

import html
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from urllib.parse import unquote

from wintermute import text
from wintermute.messages import PERSON, ROOM, InboxKind, Incoming, Json, mapping
from wintermute.owner import Owner

OUTBOX_KEY = "dev.wintermute.outbox"
"""The content key of our message tag (see `marks`); reactions have none."""

RULES = {
    "m.room.join_rules": ("join_rule", "invite"),
    "m.room.history_visibility": ("history_visibility", "shared"),
}
"""State events about readers: the key that matters, and its default."""
PRIVATE_RULES = frozenset({"invite", "private", "knock"})
PRIVATE_HISTORY = frozenset({"invited", "joined", "shared"})
MEDIA = {"m.image": "image", "m.file": "file", "m.audio": "audio", "m.video": "video"}
RAW_MOST = 256 * 1024
NESTED_MOST = 50
HEAD = ("event_id", "room_id", "sender", "type", "origin_server_ts")
HEAD_MOST = 255
"""Longest id that Matrix allows."""
FILE_NAME_MOST = 200
FIRST_YEAR = datetime(2014, 1, 1, tzinfo=UTC)
"""Earliest plausible time of an event: Matrix began in 2014."""
CLOCK_SLACK = timedelta(days=1)
QUOTE_BEGINS = re.compile(r"> (?:\* )?<@")
HTML_QUOTE, HTML_QUOTE_END = "<mx-reply>", "</mx-reply>"
PILL = re.compile(
    r"""<a\s[^<>]{0,300}?\bhref\s?=\s?["']?(?:https?://matrix\.to/#/|matrix:u/)([^\s"'<>?]{1,800})""",
    re.IGNORECASE,
)
"""A link to a user, as clients write a mention; bounded, as the HTML may come from anybody."""
READ = frozenset({"m.text", "m.emote", *MEDIA})
BY_MACHINES = frozenset({"m.notice", "m.server_notice", "m.key.verification.request"})
"""Message types that need no notice; verifications send their own."""


@dataclass(frozen=True, slots=True)
class Account:
    """Our own account."""

    user_id: str
    device_id: str
    display_name: str


@dataclass(frozen=True, slots=True)
class RoomView:
    """The state of a room. `members` are the joined users with their display names.

    `join_rule` and `history` (who may read the past) are as in the room's state, or the spec's
    default; "" is an unknown value. `named`: the name of the room's scope, if it began in a room
    that this one replaces (F-013).
    """

    room_id: str
    members: Mapping[str, str]
    invited: frozenset[str]
    encrypted: bool
    join_rule: str = "invite"
    history: str = "shared"
    named: str = ""

    @property
    def readers(self) -> frozenset[str]:
        """The users who can read new messages, including us."""
        return self.invited.union(self.members)

    @property
    def scope(self) -> str:
        """The scope of the room itself, as a group."""
        return self.named or f"{ROOM}{self.room_id}"

    @property
    def is_open(self) -> bool:
        """True if people who are not invited may come to read new messages (F-003)."""
        return self.join_rule not in PRIVATE_RULES or self.history not in PRIVATE_HISTORY


@dataclass(frozen=True, slots=True)
class Policy:
    """The users and rooms to listen to. The owner is one of `allowed`; empty `rooms` means any room."""

    owner: Owner
    allowed: frozenset[str]
    rooms: frozenset[str]
    mention_in_groups: bool
    commands: frozenset[str]


def read_event(
    source: object,
    room: RoomView,
    account: Account,
    policy: Policy,
    received_at: datetime,
    *,
    answers_us: bool = False,
) -> Incoming | None:
    """Return the incoming message of a decrypted event, or None if it is not for us.

    `answers_us`: it replies to a message of ours, which addresses us (F-025).
    """
    event = mapping(source)
    content = mapping(event.get("content"))
    is_message = string(event, "type") == "m.room.message" and is_fresh(event, content)
    if not is_message or (policy.rooms and room.room_id not in policy.rooms):
        return None
    event_id, sender = string(event, "event_id"), string(event, "sender")
    if not (is_id(event_id) and is_id(sender)):
        return None
    name = text.display_name(room.members.get(sender, "")) or text.display_name(sender)
    said = readable(content, name)
    if sender == account.user_id or not said:
        return None
    kind: InboxKind
    direct = is_direct(room, account, policy)
    if sender not in policy.allowed:
        kind = "context"
    elif direct:
        kind = "command" if said.startswith("/") else "message"
    else:
        named = answers_us or not policy.mention_in_groups or is_addressed(content, account)
        says_whom = isinstance(content.get("m.mentions"), dict)
        kind, said = in_group(said, named, account, policy, says_whom=says_whom)
    return Incoming(
        event_id=event_id,
        room_id=room.room_id,
        sender=sender,
        sender_name=name,
        origin=policy.owner.origin_of(sender),
        kind=kind,
        body=said,
        sent_at=time_sent(event.get("origin_server_ts"), received_at),
        direct=direct,
        by_bot=has_tag_of(content, sender),
        raw=bounded(event),
        replies_to=replied_to(event),
    )


def may_read(room: RoomView, scope: str, account: Account, policy: Policy) -> bool:
    """Check if everybody who can read a room now may read messages of a scope.

    Joined and invited users can read (F-002, F-003). In a room without allowed users only
    strangers would read, so it is never allowed (A-3).
    """
    if not is_heard(room, policy):
        return False
    if not scope.startswith(PERSON):
        return scope in (room.scope, f"{ROOM}{room.room_id}")
    person = scope.removeprefix(PERSON)
    alone = room.members.keys() == {account.user_id, person} and not room.invited
    return alone and person in policy.allowed and not room.is_open


def is_heard(room: RoomView, policy: Policy) -> bool:
    """Check if the room is allowed and an allowed user is in it."""
    heard = not policy.rooms or room.room_id in policy.rooms
    return heard and any(user in room.members for user in policy.allowed)


def scope_of(room: RoomView, account: Account, policy: Policy) -> str:
    """Return a room's scope: that of the person in a direct chat, otherwise its own."""
    others = room.members.keys() - {account.user_id} if len(room.members) == 2 else ()
    private = (f"{PERSON}{user}" for user in others)
    return next((s for s in private if may_read(room, s, account, policy)), room.scope)


def is_direct(room: RoomView, account: Account, policy: Policy) -> bool:
    """Check if a room has exactly us and one allowed person, nobody else even invited."""
    return scope_of(room, account, policy) != room.scope


def is_fresh(event: Json, content: Json) -> bool:
    """Check if an event is a new message: no state, no edit, not redacted."""
    return (
        "state_key" not in event
        and "redacted_because" not in mapping(event.get("unsigned"))
        and string(mapping(content.get("m.relates_to")), "rel_type") != "m.replace"
    )


def has_tag_of(content: Json, sender: str) -> bool:
    """Check if a message carries its sender's own bot tag.

    A person may forward a bot's message or type the key; that does not make them a bot.
    """
    return sender != "" and mapping(content.get(OUTBOX_KEY)).get("by") == sender


def is_id(value: str) -> bool:
    """Check if a text can be the id of an event or user."""
    return 0 < len(value) <= HEAD_MOST and value.isprintable()


def readable(content: Json, sender_name: str) -> str:
    """Return the text of a message's content; "" if it has none that we can read."""
    msgtype, words = string(content, "msgtype"), own_words(content)
    if msgtype in MEDIA:
        named = text.clean(string(content, "filename") or string(content, "body"))
        file_name = text.display_name(named, FILE_NAME_MOST)
        return f"[{MEDIA[msgtype]}: {file_name}] {words}".rstrip()
    if msgtype == "m.emote" and words:
        return f"* {sender_name} {words}"
    return words if msgtype == "m.text" else ""


def own_words(content: Json) -> str:
    """Return the sender's own text: without a reply fallback; the caption of a file."""
    body = text.clean(string(content, "body"))
    if string(content, "msgtype") in MEDIA:
        named = text.clean(string(content, "filename"))
        return body.strip() if named and named != body else ""
    if "m.in_reply_to" in mapping(content.get("m.relates_to")):
        body = without_quote(body)
    return body.strip()


def replied_to(event: Json) -> str | None:
    """Return the event that a message replies to; None for the fallback reply of a thread."""
    relation = mapping(mapping(event.get("content")).get("m.relates_to"))
    target = string(mapping(relation.get("m.in_reply_to")), "event_id")
    if relation.get("is_falling_back") is True or not is_id(target):
        return None
    return target if target != event.get("event_id") else None


def thread_of(event: Json) -> tuple[str, str]:
    """Return the event that an edit or reaction is about, and the thread root of another event; "" for none.

    An edit or reaction belongs to the thread of its target. The relation of an encrypted event is
    outside the ciphertext, so whoever runs the homeserver can choose it.
    """
    relation = mapping(mapping(event.get("content")).get("m.relates_to"))
    kind, target = string(relation, "rel_type"), string(relation, "event_id")
    if not is_id(target) or target == event.get("event_id"):
        return "", ""
    if kind in ("m.replace", "m.annotation"):
        return target, ""
    return "", target if kind == "m.thread" and target.startswith("$") else ""


def without_quote(body: str) -> str:
    """Remove the quoted lines that older clients put before a reply."""
    if not QUOTE_BEGINS.match(body):
        return body
    lines = body.split("\n")
    own = next((n for n, line in enumerate(lines) if not line.startswith(">")), len(lines))
    return "\n".join(lines[own:]).strip() or body


def in_group(
    said: str, named: bool, account: Account, policy: Policy, *, says_whom: bool
) -> tuple[InboxKind, str]:
    """Return the kind of an allowed person's text in a group, and the text without our name.

    `says_whom`: the client lists its mentions. Then a text that merely begins with our name is
    about us; only one that calls us (`name: …`, `@name …`) is for us (F-025).
    """
    rest = after_address(said, account)
    calls = said.startswith("@") or said[: len(said) - len(rest or "")].rstrip()[-1:] in (":", ",")
    addressed = named or (rest is not None and (calls or not says_whom))
    body = rest or said
    if body.startswith("/") and (addressed or body.split(maxsplit=1)[0].lower() in policy.commands):
        return "command", body
    return "message" if addressed else "context", body


def after_address(said: str, account: Account) -> str | None:
    """Return the text after our name or id; None if it does not begin with one.

    `@name:` followed by more letters is another user's full id, so a form with @ needs a gap after
    it.
    """
    local = account.user_id[1:].split(":", 1)[0]
    names = "|".join(re.escape(name) for name in (account.display_name.strip(), local) if name)
    ids = f"{re.escape(account.user_id)}|@(?:{names})"
    pattern = rf"(?:(?:{ids})[:,]?(?=\s|$)|(?:{names})(?:[:,]|(?=\s|$)))\s*"
    found = re.match(pattern, said, re.IGNORECASE)
    return said[found.end() :] if found else None


def is_addressed(content: Json, account: Account) -> bool:
    """Check if the content of a message is addressed to us in any way (F-025).

    Our name inside the text counts only if the client does not list its mentions.
    """
    listed = mapping(content.get("m.mentions")).get("user_ids")
    if isinstance(listed, list) and account.user_id in listed:
        return True
    if has_pill(string(content, "formatted_body"), account.user_id):
        return True
    words, name = own_words(content), account.display_name.strip()
    # Another id may begin or end like ours: `@bot:home.org`, `@bot:home:8448`.
    if re.search(rf"(?<!\w){re.escape(account.user_id)}(?![\w-]|\.\w|:\d)", words, re.IGNORECASE):
        return True
    is_named = name and re.search(rf"(?<!\w){re.escape(name)}(?!\w)", words, re.IGNORECASE)
    return bool(is_named) and not isinstance(content.get("m.mentions"), dict)


def has_pill(formatted: str, user_id: str) -> bool:
    """Check if a formatted text, outside of its quote, mentions this user by a link."""
    if formatted.startswith(HTML_QUOTE):
        formatted = formatted.partition(HTML_QUOTE_END)[2]
    links = (unquote(html.unescape(found)) for found in PILL.findall(formatted))
    return any(link.removeprefix("@") == user_id.removeprefix("@") for link in links)


def time_sent(sent: object, received_at: datetime) -> datetime:
    """Return the time that an event claims, if it is plausible; otherwise `received_at`."""
    if not isinstance(sent, int) or isinstance(sent, bool):
        return received_at
    first = int(FIRST_YEAR.timestamp()) * 1000
    last = int((received_at + CLOCK_SLACK).timestamp()) * 1000
    return datetime.fromtimestamp(sent / 1000, UTC) if first <= sent <= last else received_at


def bounded(event: Json) -> Json:
    """Return an event for storage: whole, or only its head if it is too large, too deep or no JSON."""
    try:
        if is_shallow(event) and len(json.dumps(event, allow_nan=False)) <= RAW_MOST:
            return event
    except (TypeError, ValueError):
        pass
    return {key: event[key] for key in HEAD if is_small(event.get(key))}


def is_shallow(event: Json) -> bool:
    """Check that an event is not nested deeper than `NESTED_MOST`, so that it can be written as JSON."""
    level: list[object] = [event]
    for _ in range(NESTED_MOST):
        nested = [value for value in level if isinstance(value, dict | list)]
        level = [i for v in nested for i in (v.values() if isinstance(v, dict) else v)]
    return not level


def is_small(value: object) -> bool:
    """Check if a value is a text or number of ordinary size."""
    if isinstance(value, str):
        return len(value) <= HEAD_MOST
    return isinstance(value, int) and value.bit_length() < 64


def inviter(state_events: Sequence[object], account: Account) -> str | None:
    """Return the user who invites us; None if the state does not say.

    The last invitation counts: the inviting server can make up the events before it.
    """
    found = (e for e in reversed(state_events) if is_invitation(e, account.user_id))
    return string(mapping(next(found, None)), "sender") or None


def views(events: Sequence[Json], now: RoomView, us: str) -> list[RoomView]:
    """Return the room as it was at each event, computed backwards from its current state.

    Events that change the readers get the view after them. Our own membership stays: messages
    between our invitation and our joining were for us.
    """
    found: list[RoomView] = []
    view, undone = now, list[Json]()
    for event in reversed(events):
        kind = string(event, "type")
        if kind == "m.room.member" or (kind in RULES and event.get("state_key") == ""):
            undone.append(event)
        else:
            view = before_changes(view, undone, us)
            undone.clear()
            sender = string(event, "sender")
            if sender not in view.members:  # a sender is a member
                members = {**view.members, sender: now.members.get(sender, "")}
                view = replace(view, members=members, invited=view.invited - {sender})
        found.append(view)
    return found[::-1]


def before_changes(view: RoomView, changes: Sequence[Json], us: str) -> RoomView:
    """Return a room as it was before these changes of readers, newest first."""
    if not changes:
        return view
    members, invited = dict(view.members), set(view.invited)
    rules = dict(zip(RULES, (view.join_rule, view.history), strict=True))
    for event in changes:
        previous = mapping(mapping(event.get("unsigned")).get("prev_content"))
        kind, user = string(event, "type"), string(event, "state_key")
        if kind in RULES:
            rules[kind] = string(previous, RULES[kind][0]) or RULES[kind][1]
        elif user not in ("", us):
            members.pop(user, None)
            invited.discard(user)
            membership = string(previous, "membership")
            if membership == "join":
                members[user] = string(previous, "displayname")
            elif membership == "invite":
                invited.add(user)
    join_rule, history = rules.values()
    return replace(
        view, members=members, invited=frozenset(invited), join_rule=join_rule, history=history
    )


def since_invitation(events: Sequence[Json], user_id: str) -> list[Json]:
    """Return the events after our newest invitation, or all if there is none (X-005)."""
    found = (n for n, event in enumerate(events) if is_invitation(event, user_id))
    return list(events[max(found, default=-1) + 1 :])


def since_known(events: Sequence[Json], known: Collection[str]) -> list[Json]:
    """Return the events after the newest known one, or all if none is known (F-058)."""
    found = (n for n, event in enumerate(events) if event["event_id"] in known)
    return list(events[max(found, default=-1) + 1 :])


def invited_in(events: Sequence[Json], user_id: str) -> bool:
    """Check if our invitation is among the events."""
    return any(is_invitation(event, user_id) for event in events)


def is_invitation(source: object, user_id: str) -> bool:
    """Check if an event invites a user."""
    event = mapping(source)
    return (
        string(event, "type") == "m.room.member"
        and string(event, "state_key") == user_id
        and string(mapping(event.get("content")), "membership") == "invite"
    )


def string(values: Json, key: str) -> str:
    """Return the text under a key, or "" if there is none."""
    value = values.get(key)
    return value if isinstance(value, str) else ""


class UnreadableEvent(NamedTuple):
    """A kind of event that is not read, and the notice for its sender."""

    kind: str
    line: str


STICKER = UnreadableEvent("sticker", "I cannot read stickers. Please write it in words.")
LOCATION = UnreadableEvent("location", "I cannot read locations. Please write where it is.")
POLL = UnreadableEvent(
    "poll", "I cannot read polls. Please write the question and the answers as a message."
)
OTHER = UnreadableEvent("other", "I cannot read messages of this type. Please write it as text.")
EMPTY = UnreadableEvent("empty", "Your message has no text. Please write it in words.")
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

Answers to polls, live locations, calls and verification steps are not among them.
"""


def unread(
    source: object, room: RoomView, account: Account, policy: Policy, *, answers_us: bool = False
) -> UnreadableEvent | None:
    """Return the notice about an unreadable event of an allowed person; in a group only if it addresses us."""
    event = mapping(source)
    content, sender = mapping(event.get("content")), string(event, "sender")
    found = kind_of(string(event, "type"), content)
    if (
        found is None
        or not is_fresh(event, content)
        or sender not in policy.allowed - {account.user_id}
        or has_tag_of(content, sender)
    ):
        return None
    addressed = answers_us or not policy.mention_in_groups or is_addressed(content, account)
    here = not policy.rooms or room.room_id in policy.rooms
    return found if here and (addressed or is_direct(room, account, policy)) else None


def kind_of(event_type: str, content: Json) -> UnreadableEvent | None:
    """Return the kind of an unreadable event; None for a readable or redacted one."""
    if event_type != "m.room.message":
        return EVENTS.get(event_type) if content else None
    msgtype = string(content, "msgtype")
    if not msgtype or msgtype in BY_MACHINES:
        return None
    if msgtype in READ:
        return None if readable(content, "") else EMPTY
    return LOCATION if msgtype == "m.location" else OTHER
