"""The identity of the demo's person in secret storage, so that a graphical client can take it over.

Matrix specification, client-server API, "Secrets". A client asks for the recovery key at its first
login; with it, it signs itself, and shows no red shields.
"""

import base64
import hashlib
import hmac
import secrets
from collections.abc import Mapping

from Crypto.Cipher import AES
from Crypto.Hash import SHA256
from Crypto.Protocol.KDF import HKDF

from wintermute.messages import Json

KEY_BYTES = 32
KEY_ID = "demo"
ALGORITHM = "m.secret_storage.v1.aes-hmac-sha2"
ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
PREFIX = b"\x8b\x01"


def secret_storage(key: bytes, kept: Mapping[str, str]) -> dict[str, Json]:
    """Account data by type that keeps secrets, by their names, under a key of 32 bytes."""
    proof = _sealed(key, "", bytes(KEY_BYTES))
    described = {"algorithm": ALGORITHM, "name": "Wintermute demo"}
    found: dict[str, Json] = {
        f"m.secret_storage.key.{KEY_ID}": {
            **described,
            "iv": proof["iv"],
            "mac": proof["mac"],
        },
        "m.secret_storage.default_key": {"key": KEY_ID},
    }
    for name, secret in kept.items():
        found[name] = {"encrypted": {KEY_ID: _sealed(key, name, secret.encode())}}
    return found


def recovery_key(key: bytes) -> str:
    """The key as a person types it: base58 in groups of four."""
    whole = PREFIX + key
    parity = 0
    for byte in whole:
        parity ^= byte
    number, digits = int.from_bytes(whole + bytes([parity]), "big"), ""
    while number:
        number, digit = divmod(number, len(ALPHABET))
        digits = ALPHABET[digit] + digits
    return " ".join(digits[n : n + 4] for n in range(0, len(digits), 4))


def _sealed(key: bytes, name: str, secret: bytes) -> Json:
    derived = HKDF(key, 2 * KEY_BYTES, bytes(KEY_BYTES), SHA256, context=name.encode())
    assert isinstance(derived, bytes)
    vector = bytearray(secrets.token_bytes(16))
    vector[8] &= 0x7F  # as the specification has it, for ciphers that count in 64 bits
    cipher = AES.new(derived[:KEY_BYTES], AES.MODE_CTR, nonce=b"", initial_value=bytes(vector))
    sealed = cipher.encrypt(secret)
    mac = hmac.new(derived[KEY_BYTES:], sealed, hashlib.sha256).digest()
    texts = (base64.b64encode(part).decode() for part in (bytes(vector), sealed, mac))
    return dict(zip(("iv", "ciphertext", "mac"), texts, strict=True))
