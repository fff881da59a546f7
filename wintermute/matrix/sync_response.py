"""Parsing and sanitising of sync responses. Pure, and safe for any input.

nio gets only the events it needs for keys and members, in a form it can parse: a malformed event
of a stranger must not stop the sync loop (X-022).
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
"""The user of a membership event whose user id is invalid: it counts as a possible reader."""
VERIFICATION = "m.key.verification."
"""Beginning of the types of verification messages."""
NO_OLM = "m.no_olm"
WITHHELD = frozenset({"m.blacklisted", "m.unverified", "m.unauthorised", "m.unavailable", NO_OLM})
"""Reasons for which a client withholds a key (Matrix spec, `m.room_key.withheld`)."""
MOST_WITHHELD = 100  # of one sync
STEPS = frozenset({"ready", "start", "accept", "key", "mac", "done", "cancel"})


@dataclass(frozen=True, slots=True)
class RoomBatch:
    """A joined room in one sync. `limited`: there are more events before `events`.

    `join_rule` and `history`: who may join and who may read; `successor` and `predecessor`: the
    room named by the tombstone and by the creation event. None: unchanged; "": invalid. `invited`:
    an invitation is still stored; `retry`: refused messages may work now. `last`: the newest
    event, "" for none.
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
    """A message of an emoji verification; `room_id` is empty for to-device messages.

    `kind` is its type without `m.key.verification.`, `sent_ms` the time that the sender claims.
    """

    kind: str
    sender: str
    room_id: str
    transaction_id: str
    content: Json
    sent_ms: int


class GroupSession(NamedTuple):
    """A Megolm session as named by events."""

    room_id: str
    sender_key: str
    session_id: str


@dataclass(frozen=True, slots=True)
class KeyCounts:
    """The number of our one-time keys at the homeserver, and True if it needs a fallback key.

    None if the homeserver does not say, such as one without fallback keys.
    """

    one_time: int | None
    lacks_fallback: bool | None


@dataclass(frozen=True, slots=True)
class WithheldClaim:
    """A claim that we do not get the key of a session; fields missing in `m.no_olm` are "".

    Anybody may have sent it. Only its reason is used, never its text.
    """

    sender: str
    room_id: str
    session_id: str
    sender_key: str
    code: str


@dataclass(frozen=True, slots=True)
class SyncBatch:
    """One sync response. `for_nio` is the part for nio; `malformed` counts discarded events.

    `verifications` came as to-device messages; `owners` are the devices of new session keys;
    `epoch` is the value of `key_store.Epochs` if it changed; `installation`: the running one.
    """

    next_batch: str
    joined: tuple[RoomBatch, ...]
    invited: tuple[tuple[str, tuple[Json, ...]], ...]
    left: tuple[str, ...]
    to_device: int
    verifications: tuple[VerificationMessage, ...]
    withheld: tuple[WithheldClaim, ...]
    keys_left: KeyCounts
    malformed: int
    for_nio: Json
    owners: tuple[tuple[GroupSession, Device], ...] = ()
    epoch: str = ""
    installation: Installation | None = None

    def may_change_readers(self, room: RoomBatch) -> bool:
        """Check if a room's readers may have changed; otherwise its members need not be read."""
        events = self.for_nio["rooms"]["join"][room.room_id]["state"]["events"]
        return bool(events) or (room.join_rule, room.history) != (None, None)


def parse_sync(raw: Json) -> SyncBatch | None:
    """Parse and sanitise a sync response; None if it has no token."""
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
    """Return the well-formed events of a /messages page, oldest first, and the token of the next one."""
    events, _ = well_formed(raw.get("chunk"))
    end = raw.get("end")
    return events[::-1], end if _is_id(end, most=100_000) else None


def counts(value: object) -> dict[str, int]:
    """Return the number of our one-time keys at the homeserver, by algorithm."""
    found = {"curve25519": 0, "signed_curve25519": 0}
    return found | {
        name: min(max(n, 0), MOST_KEYS) for name, n in mapping(value).items() if isinstance(n, int)
    }


def _keys_left(raw: Json) -> KeyCounts:
    count = raw.get("device_one_time_keys_count")
    unused = raw.get("device_unused_fallback_key_types")
    return KeyCounts(
        counts(count)["signed_curve25519"] if isinstance(count, dict) else None,
        "signed_curve25519" not in unused if isinstance(unused, list) else None,
    )


def megolm(event: Json) -> Json | None:
    """Return an encrypted room event in a fixed form; None if it is malformed.

    Its claims about the device are dropped (MSC4381).
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
    """Return session id and sender key that an encrypted event claims; "" for an invalid one."""
    claimed = [event["content"].get(field) for field in ("session_id", "sender_key")]
    session_id, sender_key = (value if _is_id(value) else "" for value in claimed)
    return session_id, sender_key


def decrypted_event(payload: object, room_id: str, event: Json) -> Json | None:
    """Return the decrypted event; None if its ciphertext was made for another room.

    Some clients send a relation only outside the ciphertext, where whoever runs the homeserver can
    write it, too. Such a relation cannot make a message an edit: the new text of an edit is
    inside.
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
    """Check if a message lacks `msgtype` or `body`; one without any content was redacted."""
    content = mapping(event.get("content"))
    wanted = (content.get("msgtype"), content.get("body"))
    is_message = event.get("type") == "m.room.message" and bool(content)
    return is_message and not all(isinstance(value, str) for value in wanted)


def well_formed(events: object) -> tuple[list[Json], int]:
    """Return the events with all required fields, and the number of the others."""
    found = list(_dicts(events))
    good = [event for event in found if _is_event(event)]
    total = len(events) if isinstance(events, list) else 0
    return good, total - len(good)


def _room(room_id: str, room: Json) -> tuple[RoomBatch, Json, int]:
    timeline = mapping(room.get("timeline"))
    events, bad = well_formed(timeline.get("events"))
    state = mapping(room.get("state")).get("events")
    _, bad_state = well_formed(state)
    # State about readers and encryption counts even in a malformed event.
    all_events = [*_dicts(state), *_dicts(timeline.get("events"))]
    prev_batch = timeline.get("prev_batch")
    successor = _state_value(all_events, "m.room.tombstone", "replacement_room", "")
    batch = RoomBatch(
        room_id=room_id,
        events=tuple(events),
        limited=timeline.get("limited") is True,
        prev_batch=prev_batch if _is_id(prev_batch, most=100_000) else None,
        encryption=any(map(_marks_encryption, all_events)),
        join_rule=_state_value(all_events, "m.room.join_rules", "join_rule", "invite"),
        history=_state_value(
            all_events, "m.room.history_visibility", "history_visibility", "shared"
        ),
        successor=successor if successor is None or _is_name(successor) else "",
        predecessor=_predecessor(all_events),
        last=events[-1]["event_id"] if events else "",
    )
    known = [event for event in map(_state_for_nio, all_events) if event]
    return batch, {"state": {"events": known}, "timeline": {"events": []}}, bad + bad_state


def _marks_encryption(event: Json) -> bool:
    return event.get("type") == "m.room.encryption" and event.get("state_key") == ""


def _state_value(events: Iterable[Json], kind: str, key: str, default: str) -> str | None:
    """Return a value of the newest state event of a type; None without an event, `default` without the key."""
    found = [e.get("content") for e in events if (e.get("type"), e.get("state_key")) == (kind, "")]
    if not found:
        return None
    value = found[-1].get(key, default) if isinstance(found[-1], dict) else ""
    return value if isinstance(value, str) else ""


def _predecessor(events: Iterable[Json]) -> str | None:
    """Return the predecessor named by a room's creation event; None without an event."""
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
    """Return the part of a state event that nio needs; None if it needs nothing.

    nio writes events that it cannot validate to its log, at any size.
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
    head = {"sender": SOMEBODY, "event_id": "$", "origin_server_ts": 0}  # required, but never used
    return {**head, "type": event["type"], "state_key": key, "content": content, "unsigned": {}}


def _to_device(messages: Sequence[Json]) -> tuple[list[Json], int]:
    """Return the messages that may carry room keys in nio's form, and the number of malformed ones."""
    wanted = [event for event in messages if event.get("type") == "m.room.encrypted"]
    good = [*filter(None, map(_olm_message, wanted))]
    return good, len(wanted) - len(good)


def verification_in_room(raw: Json, event: Json, room_id: str) -> VerificationMessage | None:
    """Return the verification message in a room event; None if it is another event."""
    content, kind = mapping(event.get("content")), _verification_step(event)
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
    """Return the to-device verification messages, and the number of malformed ones."""
    request = f"{VERIFICATION}request"
    wanted = [
        event for event in messages if _verification_step(event) or event.get("type") == request
    ]
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
    kind = _verification_step(event) or "request"
    return VerificationMessage(kind, sender, "", transaction_id, content, sent_ms)


def _withheld_keys(messages: Sequence[Json]) -> tuple[WithheldClaim, ...]:
    """Return the first claims about withheld keys; unknown reasons are left out."""
    found = (_withheld(e) for e in messages if e.get("type") == "m.room_key.withheld")
    return tuple(islice(filter(None, found), MOST_WITHHELD))


def _withheld(event: Json) -> WithheldClaim | None:
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
    return WithheldClaim(who, room_id, session_id, sender_key, code)


def _verification_step(event: Json) -> str:
    """Return the type of a verification message without its prefix; "" for another event."""
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
