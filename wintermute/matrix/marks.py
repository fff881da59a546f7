"""The mark in everything we say: only we can make it, and it shows what was answered or said.

It stands in the content under `dev.wintermute.outbox`, in an encrypted room also in clear beside the
ciphertext, so that we know our own words again without their session, from another device, and
when our data folder went back to an earlier copy. Its key outlives devices and identities.

It reveals nothing but how many parts there are: whatever it names is hashed with the key. A
reaction carries none, as its event is in clear and its relation says it all.

What somebody else redacts loses its mark. It counts as the newest thing owed before it that nothing
else of ours settles (see `settled`): better an answer missing that somebody deleted than one said
twice. What we redact ourselves was no answer: a draft, an edit, a notice of a wait (X-055).
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
from wintermute.matrix.inbox import HEAD_MOST, OUTBOX_KEY, is_marked_by
from wintermute.matrix.kept_login import load
from wintermute.matrix.signing import FILE as SEEDS
from wintermute.matrix.signing import MARKS, key_stores, load_seeds, unpadded, write_private
from wintermute.messages import Json, mapping

log = logging.getLogger(__name__)

KEY_BYTES = 32
SEEDS_LOST = (
    "restore it from a backup; without one, run `wintermute matrix reset-crypto --identity`"
)
MARKS_LOST = (
    "restore it from a backup; otherwise the next start makes a new key, and the bot no longer"
    " recognises what it said before"
)
STORE_LOST = "restore it from a backup; without one, run `wintermute matrix reset-crypto`"
MOST_PARTS = 10_000
WHAT_TO_DO = (
    "restore it from a backup; or move it aside and run `wintermute matrix reset-crypto`: then"
    " the bot is a new device, and no longer recognises what it said before"
)


@dataclass(frozen=True, slots=True)
class Mark:
    """What we wrote into an event: part `n` of `of`, counted from 0, of what `tag` stands for.

    `final`: not a draft that another text replaces, which settles nothing.
    """

    txn_id: str
    tag: str
    n: int
    of: int
    final: bool = True


@dataclass(frozen=True, slots=True)
class Owed:
    """Something to be answered or said in a room, since `at`; `tag` as in the mark of what does so."""

    at: int
    tag: str


class Marks:
    """Makes marks and knows them again. One key, one account."""

    def __init__(self, key: bytes, user_id: str) -> None:
        self._key = key
        self._user_id = user_id

    @property
    def secret(self) -> str:
        """The key as its file has it: what must not be seen in any log."""
        return unpadded(self._key)

    @property
    def installation(self) -> str:
        """The name of whoever has this key, which reveals nothing of it."""
        return self._mac("installation", self._user_id)

    def tag(self, room_id: str, purpose: Purpose, cause: str) -> str:
        """What stands in a mark for the answer to an event, or for what a task says at its time."""
        return self._mac("tag", room_id, purpose, cause)

    def make(self, room_id: str, mark: Mark) -> Json:
        """A mark as it stands in an event's content."""
        return {
            "by": self._user_id,
            "id": mark.txn_id,
            "tag": mark.tag,
            "n": mark.n,
            "m": mark.of,
            "final": mark.final,
            "mac": self._sign(room_id, mark),
        }

    def read(self, room_id: str, event: Json) -> Mark | None:
        """The mark of an event of this room; None when it has none that we made for it."""
        content = mapping(event.get("content"))
        if event.get("sender") != self._user_id or not is_marked_by(content, self._user_id):
            return None
        found = mapping(content.get(OUTBOX_KEY))
        mark, mac = _shaped(found), found.get("mac")
        if mark is None or not isinstance(mac, str) or not mac.isascii():
            return None
        return mark if hmac.compare_digest(mac, self._sign(room_id, mark)) else None

    def _sign(self, room_id: str, mark: Mark) -> str:
        part = (mark.txn_id, mark.tag, mark.n, mark.of, mark.final)
        return self._mac("mark", room_id, self._user_id, *part)

    def _mac(self, *fields: str | int) -> str:
        text = json.dumps(fields).encode()  # in ASCII, and no two lists are written the same
        return unpadded(hmac.new(self._key, text, hashlib.sha256).digest())


def _shaped(found: Json) -> Mark | None:
    """The fields of a mark if each is of its type and size."""
    txn_id, tag, final = found.get("id"), found.get("tag"), found.get("final")
    n, of = found.get("n"), found.get("m")
    if not (isinstance(txn_id, str) and isinstance(tag, str) and isinstance(final, bool)):
        return None
    if type(n) is not int or type(of) is not int or not 0 <= n < of <= MOST_PARTS:
        return None
    if len(txn_id) > HEAD_MOST or len(tag) > HEAD_MOST:
        return None
    return Mark(txn_id, tag, n, of, final)


def settled(owed: Sequence[Owed], said: Iterable[tuple[int, Mark | None]]) -> set[str]:
    """The tags of what was answered or said, by a room's events of ours with their places.

    None is a redacted one. One part is enough: what is half said is not said once more. `at` of
    `owed` and the places count the same, be it milliseconds or positions.
    """
    events = sorted(said, key=lambda each: each[0])
    found = {mark.tag for _, mark in events if mark is not None and mark.final}
    for place in (at for at, mark in events if mark is None):
        open_ = [each for each in owed if each.at < place and each.tag not in found]
        if open_:
            found.add(max(open_, key=lambda each: each.at).tag)
    return found & {each.tag for each in owed}


def load_marks(folder: Path, user_id: str) -> Marks:
    """The marks of this data folder, with a new key when it has none yet.

    Raises: ConfigurationError for a file that is not what we wrote; StorageBlocked.
    """
    file = folder / MARKS
    if not file.exists():
        if key_stores(folder):
            log.warning("marks key made anew, %s is missing: %s", file, MARKS_LOST)
        write_private(folder, MARKS, unpadded(secrets.token_bytes(KEY_BYTES)))
    try:
        key = _decoded(file.read_text("ascii"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{file} cannot be used ({type(error).__name__}): {WHAT_TO_DO}"
        ) from error
    return Marks(key, user_id)


def file_problems(folder: Path, user_id: str) -> list[str]:
    """Tell what is wrong with the files of our login: empty, cut, or missing beside the others (F-055)."""
    found, stores = list[str](), key_stores(folder)
    looks: tuple[Callable[[], object], ...] = (
        lambda: load(folder),
        lambda: load_seeds(folder, user_id),
        lambda: load_marks(folder, user_id) if (folder / MARKS).exists() else None,
    )
    for look in looks:
        try:
            look()
        except ConfigurationError as problem:
            found.append(str(problem))
    for name, what_to_do in ((SEEDS, SEEDS_LOST), (MARKS, MARKS_LOST)):
        if stores and not (folder / name).exists():
            found.append(f"{folder / name} is missing: {what_to_do}")
    empty = [f"{store} is empty: {STORE_LOST}" for store in stores if not store.stat().st_size]
    return found + empty


def secret_mark_key(folder: Path) -> tuple[str, ...]:
    """What must not be seen in any log; nothing of a file that cannot be read."""
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
