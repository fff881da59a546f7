"""The state machine of emoji verification: it gets messages and returns the answers.

The steps are those of the Matrix specification, "Short Authentication String (SAS) verification".
Nobody compares the emojis on our side, so we send our MAC only after theirs was right (X-019).
This proves us to them, never them to us.
"""

import hmac
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Literal

from vodozemac import Curve25519PublicKey, EstablishedSas, Sas

from wintermute.matrix.signing import digest
from wintermute.messages import Json

TABLE = """
🐶 Dog, 🐱 Cat, 🦁 Lion, 🐎 Horse, 🦄 Unicorn, 🐷 Pig, 🐘 Elephant, 🐰 Rabbit,
🐼 Panda, 🐓 Rooster, 🐧 Penguin, 🐢 Turtle, 🐟 Fish, 🐙 Octopus, 🦋 Butterfly, 🌷 Flower,
🌳 Tree, 🌵 Cactus, 🍄 Mushroom, 🌏 Globe, 🌙 Moon, ☁️ Cloud, 🔥 Fire, 🍌 Banana,
🍎 Apple, 🍓 Strawberry, 🌽 Corn, 🍕 Pizza, 🎂 Cake, ❤️ Heart, 😀 Smiley, 🤖 Robot,
🎩 Hat, 👓 Glasses, 🔧 Spanner, 🎅 Santa, 👍 Thumbs Up, ☂️ Umbrella, ⌛ Hourglass, ⏰ Clock,
🎁 Gift, 💡 Light Bulb, 📕 Book, ✏️ Pencil, 📎 Paperclip, ✂️ Scissors, 🔒 Lock, 🔑 Key,
🔨 Hammer, ☎️ Telephone, 🏁 Flag, 🚂 Train, 🚲 Bicycle, ✈️ Aeroplane, 🚀 Rocket, 🏆 Trophy,
⚽ Ball, 🎸 Guitar, 🎺 Trumpet, 🔔 Bell, ⚓ Anchor, 🎧 Headphones, 📁 Folder, 📌 Pin
"""
EMOJIS = tuple(
    (emoji, name) for emoji, _, name in (pair.strip().partition(" ") for pair in TABLE.split(","))
)
"""Emoji and English name, in the order of the specification's numbers."""
METHOD = "m.sas.v1"
STRINGS = ("emoji", "decimal")
NEW_MAC, OLD_MAC = "hkdf-hmac-sha256.v2", "hkdf-hmac-sha256"
CHOICES = {
    "hash": ("sha256",),
    "key_agreement_protocol": ("curve25519-hkdf-sha256",),
    "message_authentication_code": (NEW_MAC, OLD_MAC),  # nheko 0.11 has only the old one
}
"""Our methods, best first, by their key in an `accept`."""
OFFERS = {
    "hash": "hashes",
    "key_agreement_protocol": "key_agreement_protocols",
    "message_authentication_code": "message_authentication_codes",
}
"""The keys of the same methods in a `start`."""
LASTS = timedelta(minutes=10)
MOST_CHARS = 10_000  # of one content; a usual one has 500
MOST_TEXT_CHARS = 255
MOST_CODE_CHARS = 64
REASONS = {
    "m.user": "The verification was cancelled.",
    "m.timeout": "The verification took longer than ten minutes.",
    "m.unknown_transaction": "This verification is not known here.",
    "m.unknown_method": "The two devices have no way of verifying in common.",
    "m.unexpected_message": "This message was not expected now.",
    "m.key_mismatch": "The keys are not the ones that were expected.",
    "m.invalid_message": "The message could not be understood.",
    "m.accepted": "Another device has answered.",
    "m.mismatched_commitment": "The key is not the one that was promised.",
    "m.mismatched_sas": "The emojis are not the same.",
}
Phase = Literal[
    "requested", "ready", "started", "accepted", "keyed", "confirmed", "done", "cancelled"
]
OutgoingMessages = tuple[tuple[str, Json], ...]
"""Messages to send, in order: the type without `m.key.verification.`, and the content."""


def named(numbers: Iterable[int]) -> tuple[tuple[str, str], ...]:
    """Return emoji and name for these numbers."""
    return tuple(EMOJIS[number] for number in numbers)


@dataclass(frozen=True, slots=True)
class Party:
    """Our side. Keys are Ed25519 in unpadded base64; `master_key` is "" without cross-signing."""

    user_id: str
    device_id: str
    device_key: str
    master_key: str = ""


@dataclass(frozen=True, slots=True)
class Verification:
    """The state of one verification.

    `room_id` is empty for to-device messages, `their_device` until they answer. "started" waits
    for the answer to our start, "accepted" for their key. From "keyed" on the emojis can be shown.
    At "confirmed" their MAC was right and ours is sent; at "done" they have confirmed it.
    `verified_keys`: ids of the keys with a right MAC. A key agreement works only once, so a step
    from an older state than the last one may fail.
    """

    transaction_id: str
    room_id: str
    ours: Party
    their_user: str
    their_device: str
    we_asked: bool
    began_at: datetime
    phase: Phase
    code: str = ""
    emojis: tuple[tuple[str, str], ...] = ()
    decimals: tuple[int, ...] = ()
    verified_keys: tuple[str, ...] = ()
    we_started: bool = False
    received: Mapping[str, str] = field(default_factory=dict, repr=False)
    start: str = field(default="", repr=False)
    strings: tuple[str, ...] = field(default=(), repr=False)
    mac_method: str = ""
    commitment: str = field(default="", repr=False)
    sas: Sas = field(default_factory=Sas, repr=False)
    secret: EstablishedSas | None = field(default=None, repr=False)

    @property
    def is_over(self) -> bool:
        """True if the verification has ended."""
        return self.phase in ("done", "cancelled")


SasStep = tuple[Verification, OutgoingMessages]


def ask_in_room(ours: Party, their_user: str) -> Json:
    """Return the m.room.message that asks in a room; its event id becomes the transaction id."""
    return {
        "msgtype": "m.key.verification.request",
        "body": f"{ours.user_id} asks to be verified, which this client cannot do in a room.",
        "from_device": ours.device_id,
        "methods": [METHOD],
        "to": their_user,
    }


def ask_devices(ours: Party, transaction_id: str, now: datetime) -> Json:
    """Return the m.key.verification.request that asks by to-device messages."""
    return {
        "from_device": ours.device_id,
        "methods": [METHOD],
        "timestamp": round(now.timestamp() * 1000),
        "transaction_id": transaction_id,
    }


def ask(
    transaction_id: str, room_id: str, ours: Party, their_user: str, now: datetime
) -> Verification:
    """Return a verification that we have asked for."""
    return Verification(transaction_id, room_id, ours, their_user, "", True, now, "requested")


def answer_request(
    transaction_id: str, room_id: str, ours: Party, their_user: str, content: object, now: datetime
) -> SasStep:
    """Return a verification that they ask for, and our answer."""
    fresh = Verification(transaction_id, room_id, ours, their_user, "", False, now, "ready")
    read, text = _read(content)
    device, methods = _their_device(fresh, read), _words(read, "methods")
    if not device or methods is None:
        return cancel(fresh, "m.invalid_message")
    fresh = replace(fresh, their_device=device, received={"request": text})
    if METHOD not in methods:
        return cancel(fresh, "m.unknown_method")
    return fresh, (_message(fresh, "ready", from_device=ours.device_id, methods=[METHOD]),)


def receive(
    verification: Verification, kind: str, content: object, keys: Mapping[str, str]
) -> SasStep:
    """Process a message of theirs. Returns the new state and our answers.

    `kind` is its type without `m.key.verification.`. `keys`: their public keys by id, as served
    now; needed only for a "mac".
    """
    if verification.is_over:
        return verification, ()
    read, text = _read(content)
    if kind == "cancel":
        code = _text(read, "code")
        return _cancelled(verification, code if len(code) <= MOST_CODE_CHARS else ""), ()
    if not text:
        return cancel(verification, "m.invalid_message")
    if kind in verification.received:
        other = read.get("from_device")
        if kind == "ready" and isinstance(other, str) and other != verification.their_device:
            return verification, ()  # a second device of theirs has answered too late
        same = verification.received[kind] == text
        return (verification, ()) if same else cancel(verification, "m.unexpected_message")
    phases, step = _STEPS.get(kind, ((), _done))
    if verification.phase not in phases:
        return cancel(verification, "m.unexpected_message")
    verification = replace(verification, received={**verification.received, kind: text})
    return step(verification, read, keys)


def cancel(verification: Verification, code: str) -> SasStep:
    """Cancel a verification, with the message that says so; does nothing if it has ended."""
    if verification.is_over:
        return verification, ()
    reason = REASONS.get(code, "The verification failed.")
    return _cancelled(verification, code), (
        _message(verification, "cancel", code=code, reason=reason),
    )


def expired(verification: Verification, now: datetime) -> SasStep:
    """Cancel a verification that has taken too long."""
    if now - verification.began_at < LASTS:
        return verification, ()
    return cancel(verification, "m.timeout")


def _ready(verification: Verification, content: Json, keys: Mapping[str, str]) -> SasStep:
    device, methods = _their_device(verification, content), _words(content, "methods")
    if not device or methods is None:
        return cancel(verification, "m.invalid_message")
    verification = replace(verification, their_device=device)
    if METHOD not in methods:
        return cancel(verification, "m.unknown_method")
    message = _message(
        verification,
        "start",
        from_device=verification.ours.device_id,
        method=METHOD,
        short_authentication_string=[*STRINGS],
        **{offer: [*CHOICES[name]] for name, offer in OFFERS.items()},
    )
    start = _canonical(message[1])
    return replace(verification, phase="started", we_started=True, start=start), (message,)


def _start(verification: Verification, content: Json, keys: Mapping[str, str]) -> SasStep:
    device, method = _their_device(verification, content), _text(content, "method")
    if device != verification.their_device or not method:
        return cancel(verification, "m.invalid_message")
    if method != METHOD:
        pair = verification.we_started
        return cancel(verification, "m.unexpected_message" if pair else "m.unknown_method")
    us = (verification.ours.user_id, verification.ours.device_id)
    if verification.we_started and us < (verification.their_user, device):
        return verification, ()
    offers = {name: _words(content, offer) for name, offer in OFFERS.items()}
    strings = _words(content, "short_authentication_string")
    if strings is None or None in offers.values():
        return cancel(verification, "m.invalid_message")
    shown = tuple(word for word in STRINGS if word in strings)
    chosen = {
        name: next((word for word in CHOICES[name] if word in (words or ())), "")
        for name, words in offers.items()
    }
    if not shown or not all(chosen.values()):
        return cancel(verification, "m.unknown_method")
    start = verification.received["start"]
    accept = _message(
        verification,
        "accept",
        commitment=_commitment(verification.sas.public_key, start),
        method=METHOD,
        short_authentication_string=[*shown],
        **chosen,
    )
    verification = replace(verification, we_started=False, start=start)
    return _accepted(verification, shown, chosen), (accept,)


def _accept(verification: Verification, content: Json, keys: Mapping[str, str]) -> SasStep:
    chosen = {name: _text(content, name) for name in CHOICES}
    commitment = _text(content, "commitment")
    strings = _words(content, "short_authentication_string")
    if strings is None or not commitment or not all(chosen.values()):
        return cancel(verification, "m.invalid_message")
    shown = tuple(word for word in STRINGS if word in strings)
    if not shown or any(word not in CHOICES[name] for name, word in chosen.items()):
        return cancel(verification, "m.unknown_method")
    verification = replace(verification, commitment=commitment)
    return _accepted(verification, shown, chosen), (_key_message(verification),)


def _accepted(
    verification: Verification, shown: tuple[str, ...], chosen: Mapping[str, str]
) -> Verification:
    method = chosen["message_authentication_code"]
    return replace(verification, phase="accepted", strings=shown, mac_method=method)


def _key(verification: Verification, content: Json, keys: Mapping[str, str]) -> SasStep:
    try:
        key = Curve25519PublicKey.from_base64(_text(content, "key"))
        if (
            verification.we_started
            and _commitment(key, verification.start) != verification.commitment
        ):
            return cancel(verification, "m.mismatched_commitment")
        secret = verification.sas.diffie_hellman(key)
    except ValueError:
        return cancel(verification, "m.invalid_message")
    short = secret.bytes(_short_info(verification, key))
    keyed = replace(
        verification,
        phase="keyed",
        secret=secret,
        emojis=named(short.emoji_indices) if "emoji" in verification.strings else (),
        decimals=tuple(short.decimals) if "decimal" in verification.strings else (),
    )
    return keyed, () if verification.we_started else (_key_message(verification),)


def _mac(verification: Verification, content: Json, keys: Mapping[str, str]) -> SasStep:
    tag, macs, secret = _text(content, "keys"), content.get("mac"), verification.secret
    if (
        secret is None
        or not tag
        or not isinstance(macs, dict)
        or not all(_text(macs, name) for name in macs)
    ):
        return cancel(verification, "m.invalid_message")
    known = sorted(name for name in macs if name in keys)
    info = _mac_info(verification, ours=False)
    method = verification.mac_method
    is_right = _is_mac(secret, method, ",".join(sorted(macs)), f"{info}KEY_IDS", tag) and all(
        _is_mac(secret, method, keys[name], info + name, macs[name]) for name in known
    )
    if not is_right or f"ed25519:{verification.their_device}" not in known:
        return cancel(verification, "m.key_mismatch")
    confirmed = replace(verification, phase="confirmed", verified_keys=tuple(known))
    return confirmed, (_mac_message(verification, secret), _message(verification, "done"))


def _done(verification: Verification, content: Json, keys: Mapping[str, str]) -> SasStep:
    return replace(verification, phase="done"), ()


_STEPS: dict[
    str, tuple[tuple[Phase, ...], Callable[[Verification, Json, Mapping[str, str]], SasStep]]
] = {
    "ready": (("requested",), _ready),
    "start": (("ready", "started"), _start),
    "accept": (("started",), _accept),
    "key": (("accepted",), _key),
    "mac": (("keyed",), _mac),
    "done": (("confirmed",), _done),
}
"""The phases in which each message is expected. Only the asking side is ever "requested", and only
the starting side "started".
"""


def _message(verification: Verification, kind: str, **content: object) -> tuple[str, Json]:
    if not verification.room_id:
        return kind, {**content, "transaction_id": verification.transaction_id}
    relation = {"rel_type": "m.reference", "event_id": verification.transaction_id}
    return kind, {**content, "m.relates_to": relation}


def _key_message(verification: Verification) -> tuple[str, Json]:
    return _message(verification, "key", key=verification.sas.public_key.to_base64())


def _mac_message(verification: Verification, secret: EstablishedSas) -> tuple[str, Json]:
    ours = verification.ours
    keys = {f"ed25519:{ours.device_id}": ours.device_key}
    if ours.master_key:
        keys[f"ed25519:{ours.master_key}"] = ours.master_key
    info, method = _mac_info(verification, ours=True), verification.mac_method
    tag = _mac_of(secret, method, ",".join(sorted(keys)), f"{info}KEY_IDS")
    macs = {name: _mac_of(secret, method, key, info + name) for name, key in keys.items()}
    return _message(verification, "mac", keys=tag, mac=macs)


def _mac_of(secret: EstablishedSas, method: str, text: str, info: str) -> str:
    if method == OLD_MAC:
        return secret.calculate_mac_invalid_base64(text, info)
    return secret.calculate_mac(text, info)


def _is_mac(secret: EstablishedSas, method: str, text: str, info: str, tag: str) -> bool:
    if method == OLD_MAC:  # its encoding is broken: it can only be compared
        is_right = _mac_of(secret, method, text, info)
        return hmac.compare_digest(is_right.encode(), tag.encode())
    try:
        secret.verify_mac(text, info, tag)
    except ValueError:
        return False
    return True


def _mac_info(verification: Verification, *, ours: bool) -> str:
    us = verification.ours.user_id + verification.ours.device_id
    them = verification.their_user + verification.their_device
    pair = us + them if ours else them + us
    return f"MATRIX_KEY_VERIFICATION_MAC{pair}{verification.transaction_id}"


def _short_info(verification: Verification, their_key: Curve25519PublicKey) -> str:
    ours = verification.ours
    us = (ours.user_id, ours.device_id, verification.sas.public_key.to_base64())
    them = (verification.their_user, verification.their_device, their_key.to_base64())
    order = (*us, *them) if verification.we_started else (*them, *us)
    return "|".join(("MATRIX_KEY_VERIFICATION_SAS", *order, verification.transaction_id))


def _commitment(key: Curve25519PublicKey, start: str) -> str:
    return digest((key.to_base64() + start).encode())


def _cancelled(verification: Verification, code: str) -> Verification:
    return replace(verification, phase="cancelled", code=code, verified_keys=())


def _their_device(verification: Verification, content: Json) -> str:
    """Return their device id; "" if it is invalid or our own."""
    device = _text(content, "from_device")
    us = (verification.ours.user_id, verification.ours.device_id)
    return "" if (verification.their_user, device) == us else device


def _text(content: Json, name: str) -> str:
    """Return a short text of a content; "" if it is invalid."""
    text = content.get(name)
    usable = isinstance(text, str) and len(text) <= MOST_TEXT_CHARS and text.isprintable()
    return str(text) if usable else ""


def _words(content: Json, name: str) -> list[str] | None:
    words = content.get(name)
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        return None
    return words


def _canonical(content: object) -> str:
    """Return the canonical JSON of a content, as it is hashed."""
    return json.dumps(
        content, ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=True
    )


def _read(content: object) -> tuple[Json, str]:
    """Return a content and its canonical JSON; both empty if it is no object or too large."""
    if not isinstance(content, dict):
        return {}, ""
    try:
        text = _canonical(content)
        text.encode()
        return (json.loads(text), text) if len(text) <= MOST_CHARS else ({}, "")
    except (ValueError, TypeError, RecursionError):
        return {}, ""
