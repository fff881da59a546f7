"""Login, its renewal, logout, and the checks of `wintermute check`. The login is one file, 0600."""

import asyncio
import logging
import secrets
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from peewee import PeeweeException, SqliteDatabase

from wintermute.clock import Clock
from wintermute.config.schema import Matrix
from wintermute.errors import (
    ConfigurationError,
    HomeserverUnavailable,
    LoginEnded,
    LoginExpired,
    LoginRefused,
    SendRefused,
    WintermuteError,
)
from wintermute.health.health import StatusLine
from wintermute.matrix.cross_signing import NOT_SERVED, are_others, foreign_text, served_key
from wintermute.matrix.discovery import anonymous, find
from wintermute.matrix.http import LOGIN_EXPIRED, call, path
from wintermute.matrix.kept_login import FILE, Session, load, save, store_file
from wintermute.matrix.key_store import blocked
from wintermute.matrix.people import NOBODY, cross_signing_key, fingerprint, identities
from wintermute.matrix.signing import (
    USAGES,
    is_signed,
    key_stores,
    load_seeds,
    open_to_others,
    write_private,
)
from wintermute.messages import Json, mapping

PROBE = "session.room"
ENOUGH = 1 << 14
NIO_STORE_VERSION = 2
NO_KEYS = "it has no keys"
"""The problem of a key store that lost its content, or that is being created."""
log = logging.getLogger(__name__)
EMPTY = (
    "{} is empty, but the homeserver has keys of this device: restore the Matrix folder from a"
    " backup, or run `wintermute matrix reset-crypto`, which moves it aside for a new device"
)
RECENT = timedelta(hours=1)
ANOTHER_BOT = (
    "another device called {} was active within the hour: two bots on one account answer twice"
    " -> give each bot an account of its own, or log that device out"
)
NEW_TOKEN = "a new matrix.access_token, of a new device"
SIGNED_OUT = (
    "somebody has signed out the bot's device {device}: its keys are gone at the homeserver. Run "
    "`wintermute matrix logout`, see that matrix.password (or a new access_token) is set, and "
    "start again"
)


def store_problem(file: Path, *, mode: Literal["ro", "rw"]) -> str | None:
    """Return the problem of a key store's file; None if it can be read.

    After a kill during a write the next `rw` open completes or undoes it; `ro` cannot tell.
    """
    database = SqliteDatabase(f"{file.resolve().as_uri()}?mode={mode}", uri=True)
    try:
        connection = database.connection()
        try:
            [result] = connection.execute("PRAGMA quick_check(1)").fetchone()
            if (
                result == "ok"
                and _highest(connection, "storeversion", "version") > NIO_STORE_VERSION
            ):
                return "a newer version wrote it: install that again"
            if result == "ok" and not _highest(connection, "accounts", "id"):
                return NO_KEYS
        except connection.OperationalError as error:
            unfinished = mode == "ro" and file.with_name(f"{file.name}-journal").exists()
            return None if unfinished else str(error)
        except connection.DatabaseError as error:
            return str(error)
        return None if result == "ok" else str(result)
    except PeeweeException as error:
        return str(error)
    finally:
        database.close()


def _has_keys_here(file: Path) -> bool:
    return file.exists() and store_problem(file, mode="ro") != NO_KEYS


def _highest(connection: Any, table: str, column: str) -> int:
    """Return the highest number in a table of nio; 0 if it is empty or missing."""
    named = "SELECT 1 FROM sqlite_schema WHERE name = ?"
    if connection.execute(named, (table,)).fetchone() is None:
        return 0
    row = connection.execute(f"SELECT max({column}) FROM {table}").fetchone()
    return row[0] if isinstance(row[0], int) else 0


async def logged_in(matrix: Matrix, folder: Path) -> Session:
    """Return the stored login, or a new one, which is stored first.

    If the key store is lost, a new device is made, never new keys for the old one (notes §1).

    Raises: LoginRefused, ConfigurationError with what to do, HomeserverUnavailable,
    StorageBlocked.
    """
    stored = load(folder)
    if stored is not None and _is_of(stored, matrix):
        if matrix.encryption == "off" or _has_keys_here(store_file(folder, stored)):
            return stored
        try:
            has_keys = await _has_keys(matrix, stored)
        except (LoginExpired, LoginEnded) as error:
            stored = await renewed(matrix, folder, stored, error)
            has_keys = await _has_keys(matrix, stored)
        if not has_keys:
            return stored  # it has not made keys yet
        if store_file(folder, stored).exists():
            raise ConfigurationError(EMPTY.format(store_file(folder, stored)))
        log.warning("key store lost device=%s", stored.device_id)
        if matrix.password is None:
            ways = await _ways_to_log_in(matrix)
            raise ConfigurationError(
                f"the encryption keys of device {stored.device_id} are gone: set {ways}, so that a new "
                "device can be made"
            )
        session = replace(await _by_password(matrix, folder), keys_lost=True)
    elif matrix.access_token:
        session = await _by_token(matrix, folder, stored)
    else:
        session = await _by_password(matrix, folder)
    if stored is None and key_stores(folder, ".until-*"):  # people may have written meanwhile
        session = replace(session, keys_lost=matrix.encryption != "off")
    save(folder, session)
    return session


async def renewed(
    matrix: Matrix, folder: Path, session: Session, why: LoginRefused, keys: Json | None = None
) -> Session:
    """Get a new token for the same device, which keeps its keys (Matrix spec, "Soft logout").

    Without a soft logout this is allowed only if the homeserver still serves the keys (`keys`, if
    given). Otherwise somebody signed the device out, and it stays so (F-061).

    The login is stored first. Raises: LoginRefused with what to do, HomeserverUnavailable,
    StorageBlocked.
    """
    if matrix.password is None:
        if isinstance(why, LoginEnded):
            raise why
        raise LoginRefused(LOGIN_EXPIRED.format(device=f"device {session.device_id}"))
    fresh = await _by_password(matrix, folder, session.device_id)
    if isinstance(why, LoginEnded) and not await _has_keys(matrix, fresh, keys):
        await end_login(matrix, fresh)
        raise LoginRefused(SIGNED_OUT.format(device=session.device_id))
    session = replace(load(folder) or session, access_token=fresh.access_token)
    save(folder, session)
    log.warning("login renewed device=%s", session.device_id)
    return session


async def successor(matrix: Matrix, folder: Path) -> None:
    """Log in with a new device in place of ours, whose keys the homeserver refuses (F-009).

    Raises: ConfigurationError with what to do, LoginRefused, HomeserverUnavailable,
    StorageBlocked.
    """
    stored = load(folder)
    if stored is None or matrix.password is None:
        raise ConfigurationError(
            "the homeserver takes no new encryption keys of the bot's device: set"
            f" {await _ways_to_log_in(matrix)}, so that a new device can be made"
        )
    fresh = await _by_password(matrix, folder)
    save(folder, replace(fresh, pickle_key=stored.pickle_key, predecessor=stored.device_id))
    log.warning("device replaced old=%s new=%s", stored.device_id, fresh.device_id)
    await end_login(matrix, stored)


async def end_login(matrix: Matrix, session: Session) -> None:
    """Log a device out; a failure is ignored."""
    with suppress(HomeserverUnavailable, SendRefused, LoginRefused):
        async with anonymous(matrix, session.access_token) as nio:
            await call(nio, "POST", path("logout"), {})


def _is_of(session: Session, matrix: Matrix) -> bool:
    token = matrix.access_token.reveal() if matrix.access_token else session.access_token
    return session.user_id == matrix.user_id and session.access_token == token


async def _by_password(matrix: Matrix, folder: Path, device_id: str | None = None) -> Session:
    """Log in on a new device, or again on the given one."""
    # Test the disk first: a token that cannot be stored is lost.
    write_private(folder, PROBE, " " * ENOUGH)
    (folder / PROBE).unlink()
    if matrix.password is None:
        raise ConfigurationError("matrix.password is needed to log in: set it in the configuration")
    body = {
        "type": "m.login.password",
        "identifier": {"type": "m.id.user", "user": matrix.user_id},
        "password": matrix.password.reveal(),
        "initial_device_display_name": matrix.device_name,
    } | ({"device_id": device_id} if device_id else {})
    async with anonymous(matrix) as nio:
        try:
            answer = await call(nio, "POST", path("login"), body)
        except (SendRefused, HomeserverUnavailable) as error:
            if isinstance(error, HomeserverUnavailable) and not _knows_no_login(error):
                raise
            code = error.code if isinstance(error, SendRefused) else "M_UNRECOGNIZED"
            advice = "check the account and its password (matrix.user_id, matrix.password)"
            if not await takes_passwords(matrix):
                advice = f"it takes no passwords; set {NEW_TOKEN}"
            raise LoginRefused(
                f"the homeserver refuses the login of {matrix.user_id} ({code}): {advice}"
            ) from error
        problem = ""
        if not _is_account(matrix, answer):
            problem = (
                f"the homeserver calls this account {answer.get('user_id')}: write it so in "
                "matrix.user_id"
            )
        elif device_id not in (None, answer.get("device_id")):
            problem = (
                f"the homeserver does not let device {device_id} log in again: stop here, keep the "
                "data folder, and ask who runs it"
            )
        if problem:  # log out: otherwise each start would make another device
            nio.access_token = str(answer.get("access_token"))
            await call(nio, "POST", path("logout"), {})
            raise LoginRefused(problem)
    login = (str(answer["user_id"]), str(answer["device_id"]), str(answer["access_token"]))
    return Session(*login, secrets.token_hex(32))


def _is_account(matrix: Matrix, answer: Json) -> bool:
    """Check if an answer is about our account, which may be written without its server."""
    text = answer.get("user_id")
    return isinstance(text, str) and matrix.user_id in (text, text[1:].partition(":")[0])


async def _ways_to_log_in(matrix: Matrix) -> str:
    """Return the settings that allow a new login."""
    if not await takes_passwords(matrix):
        return NEW_TOKEN
    instead = " in place of matrix.access_token" if matrix.access_token else ""
    return f"matrix.password{instead} (or {NEW_TOKEN})"


def _knows_no_login(error: HomeserverUnavailable) -> bool:
    """Check if the server has no such route, as with an OAuth server (F-059)."""
    return error.status == 404 and "M_UNRECOGNIZED" in str(error)


async def takes_passwords(matrix: Matrix) -> bool:
    """Check if a homeserver allows a login by password. Raises: HomeserverUnavailable."""
    async with anonymous(matrix) as nio:
        try:
            flows = (await call(nio, "GET", path("login"))).get("flows")
        except HomeserverUnavailable as error:
            if not _knows_no_login(error):
                raise
            return False
    kinds = map(mapping, flows if isinstance(flows, list) else [])
    return any(kind.get("type") == "m.login.password" for kind in kinds)


async def _by_token(matrix: Matrix, folder: Path, stored: Session | None) -> Session:
    """Return the login of a configured token, with the keys of `kept` if it is the same device."""
    token = matrix.access_token.reveal() if matrix.access_token else ""
    answer = await _whoami(matrix, token)
    if not _is_account(matrix, answer):
        raise ConfigurationError(
            f"matrix.access_token belongs to {answer.get('user_id')}, not to {matrix.user_id}"
        )
    device_id = matrix.device_id or answer.get("device_id")
    if not isinstance(device_id, str) or answer.get("device_id", device_id) != device_id:
        text = "matrix.access_token belongs to another device than matrix.device_id"
        raise ConfigurationError(text)
    session = Session(str(answer["user_id"]), device_id, token, secrets.token_hex(32))
    if stored is not None and (stored.user_id, stored.device_id) == (matrix.user_id, device_id):
        session = replace(stored, access_token=token)
    lost = matrix.encryption != "off" and not store_file(folder, session).exists()
    if lost and await _has_keys(matrix, session):
        raise ConfigurationError(
            f"device {device_id} has encryption keys that are not here: log in anew for Wintermute "
            "(matrix.password does it by itself) and use that access_token and device_id"
        )
    return session


async def _whoami(matrix: Matrix, token: str) -> dict[str, object]:
    async with anonymous(matrix, token) as nio:
        return await call(nio, "GET", path("account", "whoami"), seconds=15)


async def _has_keys(matrix: Matrix, session: Session, keys: Json | None = None) -> bool:
    async with anonymous(matrix, session.access_token) as nio:
        body = {"device_keys": {session.user_id: [session.device_id]}}
        answer = await call(nio, "POST", path("keys", "query"), body)
    served = mapping(_devices(answer, session.user_id).get(session.device_id))
    return bool(served) and keys in (None, served.get("keys"))


def _devices(answer: Json, user_id: str) -> Json:
    return mapping(mapping(answer.get("device_keys")).get(user_id))


async def probe(
    matrix: Matrix, folder: Path, now: datetime, *, login: bool = False
) -> tuple[StatusLine, ...]:
    """Check for `wintermute check` if the homeserver answers, our login works and the keys exist.

    Nothing is changed; a device that is made to try the password is logged out. `login`: try it
    even if there is a stored login.
    """
    try:
        address = await find(matrix)
    except HomeserverUnavailable as error:
        return (StatusLine("homeserver", "fail", str(error)),)
    if address != matrix.homeserver.rstrip("/"):
        text = f"{matrix.homeserver} leads to {address} -> write that as matrix.homeserver"
        return (StatusLine("homeserver", "fail", text),)
    stored, trial = load(folder), None
    facts = [StatusLine("homeserver", "ok", matrix.homeserver)]
    token = stored.access_token if stored and stored.user_id == matrix.user_id else None
    token = matrix.access_token.reveal() if matrix.access_token else token
    if token is not None:
        facts.append(await _probe_login(matrix, token, stored))
    if token is None or (login and matrix.password):
        tried, trial = await _probe_password(matrix)
        facts.append(tried)
    try:
        is_good = facts[1].state == "ok"
        facts += await _probe_keys(matrix, folder, stored, is_good=is_good and token is not None)
        token = token or (trial.access_token if trial else None)
        facts += await _probe_accounts(matrix, token if is_good else None, now)
    finally:
        if trial is not None:
            await end_login(matrix, trial)
    return tuple(facts)


async def _probe_keys(
    matrix: Matrix, folder: Path, stored: Session | None, *, is_good: bool
) -> list[StatusLine]:
    if matrix.encryption == "off":
        return []
    if stored is None or not is_good:
        return [_probe_store(folder, stored)]
    file, found = store_file(folder, stored), _probe_store(folder, stored)
    if not _has_keys_here(file):
        if not await _has_keys(matrix, stored):  # after `init`, before the first start
            found = _probe_store(folder, None)
        elif file.exists():
            found = StatusLine("encryption store", "fail", EMPTY.format(file))
    return [found, *await _probe_identities(matrix, folder, stored)]


async def _probe_password(matrix: Matrix) -> tuple[StatusLine, Session | None]:
    """Log in on a trial device, which the caller logs out."""
    if matrix.password is None:
        text = f"{matrix.user_id} cannot log in before its secret is there"
        return StatusLine("login", "warn", text), None
    try:
        with TemporaryDirectory(prefix="wintermute-") as folder:
            named = replace(matrix, device_name=f"{matrix.device_name} (check)")
            trial = asyncio.gather(_by_password(named, Path(folder)))
            try:
                [session] = await asyncio.shield(trial)
            except asyncio.CancelledError:  # Ctrl-C: the device may exist already
                with suppress(WintermuteError):  # or it was refused
                    await end_login(matrix, *await trial)
                raise
    except (LoginRefused, SendRefused, HomeserverUnavailable) as error:
        return StatusLine("login", "fail", str(error)), None
    return StatusLine("login", "ok", f"the password of {matrix.user_id} works"), session


async def _probe_accounts(matrix: Matrix, token: str | None, now: datetime) -> list[StatusLine]:
    """Check for allowed users that do not exist (U-004), and for another bot on our account."""
    facts = []
    for user in dict.fromkeys([matrix.owner, *matrix.allowed_users]):
        is_owner = user == matrix.owner
        name = "owner" if is_owner else f"allowed user {user}"
        known = await exists(matrix, token, user) if token else None
        if known is None:
            text = f"not tried: the homeserver does not tell if {user} exists"
            facts.append(StatusLine(name, "warn", text))
        elif known:
            facts.append(StatusLine(name, "ok", user))
        else:
            key = "owner" if is_owner else "allowed_users"
            text = f"the homeserver has no account {user} -> correct matrix.{key}"
            facts.append(StatusLine(name, "fail" if is_owner else "warn", text))
    if token and await _is_another_bot(matrix, token, now):
        facts.append(StatusLine("account", "warn", ANOTHER_BOT.format(matrix.device_name)))
    return facts


async def _is_another_bot(matrix: Matrix, token: str, now: datetime) -> bool:
    """Check if another device with the bot's name was active within the hour."""
    try:
        async with anonymous(matrix, token) as nio:
            ours = (await call(nio, "GET", path("account", "whoami"))).get("device_id")
            listed = (await call(nio, "GET", path("devices"))).get("devices")
    except (HomeserverUnavailable, LoginRefused, SendRefused):
        return False
    since = (now - RECENT).timestamp() * 1000
    return any(
        isinstance(seen := each.get("last_seen_ts"), int)
        and seen > since
        and (each.get("display_name"), ours != each.get("device_id")) == (matrix.device_name, True)
        for each in map(mapping, listed if isinstance(listed, list) else [])
    )


async def exists(matrix: Matrix, token: str, user: str) -> bool | None:
    """Check if a user exists; None if the homeserver does not say or is another one.

    An account without a name has no profile, but has keys after its first login.
    """
    is_ours = user.partition(":")[2] == matrix.user_id.partition(":")[2]
    try:
        async with anonymous(matrix, token) as nio:
            try:
                await call(nio, "GET", path("profile", user), seconds=15)
            except SendRefused as refused:
                if not is_ours or refused.status != 404:
                    return None
            else:
                return True
            body: Json = {"device_keys": {user: []}}
            keys = await call(nio, "POST", path("keys", "query"), body)
    except (HomeserverUnavailable, LoginRefused, SendRefused):
        return None
    return bool(_devices(keys, user)) or cross_signing_key(keys, user, "master") != NOBODY


async def _probe_identities(matrix: Matrix, folder: Path, stored: Session) -> list[StatusLine]:
    """Check our served identity, and people without one (X-017, X-034)."""
    allowed = sorted(matrix.people)
    async with anonymous(matrix, stored.access_token) as nio:
        everything: list[str] = []
        body = {"device_keys": dict.fromkeys([stored.user_id, *allowed], everything)}
        answer = await call(nio, "POST", path("keys", "query"), body)
    return [_probe_own(answer, folder, stored), _probe_people(answer, allowed)]


def _probe_people(answer: Json, allowed: list[str]) -> StatusLine:
    known = identities(answer, allowed)
    without = [user for user, identity in known.items() if not identity.master]
    unknown = [user for user in allowed if user not in known]
    problems = []
    if without:
        problems.append(
            f"{', '.join(without)}: no cross-signing, so any session of that account is taken for "
            "theirs -> they set up a recovery key in their client (secure backup)"
        )
    if unknown:
        problems.append(f"not known now: {', '.join(unknown)} -> run this again later")
    if problems:
        return StatusLine("people", "warn", "; ".join(problems))
    return StatusLine("people", "ok", "everybody who is allowed has an identity")


def _probe_own(answer: Json, folder: Path, stored: Session) -> StatusLine:
    finding = partial(StatusLine, "identity")
    try:
        seeds = load_seeds(folder, stored.user_id)
    except ConfigurationError as error:
        return finding("fail", str(error))
    if not identities(answer, [stored.user_id]):
        return finding("warn", "not known now: the homeserver does not say -> run this again later")
    served = [served_key(answer, stored.user_id, usage) for usage in USAGES]
    if are_others(served, seeds):
        return finding("fail", foreign_text(seeds))
    for file in open_to_others(folder):
        return finding("warn", f"others may read {file.name} -> chmod 600 {file}")
    if seeds is None:
        return finding("none", "not tried: the next start makes it")
    if served != [pair.public for pair in seeds.pairs]:
        return finding("warn", "not uploaded yet -> see `wintermute status` when it runs")
    device = _devices(answer, stored.user_id).get(stored.device_id)
    if device is None:
        return finding("warn", NOT_SERVED["missing"])
    key = fingerprint(seeds.master.public)
    if not is_signed(device, stored.user_id, seeds.self_signing.public):
        return finding("warn", f"{key} has not signed this device -> start the daemon")
    return finding("ok", f"{key}, and this device is signed by it")


async def _probe_login(matrix: Matrix, token: str, stored: Session | None) -> StatusLine:
    try:
        answer = await _whoami(matrix, token)
    except (LoginExpired, LoginEnded) as error:
        if matrix.password is None:
            device = stored.device_id if stored else matrix.device_id
            return StatusLine("login", "fail", f"{error} (device {device or 'unknown'})")
        text = "expired -> the daemon logs in again by itself, unless the device was signed out"
        return StatusLine("login", "warn", text)
    except (LoginRefused, SendRefused, HomeserverUnavailable) as error:
        return StatusLine("login", "fail", str(error))
    return StatusLine("login", "ok", f"{answer.get('user_id')} on device {answer.get('device_id')}")


def _probe_store(folder: Path, stored: Session | None) -> StatusLine:
    finding = partial(StatusLine, "encryption store")
    if stored is None:
        return finding("none", "not tried: the first start makes it")
    file = store_file(folder, stored)
    if not file.exists():
        missing = f"{file} is missing -> restore it from a backup"
        return finding("fail", f"{missing}; else the next start makes a new device")
    problem = store_problem(file, mode="ro")
    if problem in (None, NO_KEYS):
        return finding("ok", f"keys of device {stored.device_id}")
    if held := blocked(file, problem):
        return finding("fail", str(held))  # the keys are not lost
    unreadable = f"{file} cannot be read ({problem}) -> restore the Matrix folder from a backup"
    return finding("fail", f"{unreadable}, or run `wintermute matrix reset-crypto`")


async def logout(matrix: Matrix, folder: Path, clock: Clock) -> str:
    """End our login at the homeserver and delete its token; return the line to print."""
    stored = load(folder)
    if stored is None:
        return "not logged in"
    said = "logged out"
    try:
        async with anonymous(matrix, stored.access_token) as nio:
            await call(nio, "POST", path("logout"), {})
    except LoginRefused:
        said = "the homeserver had already ended this login"
    for file in key_stores(folder):  # without a login they would look lost
        _set_aside(file, clock)
    (folder / FILE).unlink()
    then = "the next start logs in again"
    if matrix.access_token is not None:
        then = "set matrix.password, or a new matrix.access_token, before the next start"
    return f"{said}: device {stored.device_id} removed; {then}"


def reset_crypto(folder: Path, clock: Clock) -> str:
    """Move the key store aside, dated, so that the next start makes a new device (X-033)."""
    stored = load(folder)
    file = store_file(folder, stored) if stored else None
    if file is None or not file.exists():
        return "there is no key store to move"
    aside = _set_aside(file, clock)
    return f"moved the keys to {aside.name}; the next start makes a new device"


def _set_aside(file: Path, clock: Clock) -> Path:
    """Rename a key store with the date."""
    date = clock.now().strftime("%Y-%m-%dT%H%M%S")
    aside = file.with_name(f"{file.name}.until-{date}")
    for suffix in ("", "-wal", "-shm"):
        part = file.with_name(file.name + suffix)
        if part.exists():
            part.rename(aside.with_name(aside.name + suffix))
    return aside
