"""Ed25519 signatures over JSON, as the Matrix specification has them (appendices, "Signing JSON")."""

import base64
import hashlib
import json
from typing import Any

from vodozemac import Ed25519PublicKey, Ed25519Signature, SignatureException

from wintermute.messages import Json

SEED_BYTES = 32
ED25519 = "ed25519:"


def unsigned(value: Json) -> Json:
    """An object without its signatures and what they do not cover."""
    return {key: value[key] for key in value if key not in ("signatures", "unsigned")}


def canonical(value: Json) -> bytes:
    """The one way to write an object (Matrix spec, appendices, "Canonical JSON")."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode()


def unpadded(raw: bytes) -> str:
    """Base64 without `=`."""
    return base64.b64encode(raw).decode().rstrip("=")


def digest(raw: bytes) -> str:
    """SHA-256 in unpadded base64."""
    return unpadded(hashlib.sha256(raw).digest())


def public_key(seed: bytes) -> str:
    """The public half of a key, in unpadded base64."""
    return unpadded(_key(seed).public_key().export_key(format="raw"))


def signature(value: Json, seed: bytes) -> str:
    """What the owner of a seed says to an object, in unpadded base64."""
    from Crypto.Signature import eddsa  # noqa: PLC0415  see _key

    return unpadded(eddsa.new(_key(seed), "rfc8032").sign(canonical(unsigned(value))))


def is_signed(value: object, user_id: str, key: str, name: str = "") -> bool:
    """Whether a key of a user signed an object; `name` is the key's, if that is not the key."""
    if not isinstance(value, dict):
        return False
    signatures = value.get("signatures")
    by_user = signatures.get(user_id) if isinstance(signatures, dict) else None
    found = by_user.get(f"{ED25519}{name or key}") if isinstance(by_user, dict) else None
    try:
        signed = Ed25519Signature.from_base64(str(found))
        Ed25519PublicKey.from_base64(key).verify_signature(canonical(unsigned(value)), signed)
    except (SignatureException, ValueError, TypeError, RecursionError):
        return False
    return True


def is_public_key(value: object) -> bool:
    """Whether a text is an Ed25519 key."""
    try:
        Ed25519PublicKey.from_base64(str(value))
    except ValueError:
        return False
    return isinstance(value, str)


def _key(seed: bytes) -> Any:
    # Lazy: 1 MB and 12 ms for what is wanted at a first start only.
    from Crypto.PublicKey import ECC  # noqa: PLC0415

    return ECC.construct(curve="Ed25519", seed=seed)
