"""Whose device it is, decided from what a homeserver answers, whatever that is."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.world.clock import FakeClock
from tests.world.keys import (
    ANN,
    NEW,
    OLD,
    OTHER,
    SIGNING,
    Json,
    also_signed,
    key_of,
    with_identity,
    without_identity,
)
from tests.world.keys import Device as Phone
from tests.world.malformed import WRONG, misshapen
from tests.world.schema import open_migrated
from wintermute.errors import WintermuteError
from wintermute.matrix.people import (
    NOBODY,
    Device,
    Identity,
    People,
    PeopleStore,
    Person,
    cross_signing_key,
    identities,
    usable_devices,
)
from wintermute.matrix.signing import ED25519, public_key

BEN = "@ben:test"


def device(phone: Phone) -> Device:
    keys = phone.plain()["keys"]
    ed25519, curve25519 = (keys[f"{kind}:{phone.name}"] for kind in ("ed25519", "curve25519"))
    return Device(phone.user, phone.name, ed25519, curve25519)


def learn(people: People, *answers: Json, user: str = ANN) -> None:
    for each in answers:
        found, _ = usable_devices(each, [user])
        people.learn(each, found)


def known(*answers: Json) -> People:
    people = People([ANN])
    learn(people, *answers)
    return people


LAPTOP, TABLET = Phone(ANN, "LAPTOP"), Phone(ANN, "TABLET")
BOTH = (LAPTOP, TABLET)


def test_a_device_is_theirs_if_their_identity_signed_it() -> None:
    """X-034."""
    people = known(with_identity(*BOTH, signed=[LAPTOP]))
    assert people.trust_level(device(LAPTOP)) == "good"
    assert people.trust_level(device(TABLET)) == "unsigned"
    assert (people.is_signed_now(device(LAPTOP)), people.is_signed_now(device(TABLET))) == (True, 0)
    learn(people, with_identity(*BOTH, signed=BOTH))
    assert people.trust_level(device(TABLET)) == "good"


def test_without_an_identity_every_device_is_good_until_there_is_one() -> None:
    """X-034: what their new identity did not sign is not theirs then."""
    people = known(without_identity(LAPTOP))
    assert people.trust_level(device(LAPTOP)) == "good"
    assert not people.cross_signs(ANN)
    learn(people, with_identity(LAPTOP))
    assert people.trust_level(device(LAPTOP)) == "unsigned"
    assert people.cross_signs(ANN)


def test_a_signature_once_seen_stays_for_what_a_device_sent() -> None:
    """X-034: signed out, or its signature is gone: what it said is theirs, but it gets no keys."""
    for later in (with_identity(TABLET, signed=[TABLET]), with_identity(*BOTH, signed=[TABLET])):
        people = known(with_identity(LAPTOP, signed=[LAPTOP]), later)
        assert people.trust_level(device(LAPTOP)) == "good"
        assert not people.is_signed_now(device(LAPTOP))


def test_another_device_of_the_same_name_is_another_device() -> None:
    people = known(with_identity(LAPTOP, signed=[LAPTOP]))
    assert people.trust_level(device(Phone(ANN, "LAPTOP"))) == "unsigned"


def changes() -> Iterator[tuple[str, Json, str]]:
    """What can be served after an identity was seen, and what it is then changed to."""
    right = with_identity(LAPTOP, signed=[LAPTOP])
    yield "another master key", with_identity(LAPTOP, signed=[LAPTOP], master=NEW), public_key(NEW)
    yield "none", without_identity(LAPTOP), NOBODY
    yield "no master key", {**right, "master_keys": {}}, NOBODY
    stranger = also_signed(key_of(ANN, "self_signing", OTHER), ANN, NEW)
    yield "signed by nobody", {**right, "self_signing_keys": {ANN: stranger}}, NOBODY
    for spoilt in misshapen(right["master_keys"][ANN]):
        yield "spoilt", {**right, "master_keys": {ANN: spoilt}}, NOBODY


CHANGES = [*changes()]


@pytest.mark.parametrize("case", CHANGES[:4], ids=lambda case: case[0])
def test_another_identity_or_none_is_a_changed_one(case: tuple[str, Json, str]) -> None:
    """X-035."""
    _, later, changed_to = case
    people = known(with_identity(LAPTOP, signed=[LAPTOP]), later)
    [person] = people.changed()
    assert (person.master_key, person.changed_to) == (public_key(OLD), changed_to)
    assert people.trust_level(device(LAPTOP)) == "changed"
    learn(people, with_identity(LAPTOP, signed=[LAPTOP]))
    assert not people.changed()
    assert people.trust_level(device(LAPTOP)) == "good"


def test_a_spoilt_master_key_is_none() -> None:
    """X-035: each field missing or of another kind, in an answer after the identity was seen."""
    right = key_of(ANN, "master", OLD)
    for name, later, _ in CHANGES[4:]:
        people = known(with_identity(LAPTOP, signed=[LAPTOP]), later)
        served = later["master_keys"][ANN]
        same = all(served.get(field) == right[field] for field in right)
        assert people.is_changed(ANN) == (not same), (name, served)


def silences() -> Iterator[Json]:
    """Answers that say nothing of ann."""
    yield {}
    yield {"device_keys": {}}
    yield {"device_keys": {BEN: {}}, "failures": {}}
    yield {**without_identity(LAPTOP), "failures": {"test": {"errcode": "M_UNAVAILABLE"}}}
    yield {"device_keys": {ANN: None}}
    yield {"device_keys": {ANN: []}, "master_keys": {ANN: {}}}


@pytest.mark.parametrize("nothing", [*silences()])
def test_who_is_missing_in_an_answer_stays_as_they_were(nothing: Json) -> None:
    """X-034."""
    people = known(with_identity(*BOTH, signed=[LAPTOP]), nothing)
    assert not people.changed()
    assert people.trust_level(device(LAPTOP)) == "good"
    assert people.trust_level(device(TABLET)) == "unsigned"
    assert people.is_signed_now(device(LAPTOP))


OUTSIDE = Phone(ANN, "OUTSIDE").plain()["keys"]["curve25519:OUTSIDE"]
LONG = "A" * 70_000
SPOILT_KEYS: list[Json] = [
    {},
    {"user_id": BEN},
    {"usage": []},
    {"usage": "master"},
    {"usage": {"master": True}},
    {"usage": ["self_signing"]},
    {"usage": [["master"], None]},
    {"keys": {}},
    {"keys": []},
    {"keys": {ED25519 + public_key(OLD): public_key(NEW)}},
    {"keys": {public_key(OLD): public_key(OLD)}},
    {"keys": {f"curve25519:{OUTSIDE}": OUTSIDE}},
    {"keys": {ED25519 + "?" * 43: "?" * 43}},
    {"keys": {ED25519 + "AAAA": "AAAA"}},
    {"keys": {ED25519: ""}},
    {"keys": {ED25519 + LONG: LONG}},
    {"keys": {ED25519 + public_key(OLD): {"a": public_key(OLD)}}},
    {"keys": {ED25519 + public_key(seed): public_key(seed) for seed in (OLD, NEW)}},
]


@pytest.mark.parametrize("spoilt", SPOILT_KEYS)
def test_only_one_ed25519_key_of_the_user_with_the_usage_is_a_key(spoilt: Json) -> None:
    right = key_of(ANN, "master", OLD)
    assert cross_signing_key({"master_keys": {ANN: right}}, ANN, "master") == public_key(OLD)
    served = {"master_keys": {ANN: right | spoilt if spoilt else {}}}
    assert cross_signing_key(served, ANN, "master") == NOBODY


def test_a_self_signing_key_counts_only_if_the_master_key_signed_it() -> None:
    """X-034, X-035: signed by another, for another, with a spoilt signature, or by nobody."""
    right = with_identity(LAPTOP, signed=[LAPTOP])
    bare = key_of(ANN, "self_signing", SIGNING)
    by_master = right["self_signing_keys"][ANN]
    [(name, mark)] = by_master["signatures"][ANN].items()
    marks = [bare, also_signed(bare, BEN, OLD), also_signed(bare, ANN, SIGNING)]
    marks += [
        also_signed(bare | {"usage": ["self_signing", "x"]}, ANN, OLD) | {"usage": bare["usage"]}
    ]
    for value in (*WRONG[1:], mark.swapcase(), "A" * 86):
        marks.append(bare | {"signatures": {ANN: {name: value}}})
        marks.append(bare | {"signatures": {ANN: value}})
        marks.append(bare | {"signatures": value})
    marks += [key_of(BEN, "self_signing", SIGNING) | {"signatures": by_master["signatures"]}]
    for spoilt in marks:
        served = {**right, "self_signing_keys": {ANN: spoilt}}
        assert identities(served, [ANN])[ANN] == Identity(public_key(OLD), NOBODY, sound=False)
    empty: list[Json] = [{}, {"self_signing_keys": {}}]
    for nothing in empty:
        served = {key: right[key] for key in ("device_keys", "master_keys")} | nothing
        assert identities(served, [ANN])[ANN] == Identity(public_key(OLD), NOBODY, sound=True)


def test_a_device_with_a_spoilt_signature_is_unsigned() -> None:
    right = also_signed(LAPTOP.keys(), ANN, SIGNING)
    name = ED25519 + public_key(SIGNING)
    for value in (*WRONG[1:], right["signatures"][ANN][name].swapcase()):
        served = with_identity(LAPTOP)
        by_user = {**right["signatures"][ANN], name: value}
        served["device_keys"][ANN]["LAPTOP"] = right | {"signatures": {ANN: by_user}}
        assert known(served).trust_level(device(LAPTOP)) == "unsigned"


def test_every_field_of_an_answer_can_be_anything() -> None:
    """X-022: each field of any depth missing or of another kind."""
    full = with_identity(*BOTH, signed=BOTH) | {"failures": {"elsewhere": {}}}
    count = 0
    for spoilt in misshapen(full):
        assert isinstance(spoilt, dict)
        people = known(full, spoilt)
        assert people.trust_level(device(LAPTOP)) in ("good", "changed")
        assert people.take_changes()
        count += 1
    assert count > 400


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=50),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4)
    ),
    max_leaves=12,
)
PARTS = ("device_keys", "master_keys", "self_signing_keys", "failures")
OF_ANN = st.dictionaries(st.sampled_from([ANN, BEN, "test", ""]), ANYTHING, max_size=3)


@given(st.dictionaries(st.sampled_from(PARTS), ANYTHING | OF_ANN, max_size=4))
def test_no_answer_at_all_can_raise(served: Json) -> None:
    """X-022."""
    people = known(with_identity(LAPTOP, signed=[LAPTOP]), served)
    learn(people, served, user="")
    assert people.trust_level(device(LAPTOP)) in ("good", "changed")


def test_a_guest_is_known_by_what_is_served_only() -> None:
    people = People([ANN])
    phone = Phone(BEN, "PHONE")
    learn(people, with_identity(phone, signed=[phone], user=BEN), user=BEN)
    assert people.cross_signs(BEN)
    assert people.is_signed_now(device(phone))
    assert (people.person(BEN), people.take_changes()) == (None, [])
    learn(people, with_identity(phone, user=BEN, master=NEW), user=BEN)
    assert not people.is_signed_now(device(phone))
    assert people.trust_level(device(phone)) == "good"


def test_only_what_is_new_is_news() -> None:
    """What waits is looked at again after each of them, so that none may come of nothing."""
    people = known(without_identity(LAPTOP))
    assert len(people.take_changes()) == 1
    for step in (
        without_identity(*BOTH),
        with_identity(*BOTH),
        with_identity(*BOTH, signed=[LAPTOP]),
        with_identity(master=NEW),
    ):
        learn(people, step)
        assert len(people.take_changes()) == 1
        learn(people, step)
        assert people.take_changes() == []


async def test_identities_are_kept_as_they_were_first_seen(tmp_path: Path) -> None:
    """X-035: over a restart, and trusted is only what they were told of."""
    async with open_migrated(tmp_path / "w.db") as database:
        store = PeopleStore(database, FakeClock())
        people = known(
            with_identity(LAPTOP, signed=[LAPTOP]),
            with_identity(LAPTOP, signed=[LAPTOP], master=NEW),
        )
        await keep_news(store, database, people)
        [person] = await store.people()
        assert person == Person(ANN, public_key(OLD), public_key(NEW))
        for user, problem in ((ANN, "has no notice"), (BEN, "saw no identity of")):
            with pytest.raises(WintermuteError, match=problem):
                await trusted(store, database, user)
        await mark_reported(store, database, person)
        learn(people, with_identity(LAPTOP, signed=[LAPTOP], master=OTHER))
        await keep_news(store, database, people)
        with pytest.raises(WintermuteError, match="has changed again"):
            await trusted(store, database, ANN)
        await mark_reported(store, database, (await store.people())[0])
        assert (await trusted(store, database, ANN)).master_key == public_key(OLD)
        again = People([ANN])
        assert again.restore(await store.people(), await store.signed())
        assert again.trust_level(device(LAPTOP)) == "good"
        assert not again.restore(await store.people(), ())
        with pytest.raises(WintermuteError, match="has not changed"):
            await trusted(store, database, ANN)


async def test_who_has_none_any_more_can_be_trusted_without(tmp_path: Path) -> None:
    """X-035."""
    async with open_migrated(tmp_path / "w.db") as database:
        store = PeopleStore(database, FakeClock())
        people = known(with_identity(LAPTOP, signed=[LAPTOP]), without_identity(LAPTOP))
        await keep_news(store, database, people)
        await mark_reported(store, database, (await store.people())[0])
        await trusted(store, database, ANN)
        assert people.restore(await store.people(), ())
        learn(people, without_identity(LAPTOP))
        assert people.trust_level(device(LAPTOP)) == "good"


async def keep_news(store: PeopleStore, database: Any, people: People) -> None:
    async with database.transaction() as tx:
        for learned in people.take_changes():
            await store.keep(tx, learned)


async def mark_reported(store: PeopleStore, database: Any, person: Person) -> None:
    async with database.transaction() as tx:
        await store.store_notified(tx, person)


async def trusted(store: PeopleStore, database: Any, user: str) -> Person:
    async with database.transaction() as tx:
        return await store.trust(tx, user)
