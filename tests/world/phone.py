"""A person's side of a verification by emoji, written from the specification and without vodozemac."""

import base64
import hashlib
import hmac
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from canonicaljson import encode_canonical_json
from Crypto.Hash import SHA256
from Crypto.Protocol.DH import import_x25519_public_key, key_agreement
from Crypto.Protocol.KDF import HKDF
from Crypto.PublicKey import ECC

from wintermute.matrix.sas import (
    EMOJIS,
    OutgoingMessages,
    Party,
    answer_request,
    ask,
    ask_devices,
    ask_in_room,
    receive,
)
from wintermute.messages import Json

NEW, OLD = "hkdf-hmac-sha256.v2", "hkdf-hmac-sha256"
NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
OFFER: Json = {
    "method": "m.sas.v1",
    "hashes": ["sha256"],
    "key_agreement_protocols": ["curve25519", "curve25519-hkdf-sha256"],
    "message_authentication_codes": [OLD, NEW],
    "short_authentication_string": ["decimal", "emoji", "m.other"],
}
CHOICE: Json = {
    "method": "m.sas.v1",
    "hash": "sha256",
    "key_agreement_protocol": "curve25519-hkdf-sha256",
    "message_authentication_code": NEW,
    "short_authentication_string": ["decimal", "emoji"],
}


def unpadded(raw: bytes) -> str:
    return base64.b64encode(raw).decode().rstrip("=")


def overwritten(mac: bytes) -> str:
    """How libolm wrote base64: over the bytes that it had yet to read (MSC3783)."""
    buffer = bytearray(mac) + bytes(12)
    for n in range(11):
        group = buffer[3 * n : min(3 * n + 3, len(mac))]
        text = unpadded(bytes(group)).encode()
        buffer[4 * n : 4 * n + len(text)] = text
    return buffer[:43].decode()


def some_key(name: str) -> str:
    return unpadded(hashlib.sha256(name.encode()).digest())


BOT = Party("@bot:here", "BOTDEVICE", some_key("bot device"), some_key("bot master"))


class Phone:
    """A person's client. It sends its MAC first: its person has compared. With an old `mac` it knows no other."""

    def __init__(self, asks: bool, room: str, user: str = "@ann:here", mac: str = NEW) -> None:
        self.user, self.device, self.bot = user, "ANNSPHONE", BOT
        self.master = some_key("ann master")
        self.keys = {
            f"ed25519:{self.device}": some_key("ann"),
            f"ed25519:{self.master}": self.master,
        }
        self.room, self.transaction, self.mac = room, "$asked", mac
        self.private = ECC.generate(curve="Curve25519")
        self.public = unpadded(self.private.public_key().export_key(format="raw"))
        self.expects = {"ready"} if asks else {"request"}
        self.start: Json = {}
        self.started = self.verified = False
        self.commitment = self.code = ""
        self.shared = b""
        self.emojis: tuple[tuple[str, str], ...] = ()
        self.decimals: tuple[int, ...] = ()

    def message(self, kind: str, **content: Any) -> tuple[str, Json]:
        relation = {"rel_type": "m.reference", "event_id": self.transaction}
        where = {"m.relates_to": relation} if self.room else {"transaction_id": self.transaction}
        return kind, {**content, **where}

    def request(self) -> Json:
        kind = {"msgtype": "m.key.verification.request", "body": "?", "to": self.bot.user_id}
        where = kind if self.room else {"transaction_id": self.transaction, "timestamp": 1}
        return {"from_device": self.device, "methods": ["m.qr_code.show.v1", "m.sas.v1"], **where}

    def hear(self, kind: str, content: Json) -> OutgoingMessages:
        if self.code or kind not in self.expects:
            return self.end("m.unexpected_message")
        self.expects = {"request": {"start"}, "start": {"key"}, "ready": {"accept"}}.get(
            kind,
            {"accept": {"key"}, "key": set(), "mac": {"done"}, "done": set[str]()}.get(kind, set()),
        )
        step: Callable[[Json], OutgoingMessages] = getattr(self, f"_{kind}")
        return step(content)

    def end(self, code: str) -> OutgoingMessages:
        if self.code:
            return ()
        self.code, self.expects = code, set()
        return (self.message("cancel", code=code, reason="no"),)

    def _request(self, content: Json) -> OutgoingMessages:
        assert "m.sas.v1" in content["methods"]
        return (self.message("ready", from_device=self.device, methods=["m.sas.v1"]),)

    def own_start(self) -> tuple[str, Json]:
        self.started = True
        macs = {"message_authentication_codes": [OLD]} if self.mac == OLD else {}
        message = self.message("start", from_device=self.device, **(OFFER | macs))
        self.start = message[1]
        return message

    def _ready(self, content: Json) -> OutgoingMessages:
        assert content["from_device"] == self.bot.device_id
        return (self.own_start(),)

    def _start(self, content: Json) -> OutgoingMessages:
        assert content["message_authentication_codes"] == [NEW, OLD]
        self.start, self.started = content, False
        return (self.message("accept", commitment=self.promise(self.public), **self.choice()),)

    def choice(self) -> Json:
        return CHOICE | {"message_authentication_code": self.mac}

    def _accept(self, content: Json) -> OutgoingMessages:
        self.mac = content["message_authentication_code"]
        assert self.mac in self.start["message_authentication_codes"]
        assert (
            content.items()
            >= (self.choice() | {"short_authentication_string": ["emoji", "decimal"]}).items()
        )
        self.commitment = content["commitment"]
        return (self.message("key", key=self.public),)

    def promise(self, key: str) -> str:
        return unpadded(hashlib.sha256(key.encode() + encode_canonical_json(self.start)).digest())

    def _key(self, content: Json) -> OutgoingMessages:
        key = content["key"]
        if self.started and self.promise(key) != self.commitment:
            return self.end("m.mismatched_commitment")
        theirs = import_x25519_public_key(base64.b64decode(f"{key}="))
        self.shared = key_agreement(static_priv=self.private, static_pub=theirs, kdf=lambda z: z)
        bot = f"{self.bot.user_id}|{self.bot.device_id}|{key}"
        ann = f"{self.user}|{self.device}|{self.public}"
        order = f"{ann}|{bot}" if self.started else f"{bot}|{ann}"
        short = self.derived(f"MATRIX_KEY_VERIFICATION_SAS|{order}|{self.transaction}", 6)
        bits = f"{int.from_bytes(short, 'big'):048b}"
        self.emojis = tuple(EMOJIS[int(bits[at : at + 6], 2)] for at in range(0, 42, 6))
        self.decimals = tuple(1000 + int(bits[at : at + 13], 2) for at in range(0, 39, 13))
        return () if self.started else (self.message("key", key=self.public),)

    def derived(self, info: str, length: int) -> bytes:
        found = HKDF(self.shared, length, b"", SHA256, 1, info.encode())
        assert isinstance(found, bytes)
        return found

    def tag(self, text: str, sender: tuple[str, str], to: tuple[str, str], name: str) -> str:
        info = f"MATRIX_KEY_VERIFICATION_MAC{''.join((*sender, *to))}{self.transaction}{name}"
        mac = hmac.digest(self.derived(info, 32), text.encode(), "sha256")
        return overwritten(mac) if self.mac == OLD else unpadded(mac)

    def own_tag(self, text: str, name: str) -> str:
        bot = (self.bot.user_id, self.bot.device_id)
        return self.tag(text, (self.user, self.device), bot, name)

    def compare(self, shown: tuple[tuple[str, str], ...]) -> OutgoingMessages:
        """Its person looks at both, once both are there."""
        if shown != self.emojis:
            return self.end("m.mismatched_sas")
        self.expects = {"mac"}
        return (self.mac_of(self.keys),)

    def mac_of(self, keys: dict[str, str]) -> tuple[str, Json]:
        macs = {name: self.own_tag(key, name) for name, key in keys.items()}
        return self.message("mac", keys=self.own_tag(",".join(sorted(keys)), "KEY_IDS"), mac=macs)

    def _mac(self, content: Json) -> OutgoingMessages:
        bot = (self.bot.user_id, self.bot.device_id)
        ids = {f"ed25519:{self.bot.device_id}": self.bot.device_key}
        if self.bot.master_key:
            ids[f"ed25519:{self.bot.master_key}"] = self.bot.master_key
        macs = {
            name: self.tag(key, bot, (self.user, self.device), name) for name, key in ids.items()
        }
        keys = self.tag(",".join(sorted(ids)), bot, (self.user, self.device), "KEY_IDS")
        if content["keys"] != keys or content["mac"] != macs:
            return self.end("m.key_mismatch")
        self.verified = True
        return (self.message("done"),)

    def _done(self, content: Json) -> OutgoingMessages:
        return ()


class Talk:
    """A bot and a phone with what is on its way between them."""

    def __init__(
        self, asks: str, room: str = "!room", user: str = "@ann:here", mac: str = NEW
    ) -> None:
        self.phone = Phone(asks == "phone", room, user, mac)
        self.to_bot: list[tuple[str, Json]] = []
        self.to_phone: list[tuple[str, Json]] = []
        self.said: list[str] = []
        self.compared = False
        if asks == "phone":
            args = ("$asked", room, BOT, user, self.phone.request(), NOW)
            self.bot, out = answer_request(*args)
            self.say(out)
        else:
            self.bot = ask("$asked", room, BOT, user, NOW)
            content = ask_in_room(BOT, user) if room else ask_devices(BOT, "$asked", NOW)
            self.to_phone.append(("request", content))

    def say(self, out: OutgoingMessages) -> None:
        self.to_phone += out
        self.said += [kind for kind, _ in out]

    def deliver(self, kind: str, content: object) -> OutgoingMessages:
        self.bot, out = receive(self.bot, kind, content, self.phone.keys)
        self.say(out)
        return out

    def settle(self) -> None:
        """Let the phone hear all and its person compare; what it answers is on its way."""
        while self.to_phone:
            self.to_bot += self.phone.hear(*self.to_phone.pop(0))
        if self.phone.emojis and self.bot.emojis and not self.compared:
            self.compared = True
            self.to_bot += self.phone.compare(self.bot.emojis)

    def until(self, phase: str) -> "Talk":
        self.settle()
        while self.bot.phase != phase:
            self.deliver(*self.to_bot.pop(0))
            self.settle()
        return self
