"""Verifications at the edge: messages in, requests out, the clock given, and what a person reads of them."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from tests.world.clock import WITHIN, HeldClock
from tests.world.desk import ANN, BOB, BOT, EVE, ROOM, Desk, at_desk, command, talk
from tests.world.keys import Device
from tests.world.malformed import WRONG, misshapen
from tests.world.phone import NEW, OFFER, OLD, Phone, some_key
from tests.world.proxy import Answer, Proxy
from wintermute.clock import stamp
from wintermute.health.health import untrusted, verifications
from wintermute.matrix.sas import REASONS, Party, Verification
from wintermute.matrix.sync_response import VERIFICATION, parse_sync, verification_in_room
from wintermute.matrix.verifications import (
    COMPARE,
    DIFFERENT,
    FAILURES,
    LOOK_SECONDS,
    MOST_AN_HOUR,
    NO_METHOD,
    UNFIT,
    VerificationStore,
)
from wintermute.messages import Json


@pytest.fixture
async def desk(tmp_path: Path, proxy: Proxy) -> AsyncIterator[Desk]:
    async with at_desk(tmp_path, proxy, HeldClock()) as opened:
        yield opened


async def asks(desk: Desk) -> str:
    """`/verify`; the answer, once the request is in the room."""
    async with desk.stores.database.transaction() as tx:
        answer = await desk.work.ask(tx, command(desk))
    await desk.until(lambda: next(iter(desk.work._open)).now.transaction_id == "$asked")
    return answer


async def begun(desk: Desk, room: str = "") -> Phone:
    """A person's client asks, and we are ready."""
    phone = desk.phone(room=room)
    await desk.hear(desk.message("request", phone.request(), room=room))
    await desk.until(lambda: desk.kinds == ["ready"])
    return phone


@pytest.mark.parametrize("mac", [NEW, OLD])
@pytest.mark.parametrize("room", ["", ROOM])
async def test_a_verification_goes_to_its_end_and_leaves_a_row(
    desk: Desk, room: str, mac: str
) -> None:
    """X-019: our MAC is the last but one of what we say."""
    phone = desk.phone(room=room, mac=mac)
    await talk(desk, phone, "mac")
    await desk.until(partial(desk.has_said, 5))
    assert desk.kinds == ["ready", "accept", "key", "mac", "done"]
    where = room or f"{ANN} ANNSPHONE"
    assert {place for _, place, _ in desk.said} == {where}
    [row] = await desk.rows()
    shown = ", ".join(f"{sign} {name}" for sign, name in phone.emojis)
    assert (row["phase"], row["shown"], row["room_id"]) == ("confirmed", shown, room)
    phone.hear(*desk.said[3][::2])
    assert phone.verified
    await desk.hear(desk.message("done", {}, room=room))
    await desk.settled()
    assert await desk.phase() == "done"


async def test_numbers_are_shown_where_emojis_were_not_agreed_on(desk: Desk) -> None:
    phone = desk.phone()
    start = phone.own_start

    def plain() -> tuple[str, Json]:
        kind, content = start()
        phone.start = content | {"short_authentication_string": ["decimal"]}
        return kind, phone.start

    phone.own_start = plain  # type: ignore[method-assign]  # a client of a kind of its own
    phone._accept = lambda content: (phone.message("key", key=phone.public),)  # type: ignore[method-assign]
    await talk(desk, phone, "key")
    async with asyncio.timeout(WITHIN):
        while not (row := (await desk.rows())[0])["shown"]:  # noqa: ASYNC110  a row, as in Desk.until
            await asyncio.sleep(0.002)
    assert len(row["shown"].split()) == 3
    assert all(1000 <= int(number) < 9192 for number in row["shown"].split())


def other_key(phone: Phone) -> None:
    phone.keys = dict.fromkeys(phone.keys, some_key("another"))


def other_device(phone: Phone) -> None:
    phone.keys = {"ed25519:OTHER": some_key("another")}


def other_names(phone: Phone) -> None:
    mac_of = phone.mac_of
    wrong_tag = phone.own_tag("something else", "KEY_IDS") if phone.shared else "AAAA"
    phone.mac_of = lambda keys: ("mac", mac_of(keys)[1] | {"keys": wrong_tag})  # type: ignore[method-assign]  # a forger


@pytest.mark.parametrize("forge", [other_key, other_device, other_names])
@pytest.mark.parametrize("room", ["", ROOM])
async def test_a_wrong_mac_is_cancelled_and_ours_is_not_sent(
    desk: Desk, room: str, forge: Callable[[Phone], None]
) -> None:
    """X-020."""
    phone = desk.phone(room=room)
    forge(phone)
    await talk(desk, phone, "cancel")
    await desk.settled()
    assert desk.kinds == ["ready", "accept", "key", "cancel m.key_mismatch"]
    assert await desk.phase() == "cancelled m.key_mismatch"


async def test_a_key_that_was_not_promised_is_cancelled(desk: Desk) -> None:
    """X-020: we asked, so we start."""
    phone = desk.phone(asks=False, room=ROOM)
    await asks(desk)
    await desk.hear(desk.message(*phone.hear("request", desk.said[0][2])[0], room=ROOM))
    await desk.until(partial(desk.has_said, 2))
    kind, accept = phone.hear("start", desk.said[1][2])[0]
    lie = accept | {"commitment": phone.promise(some_key("another"))}
    await desk.hear(desk.message(kind, lie, room=ROOM))
    await desk.until(partial(desk.has_said, 3))
    await desk.hear(desk.message(*phone.hear("key", desk.said[2][2])[0], room=ROOM))
    await desk.settled()
    assert desk.kinds[1:] == ["start", "key", "cancel m.mismatched_commitment"]


@pytest.mark.parametrize("kind", ["ready", "accept", "key", "mac", "done"])
async def test_a_message_out_of_order_is_cancelled(desk: Desk, kind: str) -> None:
    """X-020."""
    phone = desk.phone()
    await desk.hear(desk.message("request", phone.request()), desk.message(kind, {"key": "x"}))
    await desk.settled()
    assert desk.kinds == ["ready", "cancel m.unexpected_message"]


@pytest.mark.parametrize(("change", "code"), [({}, ""), ({"x": 1}, " m.unexpected_message")])
async def test_a_repeat_is_ignored_unless_it_says_something_else(
    desk: Desk, change: Json, code: str
) -> None:
    """X-020."""
    phone = desk.phone()
    request, start = phone.request(), phone.own_start()[1]
    await desk.hear(desk.message("request", request), desk.message("request", request))
    await desk.hear(desk.message("start", start), desk.message("start", start | change))
    await desk.hear(desk.message("cancel", {"code": "m.user"}))
    await desk.settled()
    assert desk.kinds == ["ready", "accept", *([f"cancel{code}"] if code else [])]


@pytest.mark.parametrize("sound", [True, False])
async def test_who_is_not_the_one_we_know_is_not_among_the_verified(
    desk: Desk, sound: bool
) -> None:
    """X-019, X-035: nor with a self-signing key that their identity did not sign."""
    phone = desk.phone()
    master = Device(ANN, "MASTER").plain()["keys"]["ed25519:MASTER"]
    phone.keys |= {f"ed25519:{master}": master}
    key = {"user_id": ANN, "usage": ["master"], "keys": {f"ed25519:{master}": master}}
    others = {} if sound else {"self_signing_keys": {ANN: {"keys": "of nobody"}}}
    desk.identities = {"master_keys": {ANN: key}, **others}
    async with desk.stores.database.transaction() as tx:
        await tx.execute(
            "INSERT INTO people (user_id, master_key, seen_at) VALUES (?, ?, '')", (ANN, master)
        )
    await talk(desk, phone)
    await desk.hear(desk.message("done", {}))
    await desk.settled()
    assert await desk.phase() == "done"
    [row] = await desk.stores.database.rows("SELECT verified FROM people")
    assert row["verified"] == (master if sound else None)


async def test_an_end_that_could_not_be_said_is_said_by_the_next_run(
    tmp_path: Path, proxy: Proxy
) -> None:
    """X-020."""
    clock = HeldClock()
    async with at_desk(tmp_path, proxy, clock) as desk:
        await desk.hear(desk.message("request", desk.phone().request()))
        await desk.until(partial(desk.has_said, 1))
        desk.trouble = [Answer(502)]
        await desk.hear(desk.message("key", {"key": "x"}))
        await desk.until(lambda: 0.5 in clock.slept)
        assert desk.kinds == ["ready", "cancel m.unexpected_message"]
    async with at_desk(tmp_path, proxy, clock) as desk:
        await desk.until(partial(desk.has_said, 1))
        assert desk.kinds == ["cancel m.unknown_transaction"]


async def test_it_is_cancelled_ten_minutes_after_it_began(desk: Desk) -> None:
    """X-020."""
    await begun(desk)
    await desk.until(lambda: 600.0 in desk.clock.slept)
    await desk.clock.move(599)
    assert desk.kinds == ["ready"]
    await desk.clock.move(1)
    await desk.settled()
    assert desk.kinds == ["ready", "cancel m.timeout"]
    assert await desk.phase() == "cancelled m.timeout"


async def test_a_stranger_is_declined_once_an_hour_and_nothing_is_kept(desk: Desk) -> None:
    """X-019: 1,000 requests, and 1,000 strangers."""
    request = desk.phone(user=EVE).request()
    await desk.hear(*(desk.message("request", request, EVE, "", f"T{n}") for n in range(1000)))
    await desk.hear(desk.message("start", {}, EVE, "", "T"))
    await desk.until(lambda: len(desk.said) > 0)
    assert [(kind, to, c["code"]) for kind, to, c in desk.said] == [
        ("cancel", f"{EVE} ANNSPHONE", "m.user")
    ]
    await desk.hear(*(desk.message("request", request, f"@s{n}:here") for n in range(1000)))
    await desk.until(lambda: len(desk.said) == MOST_AN_HOUR)
    desk.clock.advance(3600)
    await desk.hear(desk.message("request", request, EVE), desk.message("request", request, EVE))
    await desk.until(lambda: len(desk.said) > MOST_AN_HOUR)
    await desk.hear(desk.message("request", desk.phone().request()))
    await desk.until(lambda: desk.kinds[-1] == "ready")
    assert len(desk.said) == MOST_AN_HOUR + 2
    assert len(await desk.rows()) == 1


@pytest.mark.parametrize(
    ("minutes", "heard"), [(9.9, True), (10.1, False), (-4.9, True), (-5.1, False), (1e9, False)]
)
async def test_requests_of_another_time_are_ignored(
    desk: Desk, minutes: float, heard: bool
) -> None:
    """X-020."""
    message = desk.message("request", desk.phone().request())
    await desk.hear(replace(message, sent_ms=message.sent_ms - int(minutes * 60_000)))
    await desk.hear(desk.message("request", desk.phone(user=BOB).request(), BOB, "", "T2"))
    await desk.until(lambda: len(desk.said) >= 1 + heard)
    assert len(await desk.rows()) == 1 + heard


async def test_a_request_in_a_room_to_somebody_else_is_ignored(desk: Desk) -> None:
    """X-019."""
    request = desk.phone(room=ROOM).request()
    for other in ({"to": BOB}, {"to": None}, {"to": [BOT]}):
        await desk.hear(desk.message("request", request | other, room=ROOM))
        await desk.hear(desk.message("request", request | other, EVE, ROOM))
    assert not await desk.rows()
    assert desk.work._begun.empty()


async def test_a_new_request_takes_the_place_of_the_one_under_way(desk: Desk) -> None:
    """X-020."""
    phone = desk.phone()
    await desk.hear(desk.message("request", phone.request(), transaction="T1"))
    await desk.until(lambda: desk.kinds == ["ready"])
    await desk.hear(desk.message("request", phone.request(), transaction="T2"))
    await desk.until(lambda: len(desk.said) == 3)
    assert sorted(desk.kinds[1:]) == ["cancel m.user", "ready"]
    await desk.hear(
        *(desk.message("request", phone.request(), transaction=f"N{n}") for n in range(1000))
    )
    await desk.until(lambda: len(desk.work._open) == 1)
    assert len(await desk.rows()) == 2 + 4


async def test_a_third_person_cannot_interfere(desk: Desk) -> None:
    """X-019: neither with its id nor from another room."""
    phone = await begun(desk, ROOM)
    cancel = {"code": "m.user"}
    await desk.hear(
        desk.message("cancel", cancel, EVE, ROOM),
        desk.message("start", OFFER, BOB, ROOM),
        desk.message("cancel", cancel, ANN, "!other:here"),
        desk.message("cancel", cancel, ANN, ""),
        desk.message("key", {"key": "x"}, ANN, ""),
    )
    await desk.hear(desk.message("start", phone.own_start()[1], room=ROOM))
    await desk.until(lambda: desk.kinds == ["ready", "accept"])


async def test_another_device_of_ours_that_answers_first_goes_on(desk: Desk) -> None:
    """X-020."""
    await begun(desk, ROOM)
    await desk.hear(desk.message("ready", {"from_device": "BOTDEVICE"}, BOT, ROOM))
    await desk.hear(desk.message("done", {"from_device": "OTHER"}, BOT, ROOM))
    assert len(desk.work._open) == 1
    await desk.hear(desk.message("ready", {"from_device": "OTHER"}, BOT, ROOM))
    await desk.settled()
    assert (desk.kinds, await desk.phase()) == (["ready"], "cancelled m.accepted")


async def test_another_device_of_ours_that_answers_later_changes_nothing(desk: Desk) -> None:
    """X-020: unless it starts."""
    await begun(desk, ROOM)
    desk.work.recognise_event(desk.requests[0].path.split("/")[-1], "$ready")
    await desk.hear(desk.message("ready", {"from_device": "OTHER"}, BOT, ROOM))
    assert not next(iter(desk.work._open)).end
    await desk.hear(desk.message("start", {"from_device": "OTHER"}, BOT, ROOM))
    await desk.settled()
    assert desk.kinds == ["ready"]


@pytest.mark.parametrize("code", ["m.accepted", "m.user"])
async def test_what_their_client_ends_is_over_and_what_comes_then_is_not_answered(
    desk: Desk, code: str
) -> None:
    """X-020: another device of ours answered, or they no longer want; nor is the request once more."""
    phone = await begun(desk)
    await desk.hear(desk.message("cancel", {"code": code}))
    await desk.settled()
    assert (desk.kinds, await desk.phase()) == (["ready"], f"cancelled {code}")
    again = desk.message("request", phone.request())
    await desk.hear(again, desk.message("key", {"key": "x"}), desk.message("start", OFFER))
    assert desk.work._begun.empty()
    assert desk.kinds == ["ready"]


async def test_what_belongs_to_no_verification_is_answered_within_bounds(desk: Desk) -> None:
    """X-020: the old flow, which begins with a `start`, as well."""
    start = {"from_device": "ANNSPHONE", **OFFER}
    await desk.hear(desk.message("start", start), desk.message("start", start))
    await desk.hear(desk.message("key", {"key": "x"}, transaction="T2"))
    await desk.hear(desk.message("done", {}, transaction="T3"))
    await desk.hear(desk.message("cancel", {"code": "m.user"}, transaction="T4"))
    await desk.hear(desk.message("key", {"key": "x"}, room=ROOM, transaction="T5"))
    await desk.until(lambda: len(desk.said) == 2)
    assert desk.kinds == ["cancel m.unknown_transaction"] * 2
    assert [(to, c["transaction_id"]) for _, to, c in desk.said] == [
        (f"{ANN} ANNSPHONE", "$asked"),
        (f"{ANN} *", "T2"),
    ]
    await desk.hear(*(desk.message("key", {}, transaction=f"N{n}") for n in range(1000)))
    await desk.until(lambda: len(desk.said) == MOST_AN_HOUR)
    assert not await desk.rows()


async def test_a_message_that_could_not_be_sent_is_sent_again_in_order(desk: Desk) -> None:
    """X-020: under the same id each time."""
    desk.trouble = [Answer(502), Answer(503, {"errcode": "M_UNKNOWN"})]
    phone = desk.phone()
    await desk.hear(desk.message("request", phone.request()))
    await desk.until(lambda: len(desk.requests) == 1)
    await desk.hear(desk.message("start", phone.own_start()[1]))
    for seconds in (0.5, 1.0):
        await desk.until(partial(desk.clock.slept.__contains__, seconds))
        await desk.clock.move(seconds)
    await desk.until(lambda: len(desk.requests) == 4)
    assert desk.kinds == ["ready", "ready", "ready", "accept"]
    assert len({request.path for request in desk.requests[:3]}) == 1


async def test_a_homeserver_that_stays_away_ends_it(desk: Desk) -> None:
    """X-020."""
    desk.trouble = [Answer(502)] * 1000
    await desk.hear(desk.message("request", desk.phone().request()))
    while desk.work._open:
        await asyncio.sleep(0.001)
        await desk.clock.move(60)
    assert await desk.phase() == "cancelled m.timeout"


async def test_what_the_homeserver_refuses_for_good_ends_it(desk: Desk) -> None:
    desk.trouble = [Answer(403, {"errcode": "M_FORBIDDEN"})]
    await desk.hear(desk.message("request", desk.phone(room=ROOM).request(), room=ROOM))
    await desk.settled()
    assert (desk.kinds, await desk.phase()) == (["ready"], "cancelled m.user")


@pytest.mark.parametrize(("minutes", "code"), [(1, "m.unknown_transaction"), (10, "m.timeout")])
@pytest.mark.parametrize("room", ["", ROOM])
async def test_a_restart_cancels_what_was_under_way(
    tmp_path: Path, proxy: Proxy, room: str, minutes: int, code: str
) -> None:
    """X-020: and what was over stays as it was; a day later it is forgotten."""
    clock = HeldClock()
    async with at_desk(tmp_path, proxy, clock) as desk:
        await talk(desk, desk.phone(room=room), "key")
        await desk.hear(desk.message("request", {}, BOB, "", "T2"))
        await desk.until(lambda: "cancel m.invalid_message" in desk.kinds)
        await desk.until(lambda: len(desk.work._open) == 1)
    clock.advance(minutes * 60)
    async with at_desk(tmp_path, proxy, clock) as desk:
        await desk.until(lambda: desk.has_said(1))
        await desk.settled()
        assert desk.kinds == [f"cancel {code}"]
        assert desk.said[0][1] == (room or f"{ANN} ANNSPHONE")
        assert await desk.phase() == f"cancelled {code}"
        assert await desk.phase("T2") == "cancelled m.invalid_message"
    clock.advance(86_401)
    async with at_desk(tmp_path, proxy, clock) as desk:
        await clock.asleep()
        assert not await desk.rows()
        assert not desk.said


class HeardMeanwhile(VerificationStore):
    """Rows that somebody's request joins while an earlier run's are read."""

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk.stores.database, desk.clock)
        self.desk = desk

    async def unfinished(self, ours: Party) -> list[Verification]:
        request = self.desk.phone().request()
        await self.desk.hear(self.desk.message("request", request, transaction="T2"))
        return await super().unfinished(ours)


async def test_what_is_heard_while_the_rows_are_read_is_not_an_earlier_runs(
    tmp_path: Path, proxy: Proxy
) -> None:
    """X-020: it is answered; only what was under way before is cancelled."""
    clock = HeldClock()
    async with at_desk(tmp_path, proxy, clock) as desk:
        await desk.hear(desk.message("request", desk.phone().request(), transaction="T1"))
        await desk.until(lambda: desk.kinds == ["ready"])
    async with at_desk(tmp_path, proxy, clock) as desk:
        desk.work._rows = HeardMeanwhile(desk)
        await desk.until(partial(desk.has_said, 2))
        said = {(kind, content["transaction_id"]) for kind, _, content in desk.said}
        assert said == {("ready", "T2"), ("cancel", "T1")}
        await desk.until(lambda: len(desk.work._open) == 1)
        assert await desk.phase("T2") == "ready"
        assert not next(iter(desk.work._open)).end


async def test_no_message_of_whatever_shape_stops_it(desk: Desk) -> None:
    """X-022: between devices and in rooms."""
    phone = desk.phone()
    kinds = ("request", "ready", "start", "accept", "key", "mac", "done", "cancel", "other")
    content = phone.request() | phone.own_start()[1] | {"mac": {"a": "b"}, "keys": "k", "code": "c"}
    for kind in (*(f"{VERIFICATION}{kind}" for kind in kinds), VERIFICATION, "m.room.message"):
        event = {"type": kind, "sender": ANN, "content": content}
        for spoilt in misshapen(event):
            batch = parse_sync({"next_batch": "s", "to_device": {"events": [spoilt]}})
            assert batch is not None
            await desk.hear(*batch.verifications[:1])
    relation = {"rel_type": "m.reference", "event_id": "$asked"}
    inner = content | {"m.relates_to": relation, "msgtype": f"{VERIFICATION}request"}
    raw = {"type": "m.room.encrypted", "sender": ANN, "event_id": "$e", "origin_server_ts": 1}
    for kind in (*(f"{VERIFICATION}{kind}" for kind in kinds), "m.room.message"):
        for spoilt in misshapen({"type": kind, "content": inner}):
            assert isinstance(spoilt, dict)
            found = verification_in_room(raw, spoilt, ROOM)
            await desk.hear(*([found] if found else []))
    for value in WRONG[1:]:
        assert parse_sync({"next_batch": "s", "to_device": {"events": value}}) is not None
    await desk.hear(desk.message("request", phone.request(), BOB, "", "last"))
    await desk.until(lambda: desk.kinds[-1:] == ["ready"])


async def test_of_two_starts_that_of_the_smaller_user_id_wins(desk: Desk) -> None:
    """X-020: ours is dropped, as theirs is the smaller."""
    phone = desk.phone(asks=False, room=ROOM)
    assert "wintermute matrix verify" in await asks(desk)
    assert [row["txn_id"] for row in await desk.rows()] == ["$asked"]
    request = desk.said[0][2]
    assert (request["to"], request["msgtype"]) == (ANN, f"{VERIFICATION}request")
    await desk.hear(desk.message(*phone.hear("request", request)[0], room=ROOM))
    await desk.hear(desk.message(*phone.own_start(), room=ROOM))
    await desk.until(lambda: desk.kinds[1:] == ["start", "accept"])


async def notices(desk: Desk) -> list[str]:
    """What the room is told."""
    rows = await desk.stores.database.rows("SELECT body FROM outbox ORDER BY rowid")
    return [row["body"] for row in rows]


async def test_a_room_hears_why_no_verification_begins(desk: Desk) -> None:
    """X-019: where one of the two has no method of the other's."""
    request = desk.phone(room=ROOM).request() | {"methods": ["m.qr_code.show.v1"]}
    await desk.hear(desk.message("request", request, room=ROOM))
    await desk.settled()
    assert desk.kinds == ["cancel m.unknown_method"]
    assert await notices(desk) == [NO_METHOD]


async def test_a_room_hears_once_that_what_was_sent_does_not_fit(desk: Desk) -> None:
    """X-020."""
    phone = desk.phone(room=ROOM)
    phone.keys = dict.fromkeys(phone.keys, some_key("another"))
    await talk(desk, phone, "cancel")
    await desk.hear(desk.message("cancel", {"code": "m.key_mismatch"}, room=ROOM))
    await desk.settled()
    assert await notices(desk) == [COMPARE, UNFIT]


async def test_somebody_at_the_machine_says_no(desk: Desk) -> None:
    """U-025: the daemon cancels it within a second, and says why; later a no counts for nothing."""
    store = VerificationStore(desk.stores.database, desk.clock)
    begun = desk.clock.now() - timedelta(seconds=1)
    assert await store.comparison(begun) is None
    await talk(desk, desk.phone(room=ROOM), "key")
    while not (found := await store.comparison(begun)):
        """Its row is about to be stored."""
    assert found["user_id"] == ANN
    assert await store.comparison(desk.clock.now()) is None  # another run has begun since
    for answer in ("noted", "too late"):
        assert await store.refuse(found) == answer
        await desk.clock.move(LOOK_SECONDS)
        await desk.settled()
    assert desk.kinds[-1] == "cancel m.mismatched_sas"
    assert await notices(desk) == [COMPARE, DIFFERENT]


@pytest.mark.parametrize("code", [*REASONS, "m.other"])
async def test_a_room_hears_of_an_end_that_its_person_did_not_choose(desk: Desk, code: str) -> None:
    """X-020: of emojis that were different in words that warn; of a cancellation nothing."""
    await talk(desk, desk.phone(room=ROOM), "key")
    await desk.hear(desk.message("cancel", {"code": code}, room=ROOM))
    await desk.settled()
    told = {**dict.fromkeys(FAILURES, UNFIT), "m.mismatched_sas": DIFFERENT}
    told["m.unknown_method"] = NO_METHOD
    assert await notices(desk) == [COMPARE, *([told[code]] if code in told else [])]


async def test_the_machine_shows_only_the_newest_of_each_person(desk: Desk) -> None:
    """X-019: a cancelled one is no warning once another was done."""
    rows = [
        *(("T1", ANN, 1, "cancelled", "m.user"), ("T2", ANN, 2, "done", "")),
        *(("T1", BOB, 4, "cancelled", "m.x"), ("T0", BOB, 3, "keyed", "")),
    ]
    async with desk.stores.database.transaction() as tx:
        for name, user, minute, phase, code in rows:
            began = stamp(desk.clock.now() + timedelta(minutes=minute))
            await tx.execute(
                "INSERT INTO verifications VALUES (?, ?, 'PHONE', '', ?, 'Dog', ?, ?, ?)",
                (name, user, phase, code, began, began),
            )
    assert await verifications(desk.stores.database) == [
        (f"verification with {BOB}", "warn", "cancelled (session PHONE): m.x"),
        (f"verification with {ANN}", "ok", "done (session PHONE)"),
    ]


@pytest.mark.parametrize("code", [*REASONS, ""])
async def test_the_machine_says_in_words_why_one_ended(desk: Desk, code: str) -> None:
    """X-020: and what to do, which is not to begin again where emojis were different."""
    await begun(desk)
    await desk.hear(desk.message("cancel", {"code": code}))
    await desk.settled()
    [(_, state, text)] = await verifications(desk.stores.database)
    assert state == "warn"
    assert "m." not in text.replace("encryption.md", "")
    assert " -> " in text
    if code == "m.mismatched_sas":
        assert "begin again" not in text
        assert "docs/encryption.md" in text
    if code == "m.user":
        assert "if the emojis were different, do not" in text


@pytest.mark.parametrize(("count", "verb"), [(1, "waits"), (2, "wait")])
async def test_status_counts_what_waits_for_a_session(desk: Desk, count: int, verb: str) -> None:
    """X-034: in good grammar."""
    async with desk.stores.database.transaction() as tx:
        await tx.execute(
            "INSERT INTO conversations (id, kind, scope, created_at) VALUES ('c', 'room', '', '')"
        )
        for n in range(count):
            await tx.execute(
                "INSERT INTO inbox (event_id, conversation_id, room_id, sender, sender_name, origin,"
                " kind, body, direct, raw, sent_at, received_at, state)"
                " VALUES (?, 'c', '', ?, '', 'other', 'message', '', 1, '', '', '', 'untrusted')",
                (f"${n}", ANN),
            )
    _, text = await untrusted(desk.stores.database)
    assert text.startswith(f"{count} message{'s' * (count > 1)} of {ANN} {verb} ")


@pytest.mark.parametrize(
    ("kind", "ending"), [("done", "phase=done"), ("cancel", "phase=cancelled code=m.user")]
)
async def test_the_log_says_how_it_ended_and_why(
    desk: Desk, caplog: pytest.LogCaptureFixture, kind: str, ending: str
) -> None:
    """X-019."""
    caplog.set_level(logging.INFO)
    await talk(desk, desk.phone(), "mac")
    await desk.hear(desk.message(kind, {"code": "m.user"}))
    await desk.settled()
    over = [line for line in caplog.messages if "verification over" in line]
    assert over == [f"verification over user={ANN} device=ANNSPHONE {ending}"]
