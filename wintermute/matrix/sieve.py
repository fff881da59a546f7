"""From a homeserver's raw answer to what we use of it. Pure, and safe with anything inside.

nio gets only the events it needs for keys and members, in a shape it can parse: a stranger's
malformed event must not stop the sync loop (X-022).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, TypeGuard

from wintermute.matrix.instances import Installation
from wintermute.matrix.people import Device
from wintermute.messages import Json, mapping

MOST_ID_BYTES = 255  # Matrix spec, appendices: identifiers
MOST_KEYS = 10_000  # one-time keys a homeserver may say it has of us
MEMBERSHIPS = ("invite", "join", "knock", "leave", "ban")
SOMEBODY = "@?:?"
"""Whoever a membership names in a way that no user is called: there may be somebody who reads."""
VERIFICATION = "m.key.verification."
"""How the types of a verification's messages begin."""
NO_OLM = "m.no_olm"
WITHHELD = frozenset({"m.blacklisted", "m.unverified", "m.unauthorised", "m.unavailable", NO_OLM})
"""Causes for which a client withholds a key (Matrix spec, `m.room_key.withheld`)."""
MOST_WITHHELD = 100  # of one sync
STEPS = frozenset({"ready", "start", "accept", "key", "mac", "done", "cancel"})


@dataclass(frozen=True, slots=True)
class RoomBatch:
    """The news of a joined room in one sync. `limited`: there is more before `events`.

    `join_rule` and `history`: who may come in and who may read; `successor` and `predecessor`: the
    room that follows by its tombstone, and the one it follows by its creation. "": what is neither
    known nor text; None: nothing new. `invited`: an invitation is not settled yet; `retry`: what
    was refused here may work now. `last`: the newest event, "" for none.
    """

    room_id: str
    events: tuple[Json, ...]
    limited: bool
    prev_batch: str | None
    encryption: bool
    join_rule: str | None = None
    history: str | None = None
    successor: str | None = None
    predecessor: str | None = None
    invited: bool = False
    retry: bool = False
    last: str = ""


@dataclass(frozen=True, slots=True)
class VerificationMessage:
    """Somebody's message of a verification by emoji; `room_id` is empty between devices.

    `kind` is its type without `m.key.verification.`, `sent_ms` its time by its own word.
    """

    kind: str
    sender: str
    room_id: str
    transaction_id: str
    content: Json
    sent_ms: int


class GroupSession(NamedTuple):
    """A session as events name it."""

    room_id: str
    sender_key: str
    session_id: str


@dataclass(frozen=True, slots=True)
class KeysLeft:
    """How many one-time keys of ours are left, and whether a fallback key is wanted.

    None where the homeserver does not say, as one that knows no fallback keys.
    """

    one_time: int | None
    lacks_fallback: bool | None


@dataclass(frozen=True, slots=True)
class Withheld:
    """Somebody's word that we do not get the key of a session; what `m.no_olm` leaves out is "".

    Anybody could have written it, and it names a cause only: their text is not taken in.
    """

    sender: str
    room_id: str
    session_id: str
    sender_key: str
    code: str


@dataclass(frozen=True, slots=True)
class SyncBatch:
    """One sync response. `for_nio` is the same in nio's shape; `malformed` counts what is not.

    `verifications` are those between devices; `owners` are of the sessions whose keys came; `epoch`
    is the value of `key_store.Epochs`, if it is new; `installation` that which is at work.
    """

    next_batch: str
    joined: tuple[RoomBatch, ...]
    invited: tuple[tuple[str, tuple[Json, ...]], ...]
    left: tuple[str, ...]
    to_device: int
    verifications: tuple[VerificationMessage, ...]
    withheld: tuple[Withheld, ...]
    keys_left: KeysLeft
    malformed: int
    for_nio: Json
    owners: tuple[tuple[GroupSession, Device], ...] = ()
    epoch: str = ""
    installation: Installation | None = None

    def tells_readers(self, room: RoomBatch) -> bool:
        """Whether it says anything new of who may be in a room: a large one is not read for less."""
        told = self.for_nio["rooms"]["join"][room.room_id]["state"]["events"]
        return bool(told) or (room.join_rule, room.history) != (None, None)


def sift(raw: Json) -> SyncBatch | None:
    """The usable part of a sync response; None when it has no token."""
    next_batch = raw.get("next_batch")
    if not _is_id(next_batch, most=100_000):
        return None
    rooms = mapping(raw.get("rooms"))
    joined = [_room(room_id, room) for room_id, room in _rooms(rooms, "join")]
    messages = [*_dicts(mapping(raw.get("to_device")).get("events"))]
    to_device, dropped = _to_device(messages)
    verifications, unusable = _verifications(messages)
    return SyncBatch(
        next_batch=next_batch,
        joined=tuple(batch for batch, _, _ in joined),
        invited=tuple(
            (room_id, tuple(_dicts(mapping(room.get("invite_state")).get("events"))))
            for room_id, room in _rooms(rooms, "invite")
        ),
        left=tuple(room_id for room_id, _ in _rooms(rooms, "leave")),
        to_device=len(to_device),
        verifications=verifications,
        withheld=_withheld_keys(messages),
        keys_left=_keys_left(raw),
        malformed=dropped + unusable + sum(bad for _, _, bad in joined),
        for_nio={
            "next_batch": next_batch,
            "device_one_time_keys_count": counts(raw.get("device_one_time_keys_count")),
            "device_lists": _device_lists(raw.get("device_lists")),
            "to_device": {"events": to_device},
            "rooms": {"invite": {}, "leave": {}, "join": {b.room_id: n for b, n, _ in joined}},
        },
    )


def page(raw: Json) -> tuple[list[Json], str | None]:
    """The well-formed events of a /messages page, oldest first, and the token of the next page."""
    events, _ = well_formed(raw.get("chunk"))
    end = raw.get("end")
    return events[::-1], end if _is_id(end, most=100_000) else None


def counts(value: object) -> dict[str, int]:
    """How many one-time keys of ours the homeserver says it has, by kind."""
    found = {"curve25519": 0, "signed_curve25519": 0}
    return found | {
        name: min(max(n, 0), MOST_KEYS) for name, n in mapping(value).items() if isinstance(n, int)
    }


def _keys_left(raw: Json) -> KeysLeft:
    count = raw.get("device_one_time_keys_count")
    unused = raw.get("device_unused_fallback_key_types")
    return KeysLeft(
        counts(count)["signed_curve25519"] if isinstance(count, dict) else None,
        "signed_curve25519" not in unused if isinstance(unused, list) else None,
    )


def megolm(event: Json) -> Json | None:
    """An encrypted room event in one shape; None when it has another.

    What it says of its device is wanted by nobody any more (MSC4381), and believed by nobody.
    """
    content = event["content"]
    ciphertext = content.get("ciphertext")
    wanted, more = ("algorithm", "session_id"), ("sender_key", "device_id")
    if not all(_is_id(content.get(field)) for field in wanted) or not isinstance(ciphertext, str):
        return None
    fields = [*wanted, *(field for field in more if _is_id(content.get(field)))]
    kept = {field: content[field] for field in fields} | {"ciphertext": ciphertext}
    head = ("type", "sender", "event_id", "origin_server_ts")
    return {field: event[field] for field in head} | {"content": kept}


def session_of(event: Json) -> tuple[str, str]:
    """The session of an encrypted event and its device's key, as it names them; "" for what is no id."""
    named = [event["content"].get(field) for field in ("session_id", "sender_key")]
    session_id, sender_key = (value if _is_id(value) else "" for value in named)
    return session_id, sender_key


def unsealed(payload: object, room_id: str, event: Json) -> Json | None:
    """What an encrypted event says, from the text in it; None if it was not said in this room.

    Some clients leave a relation beside the ciphertext only, where whoever runs the homeserver can
    write it too: there it makes no message an edit, which has its new text inside.
    """
    found = mapping(payload)
    kind, content = found.get("type"), found.get("content")
    here = found.get("room_id") == room_id
    if not isinstance(kind, str) or not isinstance(content, dict) or not here:
        return None
    beside = mapping(event["content"].get("m.relates_to"))
    edits = beside.get("rel_type") == "m.replace"
    if beside and "m.relates_to" not in content and ("m.new_content" in content or not edits):
        content = {**content, "m.relates_to": beside}
    head = {field: event[field] for field in ("sender", "event_id", "origin_server_ts")}
    return {"type": kind, "room_id": room_id, "content": content} | head


def is_malformed_message(event: Json) -> bool:
    """Whether a message lacks what every message has; one without any content was taken back."""
    content = mapping(event.get("content"))
    wanted = (content.get("msgtype"), content.get("body"))
    is_message = event.get("type") == "m.room.message" and bool(content)
    return is_message and not all(isinstance(value, str) for value in wanted)


def well_formed(events: object) -> tuple[list[Json], int]:
    """Events that have the fields every event has, and how many had not."""
    found = list(_dicts(events))
    good = [event for event in found if _is_event(event)]
    total = len(events) if isinstance(events, list) else 0
    return good, total - len(good)


def _room(room_id: str, room: Json) -> tuple[RoomBatch, Json, int]:
    timeline = mapping(room.get("timeline"))
    events, bad = well_formed(timeline.get("events"))
    state = mapping(room.get("state")).get("events")
    _, bad_state = well_formed(state)
    # What says who reads and what is encrypted counts in whatever shape it comes.
    told = [*_dicts(state), *_dicts(timeline.get("events"))]
    prev_batch = timeline.get("prev_batch")
    successor = _said(told, "m.room.tombstone", "replacement_room", "")
    batch = RoomBatch(
        room_id=room_id,
        events=tuple(events),
        limited=timeline.get("limited") is True,
        prev_batch=prev_batch if _is_id(prev_batch, most=100_000) else None,
        encryption=any(map(_marks_encryption, told)),
        join_rule=_said(told, "m.room.join_rules", "join_rule", "invite"),
        history=_said(told, "m.room.history_visibility", "history_visibility", "shared"),
        successor=successor if successor is None or _is_name(successor) else "",
        predecessor=_predecessor(told),
        last=events[-1]["event_id"] if events else "",
    )
    known = [event for event in map(_state_for_nio, told) if event]
    return batch, {"state": {"events": known}, "timeline": {"events": []}}, bad + bad_state


def _marks_encryption(event: Json) -> bool:
    return event.get("type") == "m.room.encryption" and event.get("state_key") == ""


def _said(events: Iterable[Json], kind: str, key: str, default: str) -> str | None:
    """What the newest state event of a kind says; None: there is none. Without the key: `default`."""
    found = [e.get("content") for e in events if (e.get("type"), e.get("state_key")) == (kind, "")]
    if not found:
        return None
    value = found[-1].get(key, default) if isinstance(found[-1], dict) else ""
    return value if isinstance(value, str) else ""


def _predecessor(events: Iterable[Json]) -> str | None:
    """The room that a room was made to follow: only its first event can say so."""
    found = [e for e in events if e.get("type") == "m.room.create" and e.get("state_key") == ""]
    if not found:
        return None
    named = mapping(mapping(found[0].get("content")).get("predecessor")).get("room_id")
    return named if _is_name(named) else ""


def _is_event(event: Json) -> bool:
    stamp = event.get("origin_server_ts")
    return (
        all(_is_id(event.get(field)) for field in ("type", "sender", "event_id"))
        and isinstance(event.get("content"), dict)
        and isinstance(stamp, int)
        and not isinstance(stamp, bool)
    )


def _state_for_nio(event: Json) -> Json | None:
    """What nio may see of a state event: bounded, flat, and of the types it expects.

    What it cannot validate it writes to its log, to the last nested bracket, and passes over.
    """
    content, key = mapping(event.get("content")), event.get("state_key")
    if event.get("type") == "m.room.member" and "state_key" in event:
        membership = content.get("membership")
        names = {key: content.get(key) for key in ("displayname", "avatar_url")}
        kept = {key: name for key, name in names.items() if isinstance(name, str)}
        content = {"membership": membership if membership in MEMBERSHIPS else "join", **kept}
        key = key if _is_id(key) and key.startswith("@") and ":" in key else SOMEBODY
    elif _marks_encryption(event):
        content = {"algorithm": "m.megolm.v1.aes-sha2"}  # the only one we and nio have
    else:
        return None
    head = {"sender": SOMEBODY, "event_id": "$", "origin_server_ts": 0}  # wanted, and never used
    return {**head, "type": event["type"], "state_key": key, "content": content, "unsigned": {}}


def _to_device(messages: Sequence[Json]) -> tuple[list[Json], int]:
    """The messages that may carry room keys, in the one shape that nio can read."""
    wanted = [event for event in messages if event.get("type") == "m.room.encrypted"]
    good = [*filter(None, map(_olm_message, wanted))]
    return good, len(wanted) - len(good)


def verification_in_room(raw: Json, event: Json, room_id: str) -> VerificationMessage | None:
    """What an event of a room, as it came and in clear, is to a verification."""
    content, kind = mapping(event.get("content")), _step(event)
    relation = mapping(content.get("m.relates_to"))
    transaction_id = relation.get("event_id") if relation.get("rel_type") == "m.reference" else None
    is_message = event.get("type") == "m.room.message"
    if is_message and content.get("msgtype") == f"{VERIFICATION}request":
        kind, transaction_id = "request", raw["event_id"]
    if not kind or not _is_name(transaction_id):
        return None
    stamp = raw["origin_server_ts"]
    return VerificationMessage(kind, raw["sender"], room_id, transaction_id, content, stamp)


def _verifications(messages: Sequence[Json]) -> tuple[tuple[VerificationMessage, ...], int]:
    """The messages of verifications between devices, and how many were not usable."""
    request = f"{VERIFICATION}request"
    wanted = [event for event in messages if _step(event) or event.get("type") == request]
    good = tuple(filter(None, map(_verification, wanted)))
    return good, len(wanted) - len(good)


def _verification(event: Json) -> VerificationMessage | None:
    content, sender = event.get("content"), event.get("sender")
    if not isinstance(content, dict) or not _is_name(sender):
        return None
    transaction_id, stamp = content.get("transaction_id"), content.get("timestamp")
    if not _is_name(transaction_id):
        return None
    sent_ms = stamp if isinstance(stamp, int) and not isinstance(stamp, bool) else 0
    kind = _step(event) or "request"
    return VerificationMessage(kind, sender, "", transaction_id, content, sent_ms)


def _withheld_keys(messages: Sequence[Json]) -> tuple[Withheld, ...]:
    """The first words on keys that we do not get; a cause that we do not know is of no use."""
    found = (_withheld(e) for e in messages if e.get("type") == "m.room_key.withheld")
    return tuple(islice(filter(None, found), MOST_WITHHELD))


def _withheld(event: Json) -> Withheld | None:
    content, sender = mapping(event.get("content")), event.get("sender")
    code = content.get("code")
    wanted = [sender, content.get("sender_key")]
    if code != NO_OLM:
        wanted += [content.get("room_id"), content.get("session_id")]
    if not isinstance(code, str) or code not in WITHHELD or not all(map(_is_id, wanted)):
        return None
    if content.get("algorithm") != "m.megolm.v1.aes-sha2":
        return None
    who, sender_key, room_id, session_id = (*map(str, wanted), "", "")[:4]
    return Withheld(who, room_id, session_id, sender_key, code)


def _step(event: Json) -> str:
    """Which message of a verification under way an event is; "" when it is none."""
    kind = event.get("type")
    name = kind.removeprefix(VERIFICATION) if isinstance(kind, str) else ""
    return name if name != kind and name in STEPS else ""


def _is_name(value: object) -> TypeGuard[str]:
    return _is_id(value) and value.isprintable()


def _olm_message(event: Json) -> Json | None:
    content = mapping(event.get("content"))
    head = {"algorithm": content.get("algorithm"), "sender_key": content.get("sender_key")}
    if not all(map(_is_id, (event.get("sender"), *head.values()))):
        return None
    ciphertext = {
        key: {"type": item["type"], "body": item["body"]}
        for key, item in mapping(content.get("ciphertext")).items()
        if isinstance(item, dict)
        and item.get("type") in (0, 1)
        and isinstance(item.get("body"), str)
    }
    content = head | {"ciphertext": ciphertext}
    return {"type": "m.room.encrypted", "sender": event["sender"], "content": content}


def _rooms(rooms: Json, kind: str) -> Iterable[tuple[str, Json]]:
    for room_id, room in mapping(rooms.get(kind)).items():
        if _is_id(room_id) and isinstance(room, dict):
            yield room_id, room


def _device_lists(value: object) -> Json:
    lists = {name: mapping(value).get(name) for name in ("changed", "left")}
    return {
        name: [*filter(_is_id, users)] if isinstance(users, list) else []
        for name, users in lists.items()
    }


def _is_id(value: object, *, most: int = MOST_ID_BYTES) -> TypeGuard[str]:
    if not isinstance(value, str) or not 1 <= len(value) <= most:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return False
    return "\0" not in value


def _dicts(value: object) -> Iterable[Json]:
    return (item for item in value if isinstance(item, dict)) if isinstance(value, list) else ()
