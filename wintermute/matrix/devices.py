"""Other people's device keys, as far as encryption can use them. Pure, and safe with anything inside.

A homeserver keeps whatever somebody uploads as the keys of a device; nio takes for granted that
they are what they should be (X-022).
"""

import json
from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import Any

from vodozemac import Curve25519PublicKey, Ed25519PublicKey, Ed25519Signature

from wintermute.matrix.people import identities
from wintermute.matrix.signing import is_signed
from wintermute.messages import Json

MOST_DEVICES = 250  # of one person
MOST_SIGNATURES = 1000  # of one person's devices: looked at to see which of them to keep
MOST_CHARS = 10_000  # of one signed object; a usual one has 500
MOST_BRACKETS = 50  # which bounds its depth
MOST_ID_CHARS = 255


def is_token(value: object) -> bool:
    """Whether an id of a user or device is safe in nio's trust files: fields with blanks between."""
    return (
        isinstance(value, str)
        and 0 < len(value) <= MOST_ID_CHARS
        and value.isprintable()
        and " " not in value
    )


def usable_devices(
    raw: Json, asked: Collection[str], before: Mapping[str, Sequence[str]] = MappingProxyType({})
) -> tuple[dict[str, dict[str, Json]], int]:
    """The devices in an answer to /keys/query of everybody who is in it; how many were dropped.

    `before`: those that were known of a user, oldest first; of too many they are dropped last.
    """
    answered = _dict(raw.get("device_keys"))
    found: dict[str, dict[str, Json]] = {}
    dropped = 0
    for user in asked:
        devices = answered.get(user)
        if not isinstance(devices, dict):
            continue
        names = _by_worth(raw, user, devices, before.get(user, ()))
        checked = ((name, _device(devices[name], user, name)) for name in names)
        good = ((name, device) for name, device in checked if device is not None)
        found[user] = dict(islice(good, MOST_DEVICES))
        dropped += len(devices) - len(found[user])
    return found, dropped


def _by_worth(raw: Json, user: str, devices: Json, before: Sequence[str]) -> list[str]:
    """Devices by their names: those that their owner signed first, then those known for longest."""
    if len(devices) <= MOST_DEVICES:
        return sorted(devices)
    rank = {name: number for number, name in enumerate(before)}
    names = sorted(devices, key=lambda name: (rank.get(name, len(rank)), name))
    identity = identities(raw, [user]).get(user)
    key = identity.signing if identity else ""
    signed = {
        name for name in names[:MOST_SIGNATURES] if is_signed(_dict(devices[name]), user, key)
    }
    return sorted(names, key=lambda name: name not in signed)


def usable_one_time_keys(
    raw: Json, asked: Mapping[str, Collection[str]]
) -> tuple[list[tuple[str, str, Json]], int]:
    """User, device and key for each usable key in an answer to /keys/claim; how many were dropped."""
    answered = _dict(raw.get("one_time_keys"))
    given = [
        (user, device, _dict(answered.get(user))[device])
        for user, devices in asked.items()
        for device in devices
        if device in _dict(answered.get(user))
    ]
    checked = ((user, device, _one_time_key(key, user, device)) for user, device, key in given)
    good = [(user, device, key) for user, device, key in checked if key is not None]
    return good, len(given) - len(good)


def _device(raw: object, user: str, name: str) -> Json | None:
    signed = _signed(raw, user, name)
    if signed is None or not is_token(name):
        return None
    if (signed.get("user_id"), signed.get("device_id")) != (user, name):
        return None
    keys = _dict(signed.get("keys"))
    usable = _is_key(Ed25519PublicKey, keys.get(f"ed25519:{name}")) and _is_key(
        Curve25519PublicKey, keys.get(f"curve25519:{name}")
    )
    return signed if usable else None


def _one_time_key(raw: object, user: str, device: str) -> Json | None:
    for name, value in _dict(raw).items():
        signed = _signed(value, user, device)
        if signed is not None and name.startswith("signed_curve25519:"):
            return {name: signed} if _is_key(Curve25519PublicKey, signed.get("key")) else None
    return None


def _signed(raw: object, user: str, device: str) -> Json | None:
    """What a device signed, with that signature and no other; None if it cannot be checked."""
    found = _dict(raw)
    signature = _dict(_dict(found.get("signatures")).get(user)).get(f"ed25519:{device}")
    signed = {name: found[name] for name in found if name not in ("signatures", "unsigned")}
    if not _is_key(Ed25519Signature, signature) or not _is_plain(signed):
        return None
    return signed | {"signatures": {user: {f"ed25519:{device}": signature}}}


def _is_key(kind: Any, value: object) -> bool:
    try:
        kind.from_base64(value)
    except (ValueError, TypeError):
        return False
    return True


def _is_plain(value: Json) -> bool:
    """Whether it can be written the way it was signed, without end or depth."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except (ValueError, RecursionError):
        return False
    return len(text) <= MOST_CHARS and text.count("[") + text.count("{") <= MOST_BRACKETS


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
