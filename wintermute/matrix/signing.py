"""The three keys of our cross-signing identity, in one file that outlives every device (notes/matrix §4).

They sign JSON as in the Matrix specification (appendices, "Signing JSON"). The file has mode 0600.
"""

import base64
import hashlib
import json
import secrets
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from vodozemac import Ed25519PublicKey, Ed25519Signature, SignatureException

from wintermute.clock import Clock
from wintermute.config.lock import NO_ROOM
from wintermute.errors import ConfigurationError, DiskFull, StorageBlocked
from wintermute.files import replace, sync_folder_of
from wintermute.messages import Json, mapping

SEED_BYTES = 32
ED25519 = "ed25519:"
FILE = "cross-signing.json"
NEXT = "cross-signing.next.json"
"""The file of a new identity that the homeserver has not accepted yet."""
MARKS = "marks.key"
"""The file with the key of our message tags (see `marks`)."""
USAGES = ("master", "self_signing", "user_signing")
OTHERS_MAY_READ = 0o077
WHAT_TO_DO = (
    "restore it from a backup; or move it aside, run `wintermute matrix reset-crypto --identity` "
    "for a new identity, and let everybody verify the bot again"
)


def unsigned(value: Json) -> Json:
    """Return an object without its signatures and the fields that they do not cover."""
    return {key: value[key] for key in value if key not in ("signatures", "unsigned")}


def canonical(value: Json) -> bytes:
    """Return the canonical JSON of an object (Matrix spec, appendices, "Canonical JSON")."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode()


def unpadded(raw: bytes) -> str:
    """Return base64 without `=`."""
    return base64.b64encode(raw).decode().rstrip("=")


def digest(raw: bytes) -> str:
    """Return the SHA-256 in unpadded base64."""
    return unpadded(hashlib.sha256(raw).digest())


def public_key(seed: bytes) -> str:
    """Return the public key of a seed, in unpadded base64."""
    return unpadded(_key(seed).public_key().export_key(format="raw"))


def signature(value: Json, seed: bytes) -> str:
    """Sign an object with a seed; return the signature in unpadded base64."""
    from Crypto.Signature import eddsa  # noqa: PLC0415  see _key

    return unpadded(eddsa.new(_key(seed), "rfc8032").sign(canonical(unsigned(value))))


def is_signed(value: object, user_id: str, key: str) -> bool:
    """Check if a user's key signed an object."""
    found = mapping(value)
    by_user = mapping(mapping(found.get("signatures")).get(user_id))
    try:
        signed = Ed25519Signature.from_base64(str(by_user.get(f"{ED25519}{key}")))
        Ed25519PublicKey.from_base64(key).verify_signature(canonical(unsigned(found)), signed)
    except (SignatureException, ValueError, TypeError, RecursionError):
        return False
    return True


def is_key(kind: Any, value: object) -> bool:
    """Check if a text is a valid key or signature of this vodozemac class."""
    try:
        kind.from_base64(value)
    except (ValueError, TypeError):
        return False
    return True


def _key(seed: bytes) -> Any:
    # Lazy: 1 MB and 12 ms, needed only at the first start.
    from Crypto.PublicKey import ECC  # noqa: PLC0415

    return ECC.construct(curve="Ed25519", seed=seed)


@dataclass(frozen=True, slots=True)
class Pair:
    """An Ed25519 key pair: the secret seed of 32 bytes in base64, and the public key."""

    seed: str = field(repr=False)
    public: str

    def sign(self, value: Json, user_id: str) -> Json:
        """Return the object with one more signature."""
        own = {f"{ED25519}{self.public}": signature(value, base64.b64decode(self.seed))}
        return with_signature(value, user_id, own)


@dataclass(frozen=True, slots=True)
class Seeds:
    """Our identity: `master` signs the other keys, `self_signing` our devices, `user_signing` nothing."""

    user_id: str
    master: Pair
    self_signing: Pair
    user_signing: Pair

    @property
    def pairs(self) -> tuple[Pair, Pair, Pair]:
        """The key pairs in the order of USAGES."""
        return self.master, self.self_signing, self.user_signing


def with_signature(value: Json, user_id: str, signed: Json) -> Json:
    """Return an object with a user's signatures added."""
    signatures = value.get("signatures", {})
    return {
        **value,
        "signatures": {**signatures, user_id: {**signatures.get(user_id, {}), **signed}},
    }


def draw() -> tuple[str, ...]:
    """Return random seeds for an identity that may be made later."""
    return tuple(base64.b64encode(secrets.token_bytes(SEED_BYTES)).decode() for _ in USAGES)


def new_seeds(user_id: str, drawn: tuple[str, ...] = ()) -> Seeds:
    """Create a new identity."""
    pairs = (Pair(seed, public_key(base64.b64decode(seed))) for seed in drawn or draw())
    return Seeds(user_id, *pairs)


def load_seeds(
    folder: Path, user_id: str, name: str = FILE, *, proven: bool = False
) -> Seeds | None:
    """Load the stored identity; None if there is none.

    `proven`: check that each seed makes its public key, which is slower.

    Raises: ConfigurationError for a file that we did not write for this account.
    """
    file = folder / name
    try:
        found = json.loads(file.read_text("utf-8"))
        pairs = (Pair(**found[usage]) for usage in USAGES)
        seeds = Seeds(found["user_id"], *(_checked(pair, proven=proven) for pair in pairs))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ConfigurationError(
            f"{file} cannot be used ({type(error).__name__}): {WHAT_TO_DO}"
        ) from error
    if seeds.user_id != user_id:
        raise ConfigurationError(
            f"{file} is the identity of another account, not of {user_id}: {WHAT_TO_DO}"
        )
    return seeds


def _checked(pair: Pair, *, proven: bool) -> Pair:
    seed = base64.b64decode(pair.seed, validate=True)
    if len(seed) != SEED_BYTES or not is_key(Ed25519PublicKey, pair.public):
        raise ValueError("not a key")
    if proven and public_key(seed) != pair.public:
        raise ValueError("not the seed of this key")
    return pair


def next_seeds(folder: Path, user_id: str) -> Seeds | None:
    """Load the identity that replaces ours once the homeserver has accepted it."""
    return load_seeds(folder, user_id, NEXT, proven=True)


def keep_seeds(folder: Path, seeds: Seeds, name: str = FILE) -> None:
    """Write an identity; when this returns, it survives a power cut."""
    write_private(folder, name, json.dumps(asdict(seeds)))


def write_private(folder: Path, name: str, text: str) -> None:
    """Write a file that only we can read, atomically; it survives a power cut.

    Raises: StorageBlocked.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace(folder / name, text.encode(), mode=0o600)
    except OSError as error:
        cannot = f"{folder / name} cannot be written ({error.strerror})"
        if error.errno in NO_ROOM:
            raise DiskFull(f"{cannot}: make room on its disk") from error
        raise StorageBlocked(f"{cannot}: make it writable") from error


def replace_seeds(folder: Path, clock: Clock) -> None:
    """Make the accepted next identity ours; the old one is kept under a name with the date."""
    old = folder / FILE
    if old.exists():
        date = clock.now().strftime("%Y-%m-%dT%H%M%S")
        aside = folder / f"{FILE}.until-{date}"
        aside.unlink(missing_ok=True)
        aside.hardlink_to(old)  # so that the file always exists
    (folder / NEXT).replace(old)
    sync_folder_of(old)


def key_stores(folder: Path, ending: str = "") -> list[Path]:
    """List the key stores of all our devices; with `.until-*` those that were moved aside."""
    return sorted(folder.glob(f"@*.db{ending}"))


def open_to_others(folder: Path) -> list[Path]:
    """List the files with secrets that other users of this machine can read."""
    files = [folder / name for name in (FILE, NEXT, MARKS)]
    return [file for file in files if file.is_file() and file.stat().st_mode & OTHERS_MAY_READ]


def close_to_others(folder: Path) -> bool:
    """Remove the access of others to these files; return True if they had any."""
    seen = open_to_others(folder)
    for file in seen:
        file.chmod(0o600)
    return bool(seen)


def secret_seeds(folder: Path) -> tuple[str, ...]:
    """Return the seeds, which must not appear in logs; empty if their file cannot be read."""
    found: list[str] = []
    for name in (FILE, NEXT):
        try:
            kept = json.loads((folder / name).read_text("utf-8"))
            found += [str(kept[usage]["seed"]) for usage in USAGES]
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            continue
    return tuple(found)
