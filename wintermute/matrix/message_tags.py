"""Tags in our own messages: only we can make them, and they show what a message answers.

A tag is in the content under `dev.wintermute.outbox`, in an encrypted room also outside the
ciphertext. So we recognise our messages without their session, from another device and after a
restore from a backup. Its key outlives devices and identities.

It reveals only the number of parts: everything else is hashed with the key. A reaction has no tag:
its event is unencrypted, and its relation is unique.

A message that somebody else redacts loses its tag. It counts as the answer to the newest open
request before it (see `answered_requests`): a missing answer that somebody deleted is better than a
duplicate. Our own redactions do not count: they remove drafts, edits and notices (X-055).
"""

import base64
import binascii
import hashlib
import hmac
import json
import logging
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from wintermute.errors import ConfigurationError
from wintermute.mailbox.outbox import Purpose
from wintermute.matrix.inbox import HEAD_MOST, OUTBOX_KEY, has_tag_of
from wintermute.matrix.kept_login import load
from wintermute.matrix.signing import FILE as SEEDS
from wintermute.matrix.signing import MARKS, key_stores, load_seeds, unpadded, write_private
from wintermute.messages import Json, mapping

log = logging.getLogger(__name__)

KEY_BYTES = 32
SEEDS_LOST = (
    "restore it from a backup; without one, run `wintermute matrix reset-crypto --identity`"
)
TAG_KEY_LOST = (
    "restore it from a backup; otherwise the next start makes a new key, and the bot no longer"
    " recognises its earlier messages"
)
STORE_LOST = "restore it from a backup; without one, run `wintermute matrix reset-crypto`"
MOST_PARTS = 10_000
WHAT_TO_DO = (
    "restore it from a backup; or move it aside and run `wintermute matrix reset-crypto`: then"
    " the bot is a new device, and no longer recognises its earlier messages"
)


@dataclass(frozen=True, slots=True)
class MessageTag:
    """The tag of an event: part `n` of `of`, from 0, of a message.

    `tag`: the hash of its cause (`MessageTags.cause_hash`). `final`: False for a draft, which
    answers nothing yet.
    """

    txn_id: str
    tag: str
    n: int
    of: int
    final: bool = True


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """A request that is open since `at`, with the cause hash of its answer as `tag`."""

    at: int
    tag: str


class MessageTags:
    """Creates and recognises tags, with one key for one account."""

    def __init__(self, key: bytes, user_id: str) -> None:
        self._key = key
        self._user_id = user_id

    @property
    def secret(self) -> str:
        """The key as in its file, which must not appear in logs."""
        return unpadded(self._key)

    @property
    def installation(self) -> str:
        """The name of the installation with this key; it does not reveal the key."""
        return self._mac("installation", self._user_id)

    def cause_hash(self, room_id: str, purpose: Purpose, cause: str) -> str:
        """Return the hash of a message's cause: an event to answer, or a due moment of a task."""
        return self._mac("tag", room_id, purpose, cause)

    def make(self, room_id: str, tag: MessageTag) -> Json:
        """Return a tag as it is stored in an event's content."""
        return {
            "by": self._user_id,
            "id": tag.txn_id,
            "tag": tag.tag,
            "n": tag.n,
            "m": tag.of,
            "final": tag.final,
            "mac": self._sign(room_id, tag),
        }

    def read(self, room_id: str, event: Json) -> MessageTag | None:
        """Return the tag of an event of this room; None if it has none that we made for it."""
        content = mapping(event.get("content"))
        if event.get("sender") != self._user_id or not has_tag_of(content, self._user_id):
            return None
        stored = mapping(content.get(OUTBOX_KEY))
        tag, mac = _validated(stored), stored.get("mac")
        if tag is None or not isinstance(mac, str) or not mac.isascii():
            return None
        return tag if hmac.compare_digest(mac, self._sign(room_id, tag)) else None

    def _sign(self, room_id: str, tag: MessageTag) -> str:
        part = (tag.txn_id, tag.tag, tag.n, tag.of, tag.final)
        return self._mac("mark", room_id, self._user_id, *part)

    def _mac(self, *fields: str | int) -> str:
        text = json.dumps(fields).encode()  # ASCII, and unique for each list
        return unpadded(hmac.new(self._key, text, hashlib.sha256).digest())


def _validated(stored: Json) -> MessageTag | None:
    """Return a tag if each field has the right type and size."""
    txn_id, cause_hash, final = stored.get("id"), stored.get("tag"), stored.get("final")
    n, of = stored.get("n"), stored.get("m")
    if not (isinstance(txn_id, str) and isinstance(cause_hash, str) and isinstance(final, bool)):
        return None
    if type(n) is not int or type(of) is not int or not 0 <= n < of <= MOST_PARTS:
        return None
    if len(txn_id) > HEAD_MOST or len(cause_hash) > HEAD_MOST:
        return None
    return MessageTag(txn_id, cause_hash, n, of, final)


def answered_requests(
    open_requests: Sequence[OpenRequest], sent: Iterable[tuple[int, MessageTag | None]]
) -> set[str]:
    """Return the cause hashes of answered requests, from our own events in a room by position.

    None is the tag of a redacted event. One part is enough: a partly sent answer is not repeated.
    `at` and the positions use the same unit, milliseconds or indexes.
    """
    events = sorted(sent, key=lambda event: event[0])
    answered = {tag.tag for _, tag in events if tag is not None and tag.final}
    for redacted_at in (at for at, tag in events if tag is None):
        before = [it for it in open_requests if it.at < redacted_at and it.tag not in answered]
        if before:
            answered.add(max(before, key=lambda request: request.at).tag)
    return answered & {request.tag for request in open_requests}


def load_message_tags(folder: Path, user_id: str) -> MessageTags:
    """Load the tag key of this data folder; a new one is made if there is none.

    Raises: ConfigurationError for an invalid file; StorageBlocked.
    """
    file = folder / MARKS
    if not file.exists():
        if key_stores(folder):
            log.warning("new key for message tags, %s is missing: %s", file, TAG_KEY_LOST)
        write_private(folder, MARKS, unpadded(secrets.token_bytes(KEY_BYTES)))
    try:
        key = _decoded(file.read_text("ascii"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{file} cannot be used ({type(error).__name__}): {WHAT_TO_DO}"
        ) from error
    return MessageTags(key, user_id)


def file_problems(folder: Path, user_id: str) -> list[str]:
    """List the problems of our login's files: empty, cut, or missing beside the others (F-055)."""
    found, stores = list[str](), key_stores(folder)
    checks: tuple[Callable[[], object], ...] = (
        lambda: load(folder),
        lambda: load_seeds(folder, user_id),
        lambda: load_message_tags(folder, user_id) if (folder / MARKS).exists() else None,
    )
    for check in checks:
        try:
            check()
        except ConfigurationError as problem:
            found.append(str(problem))
    for name, what_to_do in ((SEEDS, SEEDS_LOST), (MARKS, TAG_KEY_LOST)):
        if stores and not (folder / name).exists():
            found.append(f"{folder / name} is missing: {what_to_do}")
    empty = [f"{store} is empty: {STORE_LOST}" for store in stores if not store.stat().st_size]
    return found + empty


def secret_tag_key(folder: Path) -> tuple[str, ...]:
    """Return the key, which must not appear in logs; empty if its file cannot be read."""
    try:
        text = (folder / MARKS).read_text("ascii")
        _decoded(text)
    except (OSError, ValueError):
        return ()
    return (text.strip(),)


def _decoded(text: str) -> bytes:
    key = base64.b64decode(text.strip() + "=", validate=True)
    if len(key) != KEY_BYTES:
        raise binascii.Error("not a key of this length")
    return key
