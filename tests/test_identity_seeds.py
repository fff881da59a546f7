"""The seeds of our identity survive any kill and any lie: whole or not there, never replaced, and they sign nothing else."""

import base64
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from canonicaljson import encode_canonical_json
from signedjson.key import decode_verify_key_bytes
from signedjson.sign import SignatureVerifyException, verify_signed_json
from unpaddedbase64 import decode_base64, encode_base64

from tests.world.chats import echoed_each
from tests.world.clock import FakeClock
from tests.world.identities import FIELDS, OUR_SEEDS, Json, answer_for, settling
from tests.world.keys import BOT, SESSION
from tests.world.malformed import WRONG, misshapen
from tests.world.proxy import Action, Answer, Proxy, Request
from tests.world.scene import Scene
from wintermute.errors import ConfigurationError
from wintermute.matrix.cross_signing import UNUSABLE, IdentityStep, OwnKeys, next_step, own_keys
from wintermute.matrix.people import Device
from wintermute.matrix.signing import (
    FILE,
    NEXT,
    Seeds,
    canonical,
    close_to_others,
    is_signed,
    keep_seeds,
    load_seeds,
    new_seeds,
    next_seeds,
    public_key,
    replace_seeds,
    secret_seeds,
)

EVE = "@eve:test"
KILLED = -signal.SIGKILL
OURS, OTHER = new_seeds(BOT), new_seeds(BOT)


def spoilt(change: Callable[[Json], object]) -> bytes:
    kept = json.loads(json.dumps(asdict(OURS)))
    change(kept)
    return json.dumps(kept).encode()


def with_seed(seed: object) -> bytes:
    return spoilt(lambda kept: kept["self_signing"].update(seed=seed))


UNUSABLE_FILES: dict[str, bytes] = {
    "empty": b"",
    "cut": json.dumps(asdict(OURS)).encode()[:-9],
    "no-text": b"\xff\xfe\x00",
    "deep": b"[" * 100_000,
    "a-list": b"[]",
    "null": b"null",
    "short-seed": with_seed(base64.b64encode(b"x" * 31).decode()),
    "long-seed": with_seed(base64.b64encode(b"x" * 33).decode()),
    "no-seed": with_seed(""),
    "seed-not-base64": with_seed("?" * 44),
    "seed-not-text": with_seed(["x"]),
    "no-public-key": spoilt(lambda kept: kept["master"].update(public="A")),
    "public-not-text": spoilt(lambda kept: kept["master"].update(public=7)),
    "a-key-missing": spoilt(lambda kept: kept.pop("user_signing")),
    "a-field-more": spoilt(lambda kept: kept["master"].update(more=1)),
    "no-owner": spoilt(lambda kept: kept.pop("user_id")),
    "another-account": spoilt(lambda kept: kept.update(user_id=EVE)),
    "owner-not-text": spoilt(lambda kept: kept.update(user_id=[BOT])),
}


@pytest.mark.parametrize("case", UNUSABLE_FILES)
def test_a_file_that_is_not_ours_is_refused_and_left_as_it_is(case: str, tmp_path: Path) -> None:
    """X-017: the text names the file and what to do, and no seed."""
    (tmp_path / FILE).write_bytes(UNUSABLE_FILES[case])
    with pytest.raises(ConfigurationError) as refused:
        load_seeds(tmp_path, BOT)
    said = str(refused.value)
    assert str(tmp_path / FILE) in said
    assert "backup" in said
    assert "reset-crypto --identity" in said
    assert not any(pair.seed in said for pair in OURS.pairs)
    assert (tmp_path / FILE).read_bytes() == UNUSABLE_FILES[case]
    secret_seeds(tmp_path)


@pytest.mark.parametrize("usage", ["master", "self_signing", "user_signing"])
def test_a_public_key_that_is_not_its_seeds_is_found_before_it_is_used(
    usage: str, tmp_path: Path
) -> None:
    """X-017: for reading alone the curve is not needed, which costs a start 12 ms."""
    other = asdict(OTHER)[usage]["public"]
    (tmp_path / FILE).write_bytes(spoilt(lambda kept: kept[usage].update(public=other)))
    assert load_seeds(tmp_path, BOT) is not None
    with pytest.raises(ConfigurationError, match=FILE):
        load_seeds(tmp_path, BOT, proven=True)
    (tmp_path / FILE).rename(tmp_path / NEXT)
    with pytest.raises(ConfigurationError, match=NEXT):
        next_seeds(tmp_path, BOT)


def test_what_is_kept_is_what_is_read_and_is_ours_alone(tmp_path: Path) -> None:
    """X-017: also where a crash left something."""
    folder = tmp_path / "data" / "matrix"
    assert load_seeds(folder, BOT) is None
    assert next_seeds(folder, BOT) is None
    keep_seeds(folder, OTHER)
    (folder / f".{FILE}.part_1_2_3-{2**22 + 1}").write_text("half of")
    keep_seeds(folder, OURS)
    assert load_seeds(folder, BOT, proven=True) == OURS
    assert [file.name for file in folder.iterdir()] == [FILE]
    assert (folder / FILE).stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700
    assert set(secret_seeds(folder)) == {pair.seed for pair in OURS.pairs}
    assert not any(pair.seed in repr(OURS) for pair in OURS.pairs)


@pytest.mark.parametrize("name", [FILE, NEXT])
@pytest.mark.parametrize("mode", [0o644, 0o640, 0o606, 0o660, 0o601])
def test_seeds_are_closed_to_others(mode: int, name: str, tmp_path: Path) -> None:
    """X-017."""
    keep_seeds(tmp_path, OURS, name)
    assert not close_to_others(tmp_path)
    (tmp_path / name).chmod(mode)
    assert close_to_others(tmp_path)
    assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
    assert not close_to_others(tmp_path)


def test_a_folder_in_the_place_of_the_file_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir(mode=0o755)
    assert not close_to_others(tmp_path)
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o755
    with pytest.raises(ConfigurationError, match="IsADirectoryError"):
        load_seeds(tmp_path, BOT)
    assert secret_seeds(tmp_path) == ()


def test_an_accepted_identity_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    """X-017: which is kept with a date, and once only after a kill in between."""
    keep_seeds(tmp_path, OURS)
    keep_seeds(tmp_path, OTHER, NEXT)
    replace_seeds(tmp_path, FakeClock())
    assert load_seeds(tmp_path, BOT) == OTHER
    assert next_seeds(tmp_path, BOT) is None
    [aside] = tmp_path.glob(f"{FILE}.until-*")
    assert load_seeds(tmp_path, BOT, aside.name) == OURS
    assert aside.stat().st_mode & 0o777 == 0o600


# Killed between two operations on files -------------------------------------------------------

FILE_EVENTS = frozenset({"open", "os.mkdir", "os.remove", "os.rename", "os.link", "os.chmod"})


def killed_at(number: int, folder: Path, work: Callable[[], None]) -> bool:
    """Do work in a process that is killed before its n-th operation on a file; whether it was."""
    pid = os.fork()
    if pid == 0:
        seen = iter(range(1, number))

        def strike(event: str, arguments: tuple[object, ...]) -> None:
            if (
                event in FILE_EVENTS
                and str(folder) in str(arguments[0])
                and not any(True for _ in zip([0], seen, strict=False))
            ):
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(strike)
        try:
            work()
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status) == KILLED


def kills(
    tmp_path: Path, before: Callable[[Path], None], work: Callable[[Path], None]
) -> Iterator[Path]:
    """The folders that kills between the operations of some work leave, the last one whole."""
    for number in range(1, 50):
        folder = tmp_path / str(number)
        before(folder)
        was_killed = killed_at(number, folder, lambda at=folder: work(at))  # type: ignore[misc]  # a default
        yield folder
        if not was_killed:
            return
    raise AssertionError("never whole")


def test_a_kill_while_seeds_are_written_leaves_them_whole_or_none(tmp_path: Path) -> None:
    """X-017: and what it leaves is in nobody's way, nor can others read it."""
    found = []
    for folder in kills(tmp_path, lambda at: None, lambda at: keep_seeds(at, OURS)):
        kept = load_seeds(folder, BOT, proven=True) if folder.exists() else None
        found.append(kept)
        for file in folder.glob("*"):
            assert file.stat().st_mode & 0o777 == 0o600
        if kept is None:
            keep_seeds(folder, OTHER)
            assert load_seeds(folder, BOT) == OTHER
            assert [file.name for file in folder.iterdir()] == [FILE]
    assert len(found) >= 5
    assert found[0] is None
    assert found[-2:] == [OURS, OURS]  # before the folder is synced, and at the end
    assert set(found) == {None, OURS}


def test_a_kill_while_the_next_identity_takes_its_place_loses_none(tmp_path: Path) -> None:
    """X-017: there is an identity under its name at every moment, and a new start goes on."""

    def both(folder: Path) -> None:
        keep_seeds(folder, OURS)
        keep_seeds(folder, OTHER, NEXT)

    count = 0
    for folder in kills(tmp_path, both, lambda at: replace_seeds(at, FakeClock())):
        count += 1
        assert load_seeds(folder, BOT) in (OURS, OTHER)
        if next_seeds(folder, BOT):
            replace_seeds(folder, FakeClock())
        assert load_seeds(folder, BOT) == OTHER
        [aside] = folder.glob(f"{FILE}.until-*")
        assert load_seeds(folder, BOT, aside.name) == OURS
    assert count >= 4


# What is to be done, and what is signed -------------------------------------------------------

M, S, U = (pair.public for pair in OURS.pairs)
BARE: Json = {"device_id": "D", "user_id": BOT, "keys": {}}
SIGNED = OURS.self_signing.sign(BARE, BOT)
BY_OTHER = OTHER.self_signing.sign(BARE, BOT)


@pytest.mark.parametrize(
    ("served", "seeds", "step"),
    [
        (OwnKeys("", "", "", None), None, "wait"),
        (OwnKeys(M, S, U, None), OURS, "wait"),
        (OwnKeys("", "", "", BARE), None, "make"),
        (OwnKeys("", "", "", BARE), OURS, "upload"),
        (OwnKeys(M, S, U, BARE), None, "foreign"),
        (OwnKeys("?", "", "", BARE), None, "foreign"),
        (OwnKeys("", "?", "", BARE), None, "foreign"),
        (OwnKeys("", "", "?", BARE), None, "foreign"),
        (OwnKeys("?", S, U, BARE), OURS, "foreign"),
        (OwnKeys(OTHER.master.public, S, U, SIGNED), OURS, "foreign"),
        (OwnKeys("", S, U, BARE), OURS, "upload"),
        (OwnKeys(M, "", U, BARE), OURS, "upload"),
        (OwnKeys(M, "?", U, SIGNED), OURS, "upload"),
        (OwnKeys("", f"?{S}", U, SIGNED), OURS, "upload"),
        (OwnKeys(M, S, f"?{S}", SIGNED), OURS, "foreign"),
        (OwnKeys(M, S, "", SIGNED), OURS, "upload"),
        (OwnKeys(M, U, S, SIGNED), OURS, "foreign"),
        (OwnKeys(M, S, U, BARE), OURS, "sign"),
        (OwnKeys(M, S, U, BY_OTHER), OURS, "sign"),
        (OwnKeys(M, S, U, SIGNED), OURS, "done"),
    ],
)
def test_the_next_step(served: OwnKeys, seeds: Seeds | None, step: IdentityStep) -> None:
    """X-017, X-050, F-070: what is missing is offered again, what is other is never replaced."""
    assert next_step(served, seeds) == step


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"b": 1, "a": {"z": None, "y": [True, False]}},
        {"one": 1, "two": "Two"},
        {"本": 2, "日": 1},
        {"a": "日本語"},
        {"a": "\u65e5"},
        {"é": "e\u0301", "z": 0, "Z": 0, "": 0},
        {"\U0001f600": 1, "\ufb01": 2, "\u2028": "\u2029"},
        {"a": '"\\/\b\f\n\r\t\x00\x01\x1f\x7f'},
        {"low": -(2**53) + 1, "high": 2**53 - 1, "minus": -0},
        {"auth": {"success": True, "mxid": "@john.doe:example.com", "profile": {"k": [{}, []]}}},
    ],
    ids=lambda value: ascii(value)[:30],
)
def test_json_is_written_and_signed_as_the_specification_has_it(value: Json) -> None:
    """X-018: as Synapse's own libraries do, among them the examples of the appendix."""
    assert canonical(value) == encode_canonical_json(value)
    signed = OURS.master.sign(value | {"unsigned": {"age": 1}}, BOT)
    assert is_signed(signed, BOT, M)
    key = decode_verify_key_bytes(f"ed25519:{M}", decode_base64(M))
    verify_signed_json(signed, BOT, key)
    assert signed["unsigned"] == {"age": 1}
    assert is_signed(signed | {"unsigned": {"age": 2}}, BOT, M)
    forged = signed | {"more": 1}
    assert not is_signed(forged, BOT, M)
    with pytest.raises(SignatureVerifyException):
        verify_signed_json(forged, BOT, key)
    twice = OURS.self_signing.sign(signed, BOT)
    assert is_signed(twice, BOT, M)
    assert is_signed(twice, BOT, S)
    assert not is_signed(signed, BOT, S)
    assert not is_signed(signed, EVE, M)


def test_a_seed_makes_the_key_of_the_standard() -> None:
    """RFC 8032, section 7.1, test 1."""
    seed = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
    known = bytes.fromhex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a")
    assert public_key(seed) == encode_base64(known)


@pytest.mark.parametrize("value", WRONG[1:], ids=lambda value: repr(value)[:20])
def test_a_signature_of_any_kind_is_checked_and_none_holds(value: object) -> None:
    """X-022."""
    signed = OURS.master.sign(BARE, BOT)
    name = f"ed25519:{M}"
    for signatures in (value, {BOT: value}, {BOT: {name: value}}):
        assert not is_signed({**BARE, "signatures": signatures}, BOT, M)
    assert not is_signed({**signed, "keys": value}, BOT, M) or value == BARE["keys"]
    assert not is_signed(signed, BOT, str(value))


OTHER_DEVICE = Device(BOT, SESSION.device_id, "A" * 43, "B" * 43)
GARBAGE: tuple[object, ...] = (["x"], "x", 7, True, 1.5, [["x"]], *WRONG[2:])


def misshapen_fields(answer: Json) -> Iterator[Json]:
    """Each field of it, at any depth, wrong."""
    for case in misshapen(answer):
        assert isinstance(case, dict)
        yield case
    for field in ("device_keys", *FIELDS):
        for garbage in GARBAGE:
            yield answer | {field: garbage}
            yield answer | {field: {BOT: garbage}}
    for garbage in GARBAGE:
        yield answer | {"device_keys": {BOT: dict.fromkeys(answer["device_keys"][BOT], garbage)}}
        yield answer | {"failures": garbage}


@pytest.mark.parametrize("value", [None, *GARBAGE], ids=lambda value: repr(value)[:20])
def test_what_is_no_object_is_signed_by_nobody(value: object) -> None:
    """X-022."""
    assert not is_signed(value, BOT, OUR_SEEDS.master.public)


@pytest.mark.parametrize("kept", [True, False], ids=["seeds", "no-seeds"])
async def test_nothing_that_is_served_of_us_stops_us(kept: bool, tmp_path: Path) -> None:
    """X-017, X-022: and what is there and cannot be read is not replaced."""
    if kept:
        keep_seeds(tmp_path, OUR_SEEDS)
    async with settling(tmp_path) as (identity, clock, proxy):
        device = identity.device()
        cases = list(misshapen_fields(answer_for(device)))
        assert len(cases) > 400
        for case in cases:

            async def ask(served: Json = case) -> Json:
                return served

            clock.advance(7200)
            await identity.settle(case, ask)
            assert identity.state.text
            assert (tmp_path / FILE).exists() is kept, case
            devices = case.get("device_keys")
            if isinstance(devices, dict) and isinstance(devices.get(BOT), dict):
                identity.learn(devices[BOT])
            assert not identity.vouches_for(OTHER_DEVICE)
        assert bool(proxy.requests) is kept
        for request in proxy.requests:
            if "device_signing" in request.path:
                assert kept
                assert OUR_SEEDS.master.public in request.body.decode()
            else:
                signed = request.json[BOT][device["device_id"]]
                assert {name: signed[name] for name in device} == device


@pytest.mark.parametrize("garbage", GARBAGE, ids=lambda value: repr(value)[:20])
@pytest.mark.parametrize("field", FIELDS)
async def test_garbage_in_the_place_of_a_key_is_no_key_and_not_nothing(
    field: str, garbage: object, tmp_path: Path
) -> None:
    """X-017: else an identity would be made over the one that is there."""
    async with settling(tmp_path) as (identity, _, _proxy):
        device = identity.device()
    usage = field.removesuffix("_keys")
    for part in (garbage, {BOT: garbage}):
        served = own_keys(answer_for(device) | {field: part}, BOT, device)
        assert served is not None
        if garbage not in ({}, []):
            assert getattr(served, usage) == UNUSABLE


async def test_a_homeserver_that_serves_garbage_of_us_does_not_stop_the_daemon(
    scene: Scene, proxy: Proxy
) -> None:
    """X-022: nor keep anybody from talking to it."""
    ann = await scene.person("ann")
    daemon = await scene.bot(ann, via=proxy.url, start=False)

    def after(request: Request, status: int, body: bytes) -> Action:
        if "keys/query" not in request.path:
            return None
        served = json.loads(body)
        return Answer(status, served | {"self_signing_keys": {daemon.user_id: ["x"]}})

    proxy.after = after
    await daemon.start()
    chat = await scene.room(ann, daemon, encrypted=True)
    await echoed_each(ann, chat, "hello")
    assert not proxy.seen("POST", "device_signing")
