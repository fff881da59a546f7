"""Verification by emoji, as tables, as whole ones and in any order a network makes: nobody is trusted without both MACs right."""

import base64
import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vodozemac import Sas

from tests.tiers import examples
from tests.world.phone import BOT, CHOICE, NEW, NOW, OFFER, OLD, Phone, Talk, overwritten, some_key
from wintermute.matrix.sas import (
    EMOJIS,
    OutgoingMessages,
    Party,
    Phase,
    Verification,
    answer_request,
    ask,
    ask_devices,
    ask_in_room,
    cancel,
    expired,
    named,
    receive,
)
from wintermute.messages import Json

SETTINGS = [(asks, room) for asks in ("bot", "phone") for room in ("", "!room")]


@pytest.mark.parametrize("mac", [NEW, OLD])
@pytest.mark.parametrize(("asks", "room"), SETTINGS)
def test_both_show_the_same_emojis_and_verify_each_other(asks: str, room: str, mac: str) -> None:
    """X-019: in a room and between devices, started by either side, with an old client as well."""
    talk = Talk(asks, room, mac=mac).until("keyed")
    assert len(talk.bot.emojis) == 7
    assert talk.bot.emojis == talk.phone.emojis
    assert talk.bot.decimals == talk.phone.decimals
    assert "mac" not in talk.said
    talk.until("done")
    begun = ["start", "key"] if asks == "bot" else ["ready", "accept", "key"]
    assert talk.said == [*begun, "mac", "done"]
    assert talk.phone.verified
    assert talk.phone.code == talk.bot.code == ""
    assert set(talk.bot.verified_keys) == set(talk.phone.keys)
    assert talk.bot.their_device == "ANNSPHONE"


@pytest.mark.parametrize(("asks", "room"), SETTINGS)
def test_every_message_names_its_transaction(asks: str, room: str) -> None:
    """X-019."""
    talk = Talk(asks, room)
    sent = [talk.to_phone[0]] if asks == "phone" else []
    while talk.bot.phase != "done":
        talk.settle()
        sent += talk.deliver(*talk.to_bot.pop(0))
    sent += cancel(ask("$asked", room, BOT, "@ann:here", NOW), "m.user")[1]
    for _, content in sent:
        relation = {"rel_type": "m.reference", "event_id": "$asked"} if room else None
        assert content.get("m.relates_to") == relation
        assert content.get("transaction_id") == (None if room else "$asked")


def test_a_request_says_who_is_asked_or_when() -> None:
    """X-019."""
    common = {"from_device": "BOTDEVICE", "methods": ["m.sas.v1"]}
    room = ask_in_room(BOT, "@ann:here")
    assert room.pop("body")
    assert room == {**common, "msgtype": "m.key.verification.request", "to": "@ann:here"}
    devices = {**common, "transaction_id": "T", "timestamp": 1772366400000}
    assert ask_devices(BOT, "T", NOW) == devices


@pytest.mark.parametrize("room", ["", "!room"])
@pytest.mark.parametrize("user", ["@ann:here", "@zoe:here"])
def test_of_two_starts_that_of_the_smaller_user_wins(room: str, user: str) -> None:
    """X-020."""
    talk = Talk("bot", room, user)
    talk.settle()
    start = talk.phone.own_start()
    talk.deliver(*talk.to_bot.pop(0))
    out = talk.deliver(*start)
    theirs = user < BOT.user_id
    assert [kind for kind, _ in out] == (["accept"] if theirs else [])
    if theirs:
        talk.to_phone, talk.phone.expects = [*out], {"accept"}
    assert talk.until("done").phone.verified
    assert talk.bot.we_started is not theirs


@pytest.mark.parametrize("device", ["ANNSPHONE", "ZOESPHONE"])
def test_of_two_starts_of_one_user_that_of_the_smaller_device_wins(device: str) -> None:
    """X-020."""
    talk = Talk("bot", "", BOT.user_id)
    talk.phone.device = device
    talk.until("started")
    out = talk.deliver(*talk.phone.own_start())
    assert [kind for kind, _ in out] == (["accept"] if device < BOT.device_id else [])


@given(st.binary(min_size=1, max_size=80).map(bytes.hex))
def test_the_old_method_is_the_new_one_in_base64_that_overwrites_itself(text: str) -> None:
    """X-019: as libolm did, and nheko 0.11 does (MSC3783)."""
    left, right = Sas(), Sas()
    secret = left.diffie_hellman(right.public_key)
    raw = base64.b64decode(f"{secret.calculate_mac(text, 'info')}=")
    assert secret.calculate_mac_invalid_base64(text, "info") == overwritten(raw)


@pytest.mark.parametrize(
    ("offered", "accepted"), [([OLD, NEW], NEW), ([NEW, "x"], NEW), (["x", OLD], OLD)]
)
def test_the_best_method_that_both_know_is_taken(offered: list[str], accepted: str) -> None:
    """X-019."""
    talk = Talk("phone")
    talk.settle()
    kind, content = talk.to_bot.pop(0)
    [(_, accept)] = talk.deliver(kind, content | {"message_authentication_codes": offered})
    assert accept["message_authentication_code"] == accepted


@pytest.mark.parametrize(
    ("asks", "kind", "change", "code"),
    [
        ("phone", "start", {"message_authentication_codes": [OLD]}, "m.mismatched_commitment"),
        ("bot", "accept", {"message_authentication_code": OLD}, "m.key_mismatch"),
    ],
)
def test_who_takes_the_better_method_away_on_the_way_gains_nothing(
    asks: str, kind: str, change: Json, code: str
) -> None:
    """X-020: the promise covers what was offered, and the MAC shows what was chosen."""
    talk = Talk(asks)
    talk.settle()
    while talk.to_bot:
        said, content = talk.to_bot.pop(0)
        talk.deliver(said, content | (change if said == kind else {}))
        talk.settle()
    assert (talk.bot.phase, talk.bot.code, talk.bot.verified_keys) == ("cancelled", code, ())
    assert not talk.phone.verified


def test_two_that_compare_nothing_show_the_same_and_wait_for_each_other() -> None:
    """X-019: neither sends its MAC before the other's."""
    other = Party("@two:here", "OTHER", some_key("two"))
    left = ask("T", "", BOT, other.user_id, NOW)
    right, to_left = answer_request("T", "", other, BOT.user_id, ask_devices(BOT, "T", NOW), NOW)
    to_right: OutgoingMessages = ()
    while to_left or to_right:
        for kind, content in to_left:
            left, out = receive(left, kind, content, {})
            to_right += out
        to_left = ()
        for kind, content in to_right:
            right, out = receive(right, kind, content, {})
            to_left += out
        to_right = ()
    assert (left.phase, right.phase) == ("keyed", "keyed")
    assert left.emojis == right.emojis
    assert left.decimals == right.decimals


def test_without_cross_signing_only_the_device_key_is_proved() -> None:
    """X-019."""
    talk = Talk("phone").until("keyed")
    talk.bot = replace(talk.bot, ours=replace(BOT, master_key=""))
    [(_, content), _] = talk.deliver(*talk.to_bot.pop(0))
    assert [*content["mac"]] == ["ed25519:BOTDEVICE"]


@pytest.mark.parametrize(
    ("offered", "accepted"),
    [
        (["decimal"], ["decimal"]),
        (["emoji", "x"], ["emoji"]),
        (["decimal", "emoji"], ["emoji", "decimal"]),
    ],
)
def test_only_what_both_can_show_is_shown(offered: list[str], accepted: list[str]) -> None:
    """X-019."""
    talk = Talk("phone")
    talk.settle()
    kind, content = talk.to_bot.pop(0)
    [(_, accept)] = talk.deliver(kind, {**content, "short_authentication_string": offered})
    assert accept["short_authentication_string"] == accepted
    talk.deliver("key", {"key": talk.phone.public})
    assert (bool(talk.bot.emojis), bool(talk.bot.decimals)) == (
        "emoji" in accepted,
        "decimal" in accepted,
    )


def test_the_emojis_are_those_of_the_specification() -> None:
    """X-019."""
    assert (
        len(EMOJIS)
        == len({emoji for emoji, _ in EMOJIS})
        == len({name for _, name in EMOJIS})
        == 64
    )
    known = {0: ("🐶", "Dog"), 21: ("☁️", "Cloud"), 34: ("🔧", "Spanner"), 36: ("👍", "Thumbs Up")}
    known |= {53: ("✈️", "Aeroplane"), 56: ("⚽", "Ball"), 63: ("📌", "Pin")}
    assert named(known) == tuple(known.values())


PHASES: list[tuple[str, Phase]] = [
    ("bot", "requested"),
    ("phone", "ready"),
    ("bot", "started"),
    ("bot", "accepted"),
    ("phone", "accepted"),
    ("bot", "keyed"),
    ("phone", "keyed"),
    ("phone", "confirmed"),
    ("bot", "confirmed"),
]
FITTING: dict[tuple[str, Phase, str], tuple[Phase, list[str]]] = {
    ("bot", "requested", "ready"): ("started", ["start"]),
    ("phone", "ready", "start"): ("accepted", ["accept"]),
    ("bot", "started", "start"): ("accepted", ["accept"]),
    ("bot", "started", "accept"): ("accepted", ["key"]),
    ("bot", "accepted", "key"): ("keyed", []),
    ("phone", "accepted", "key"): ("keyed", ["key"]),
    ("bot", "keyed", "mac"): ("confirmed", ["mac", "done"]),
    ("phone", "keyed", "mac"): ("confirmed", ["mac", "done"]),
    ("bot", "confirmed", "done"): ("done", []),
    ("phone", "confirmed", "done"): ("done", []),
}
KINDS = ["request", "ready", "start", "accept", "key", "mac", "done", "nonsense"]


def sample(talk: Talk, kind: str) -> Json:
    """What the phone says now, else something well formed of that kind."""
    device = {"from_device": "ANNSPHONE", "methods": ["m.sas.v1"]}
    made: dict[str, Json] = {"request": device, "ready": device, "key": {"key": some_key("x")}}
    made |= {"start": device | OFFER, "accept": CHOICE | {"commitment": "x"}}
    made |= {"mac": {"keys": "x", "mac": {}}}
    return dict(talk.to_bot).get(kind, made.get(kind, {"odd": 1}))


@pytest.mark.parametrize("mac", [NEW, OLD])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("asks", "phase"), PHASES)
def test_each_message_fits_only_where_it_belongs(
    asks: str, phase: Phase, kind: str, mac: str
) -> None:
    """X-020: what is out of order, or repeated with other content, ends it and trusts nobody."""
    talk = Talk(asks, mac=mac).until(phase)
    out = talk.deliver(kind, sample(talk, kind))
    expected = FITTING.get((asks, phase, kind), ("cancelled", ["cancel"]))
    assert (talk.bot.phase, [name for name, _ in out]) == expected
    if talk.bot.phase == "cancelled":
        assert talk.bot.code == out[0][1]["code"] == "m.unexpected_message"
        assert out[0][1]["reason"]
        assert talk.bot.verified_keys == ()


@pytest.mark.parametrize("mac", [NEW, OLD])
@pytest.mark.parametrize(("asks", "phase"), PHASES)
def test_an_identical_repeat_changes_nothing_and_another_ends_it(
    asks: str, phase: Phase, mac: str
) -> None:
    """X-020."""
    talk = Talk(asks, mac=mac)
    heard = [("request", talk.phone.request())] if asks == "phone" else []
    talk.settle()
    while talk.bot.phase != phase:
        heard.append(talk.to_bot.pop(0))
        talk.deliver(*heard[-1])
        talk.settle()
    for kind, content in heard:
        assert receive(talk.bot, kind, dict(reversed(content.items())), {}) == (talk.bot, ())
        ended, out = receive(talk.bot, kind, content | {"x": 1}, talk.phone.keys)
        assert (ended.phase, ended.code, len(out)) == ("cancelled", "m.unexpected_message", 1)
    assert talk.until("done").phone.verified


@pytest.mark.parametrize(("asks", "phase"), PHASES)
def test_their_cancel_ends_it_silently(asks: str, phase: Phase) -> None:
    """X-020: also `m.accepted`, with which their other devices step back."""
    talk = Talk(asks).until(phase)
    codes = {"m.mismatched_sas": "m.mismatched_sas", "m.accepted": "m.accepted", "x" * 65: ""}
    for code, kept in [*codes.items(), ("m.\n", ""), (5, ""), (["m.user"], ""), (None, "")]:
        ended, out = receive(talk.bot, "cancel", {"code": code}, {})
        assert (ended.phase, ended.code, ended.verified_keys, out) == ("cancelled", kept, (), ())
    assert receive(talk.bot, "cancel", None, {})[0].phase == "cancelled"


@pytest.mark.parametrize("kind", [*KINDS, "cancel"])
def test_after_the_end_everything_is_ignored(kind: str) -> None:
    """X-020."""
    done = Talk("phone").until("done").bot
    cancelled, _ = cancel(Talk("bot").until("started").bot, "m.user")
    for over in (done, cancelled):
        for content in ({"code": "m.user"}, None):
            assert receive(over, kind, content, {}) == (over, ())
        assert cancel(over, "m.user") == (over, ())
        assert expired(over, NOW + timedelta(days=1)) == (over, ())


@pytest.mark.parametrize(("asks", "phase"), PHASES)
def test_it_may_take_ten_minutes(asks: str, phase: Phase) -> None:
    """X-020."""
    bot = Talk(asks).until(phase).bot
    assert expired(bot, NOW + timedelta(seconds=599)) == (bot, ())
    ended, [(kind, content)] = expired(bot, NOW + timedelta(minutes=10))
    assert (ended.phase, ended.code, kind) == ("cancelled", "m.timeout", "cancel")
    assert content["code"] == "m.timeout"
    assert ended.verified_keys == ()


def test_what_is_secret_is_not_in_a_log() -> None:
    """X-020."""
    shown = repr(Talk("phone").until("keyed").bot)
    assert "sas=" not in shown
    assert "secret=" not in shown


ABSENT = object()
NO_IDS: list[object] = [ABSENT, 5, None, "", "x" * 256, "a\nb", ["ANNSPHONE"]]
NO_WORDS: list[object] = [ABSENT, 5, "m.sas.v1", ["m.sas.v1", 1], {"m.sas.v1": 1}]
ZERO, ONE = "A" * 43, "AQ" + "A" * 41
NO_KEYS: list[object] = [*NO_IDS, "x", "é", "A" * 42, "A" * 44, "x" * 43, ZERO, ONE]
LISTS = [name for name, words in OFFER.items() if isinstance(words, list)]
INVALID: list[tuple[str, str, str, str, Sequence[object]]] = [
    ("bot", "requested", "ready", "from_device", NO_IDS),
    ("bot", "requested", "ready", "methods", NO_WORDS),
    ("phone", "ready", "start", "from_device", [*NO_IDS, "ANNSLAPTOP"]),
    ("phone", "ready", "start", "method", NO_IDS),
    *(("phone", "ready", "start", name, NO_WORDS) for name in LISTS),
    ("bot", "started", "accept", "short_authentication_string", NO_WORDS),
    *(("bot", "started", "accept", name, NO_IDS) for name in [*list(CHOICE)[1:4], "commitment"]),
    ("phone", "accepted", "key", "key", NO_KEYS),
    ("phone", "keyed", "mac", "keys", NO_IDS),
    ("phone", "keyed", "mac", "mac", [ABSENT, 5, [], "x", {"a": 1}, {"a": ""}, {"a": ["x"]}]),
]
UNKNOWN: list[tuple[str, str, str, str, Sequence[object]]] = [
    ("bot", "requested", "ready", "methods", [[], ["m.qr_code.show.v1"]]),
    ("phone", "ready", "start", "method", ["m.reciprocate.v1"]),
    *(("phone", "ready", "start", name, [[], ["x"], ["hmac-sha256"]]) for name in LISTS),
    *(("bot", "started", "accept", name, ["x"]) for name in list(CHOICE)[1:4]),
    ("bot", "started", "accept", "short_authentication_string", [[], ["x"]]),
    ("bot", "started", "accept", "message_authentication_code", ["hmac-sha256"]),
    ("bot", "started", "accept", "key_agreement_protocol", ["curve25519"]),
]
WRONG = [(*case, "m.invalid_message") for case in INVALID]
WRONG += [(*case, "m.unknown_method") for case in UNKNOWN]
WRONG += [
    ("bot", "started", "start", "method", ["m.reciprocate.v1"], "m.unexpected_message"),
    ("bot", "accepted", "key", "key", [some_key("another")], "m.mismatched_commitment"),
    ("bot", "accepted", "key", "key", [ZERO, ONE], "m.mismatched_commitment"),
    ("phone", "keyed", "mac", "keys", ["x", "AA", some_key("x"), "é"], "m.key_mismatch"),
]


@pytest.mark.parametrize(("asks", "phase", "kind", "name", "values", "code"), WRONG)
def test_a_wrong_field_ends_it_with_the_right_code(
    asks: str, phase: str, kind: str, name: str, values: Sequence[object], code: str
) -> None:
    """X-020."""
    for value in values:
        talk = Talk(asks).until(phase)
        content = sample(talk, kind) | {name: value}
        out = talk.deliver(
            kind, {key: content[key] for key in content if content[key] is not ABSENT}
        )
        assert (talk.bot.phase, talk.bot.code) == ("cancelled", code), value
        assert [(sent, words["code"]) for sent, words in out] == [("cancel", code)]
        assert talk.bot.verified_keys == ()


@pytest.mark.parametrize("name", ["from_device", "methods"])
def test_a_wrong_request_is_refused(name: str) -> None:
    """X-019: or one without a method that we know."""
    good = Talk("phone").phone.request()
    cases = [
        (value, "m.invalid_message") for value in (NO_IDS if name == "from_device" else NO_WORDS)
    ]
    cases += [([], "m.unknown_method"), (["m.x"], "m.unknown_method")] if name == "methods" else []
    for value, code in cases:
        content = {key: part for key, part in (good | {name: value}).items() if part is not ABSENT}
        refused, out = answer_request("T", "", BOT, "@ann:here", content, NOW)
        assert (refused.phase, refused.code) == ("cancelled", code), value
        assert [kind for kind, _ in out] == ["cancel"]


def test_our_own_device_is_not_verified_with_itself() -> None:
    """X-020: what we said comes back as if somebody else said it."""
    content = ask_devices(BOT, "T", NOW)
    assert answer_request("T", "", BOT, BOT.user_id, content, NOW)[0].code == "m.invalid_message"
    assert answer_request("T", "", BOT, "@ann:here", content, NOW)[0].phase == "ready"


DEEP: Any = []
for _ in range(5_000):
    DEEP = [DEEP]
GARBAGE: list[object] = [None, 5, "x", [], True, {"x": "y" * 10_001}, {"x": DEEP}, {"x": "\ud800"}]
GARBAGE += [{"x": float("nan")}, {"\ud800": 1}, {"x": 10**5_000}, {1: 2, "a": 3}, {"x": b""}]


@pytest.mark.parametrize(("asks", "phase"), PHASES)
def test_garbage_ends_it_and_nothing_else(asks: str, phase: Phase) -> None:
    """X-020."""
    for content in GARBAGE:
        for kind in KINDS:
            ended, _ = receive(Talk(asks).until(phase).bot, kind, content, {})
            assert (ended.phase, ended.code) == ("cancelled", "m.invalid_message")
        refused, _ = answer_request("T", "", BOT, "@ann:here", content, NOW)
        assert (refused.phase, refused.code) == ("cancelled", "m.invalid_message")


DEVICE, MASTER = Talk("phone").phone.keys
OTHER = some_key("other")
MACED: list[tuple[str, dict[str, str], dict[str, str], tuple[str, ...] | None]] = [
    ("all", {}, {}, (DEVICE, MASTER)),
    ("without a master key", {MASTER: ""}, {}, (DEVICE,)),
    ("with one that we do not know", {"ed25519:NEW": OTHER, "hmac:X": OTHER}, {}, (DEVICE, MASTER)),
    ("without the one that speaks", {DEVICE: ""}, {}, None),
    ("of nothing", {DEVICE: "", MASTER: ""}, {}, None),
    ("of another device key", {DEVICE: OTHER}, {}, None),
    ("of another master key", {MASTER: OTHER}, {}, None),
    ("of a device that is not known", {}, {DEVICE: ""}, None),
    ("of a device known otherwise", {}, {DEVICE: OTHER}, None),
    ("of a master key known otherwise", {}, {MASTER: OTHER}, None),
    ("of a master key that is gone", {}, {MASTER: ""}, (DEVICE,)),
    ("of nothing that is known", {}, {DEVICE: "", MASTER: ""}, None),
]


def without_empty(keys: dict[str, str]) -> dict[str, str]:
    return {name: keys[name] for name in keys if keys[name]}


@pytest.mark.parametrize("mac", [NEW, OLD])
@pytest.mark.parametrize("asks", ["bot", "phone"])
@pytest.mark.parametrize(("case", "said", "known", "verified"), MACED)
def test_a_mac_proves_what_is_known_and_at_least_the_device_that_speaks(
    asks: str,
    case: str,
    said: dict[str, str],
    known: dict[str, str],
    verified: tuple[str, ...] | None,
    mac: str,
) -> None:
    """X-020: and only then ours goes out (X-019)."""
    talk = Talk(asks, mac=mac).until("keyed")
    _, content = talk.phone.mac_of(without_empty(talk.phone.keys | said))
    bot, out = receive(talk.bot, "mac", content, without_empty(talk.phone.keys | known))
    if verified:
        assert (bot.phase, set(bot.verified_keys)) == ("confirmed", set(verified))
        assert [kind for kind, _ in out] == ["mac", "done"]
    else:
        assert (bot.phase, bot.code, bot.verified_keys) == ("cancelled", "m.key_mismatch", ())
        assert [kind for kind, _ in out] == ["cancel"]


@pytest.mark.parametrize("mac", [NEW, OLD])
@pytest.mark.parametrize("asks", ["bot", "phone"])
def test_a_list_of_keys_that_was_made_longer_or_shorter_proves_nothing(asks: str, mac: str) -> None:
    """X-020: each MAC alone is right, their list is not."""
    talk = Talk(asks, mac=mac).until("keyed")
    _, whole = talk.phone.mac_of(talk.phone.keys)
    longer = {**whole["mac"], "ed25519:NEW": talk.phone.own_tag(OTHER, "ed25519:NEW")}
    for macs in (longer, {DEVICE: whole["mac"][DEVICE]}):
        bot, _ = receive(talk.bot, "mac", {**whole, "mac": macs}, talk.phone.keys)
        assert (bot.phase, bot.code) == ("cancelled", "m.key_mismatch")
    cut = {**whole["mac"], DEVICE: whole["mac"][DEVICE][:22]}
    bot, _ = receive(talk.bot, "mac", {**whole, "mac": cut}, talk.phone.keys)
    assert (bot.phase, bot.code) == ("cancelled", "m.key_mismatch")


BROKEN = (AssertionError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
ORDER: list[Phase] = ["requested", "ready", "started", "accepted", "keyed", "confirmed", "done"]
CHANGES = ["drop", "repeat", "again", "alter", "alter", "alter", "mirror", "late", "forge"]

settings_of_calls = st.tuples(
    st.sampled_from(["bot", "phone"]), st.sampled_from(["", "!room"]), st.sampled_from([NEW, OLD])
)
acts = st.tuples(
    st.sampled_from(["next"] * 12 + CHANGES),
    st.integers(0, 7),
    st.integers(0, 10**6),
    st.booleans(),
)


class Network(Talk):
    """A homeserver that loses, repeats, mixes and changes what it carries, and knows what it saw."""

    def __init__(self, asks: str, room: str, mac: str, user: str) -> None:
        super().__init__(asks, room, user, mac)
        self.middle = Phone(False, room, user)
        self.seen: list[tuple[str, Json]] = []
        self.cancels = 0
        self.agreed = False

    def act(self, name: str, place: int, choice: int, to_bot: bool) -> None:
        """One thing that happens on the way."""
        queue = self.to_bot if to_bot else self.to_phone
        place = place % len(queue) if queue else 0
        if name == "again" and self.seen:
            queue.append(self.seen[choice % len(self.seen)])
        elif name == "forge":
            queue.append(self.forged(choice))
        elif not queue:
            self.hear(self.to_phone if to_bot else self.to_bot, 0, not to_bot)
        elif name == "drop":
            queue.pop(place)
        elif name == "repeat":
            queue.append(queue[place])
        elif name == "alter":
            queue[place] = self.altered(queue[place], choice)
        elif name == "mirror":
            (self.to_phone if to_bot else self.to_bot).append(queue[place])
        else:
            self.hear(queue, place if name == "late" else 0, to_bot)

    def hear(self, queue: list[tuple[str, Json]], place: int, by_bot: bool) -> None:
        if not queue:
            return
        kind, content = queue.pop(place)
        self.seen.append((kind, content))
        if by_bot:
            out = self.deliver(kind, content)
            self.cancels += sum(name == "cancel" for name, _ in out)
        else:
            try:
                self.to_bot += self.phone.hear(kind, content)
            except BROKEN:
                self.to_bot += self.phone.end("m.invalid_message")
        if self.phone.emojis and self.bot.emojis and not self.compared:
            self.compared = True
            self.agreed = not self.phone.code and self.phone.emojis == self.bot.emojis
            self.to_bot += () if self.phone.code else self.phone.compare(self.bot.emojis)

    def pool(self, mine: object) -> list[object]:
        """What can stand in a field: all that was seen in one, the middle's own key, and garbage."""
        seen = [part for _, content in self.seen for part in parts(content)]
        own = [self.middle.public, self.middle.promise(self.middle.public), "ANNSLAPTOP"]
        return [*own, "", 5, None, OLD, [OLD], [], {}, ["emoji"], ["decimal"], f"{mine}=", *seen]

    def altered(self, message: tuple[str, Json], choice: int) -> tuple[str, Json]:
        kind, content = message
        content = json.loads(json.dumps(content))
        places = [(content, name) for name in content]
        places += [(content["mac"], name) for name in list(dict_of(content.get("mac")))]
        inside, name = places[choice % len(places)]
        pool = self.pool(inside[name])
        inside[name] = pool[choice // len(places) % len(pool)]
        return kind, content

    def forged(self, choice: int) -> tuple[str, Json]:
        self.middle.start = json.loads(self.bot.start or "{}")
        made = [
            self.middle.message("key", key=self.middle.public),
            self.middle.message("done"),
            self.middle.own_start(),
            self.middle.message("ready", from_device=self.phone.device, methods=["m.sas.v1"]),
        ]
        return made[choice % len(made)]


def parts(content: Json) -> list[object]:
    return [*content.values(), *dict_of(content.get("mac")).values()]


def dict_of(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def check(network: Network, before: Verification) -> None:
    """What is true at any time."""
    bot, phone = network.bot, network.phone
    assert network.cancels <= 1
    if before.is_over:
        assert bot == before
    elif bot.phase != "cancelled":
        assert ORDER.index(bot.phase) >= ORDER.index(before.phase)
    if bot.we_started and "key" in bot.received and bot.phase != "cancelled":
        network.middle.start = json.loads(bot.start)
        key = json.loads(bot.received["key"])["key"].rstrip("=")
        assert network.middle.promise(key) == json.loads(bot.received["accept"])["commitment"]
    assert ("mac" in network.said) is ("done" in network.said)
    if "mac" not in network.said:
        assert bot.verified_keys == ()
        assert bot.phase not in ("confirmed", "done")
        assert not phone.verified
        return
    assert network.agreed
    assert bot.emojis == phone.emojis
    assert bot.decimals in ((), phone.decimals)  # an accept can be changed to show less
    assert network.said[-2:] == ["mac", "done"] or bot.phase == "cancelled"
    said = json.loads(bot.received["mac"])
    ids = ",".join(sorted(said["mac"]))
    assert said["keys"].rstrip("=") == phone.own_tag(ids, "KEY_IDS")
    for name in bot.verified_keys:
        assert said["mac"][name].rstrip("=") == phone.own_tag(phone.keys[name], name)
    assert (f"ed25519:{phone.device}" in bot.verified_keys) is (bot.phase != "cancelled")


@settings(max_examples=examples(400))
@given(settings_of_calls, st.sampled_from(["@ann:here", "@zoe:here"]), st.lists(acts, max_size=40))
def test_no_order_loss_repeat_or_change_makes_it_trust_without_both_macs(
    call: tuple[str, str, str], user: str, story: list[tuple[str, int, int, bool]]
) -> None:
    """X-020."""
    network = Network(*call, user)
    for act in story:
        before = network.bot
        network.act(*act)
        check(network, before)


@pytest.mark.parametrize("mac", [NEW, OLD])
@pytest.mark.parametrize("room", ["", "!room"])
@pytest.mark.parametrize("asks", ["bot", "phone"])
def test_an_orderly_network_ends_in_trust(asks: str, room: str, mac: str) -> None:
    """X-019: the random stories above can come to this end."""
    network = Network(asks, room, mac, "@ann:here")
    for turn in range(16):
        before = network.bot
        network.act("next", 0, 0, turn % 2 == 0)
        check(network, before)
    assert network.bot.phase == "done"
    assert network.phone.verified


@settings(max_examples=examples(100))
@given(settings_of_calls, st.integers(0, 10**6))
def test_a_mac_that_was_changed_is_a_mac_that_is_refused(
    call: tuple[str, str, str], choice: int
) -> None:
    """X-020: or says the same, in base64 with padding."""
    network = Network(*call, "@ann:here")
    before = network.until("keyed").bot
    [(_, content)] = network.seen = network.to_bot
    network.agreed = True
    network.deliver(*network.altered(("mac", content), choice))
    check(network, before)


@settings(max_examples=examples(150))
@given(
    settings_of_calls,
    st.sampled_from(["@ann:here", "@zoe:here"]),
    st.integers(0, 14),
    st.tuples(st.sampled_from(CHANGES), st.integers(0, 7), st.integers(0, 10**6), st.booleans()),
)
def test_a_single_change_on_the_way_ends_in_trust_or_in_none(
    call: tuple[str, str, str], user: str, when: int, change: tuple[str, int, int, bool]
) -> None:
    """X-020: what is done is done with the phone's own keys, whatever was changed before."""
    network = Network(*call, user)
    for turn in range(24):
        before = network.bot
        network.act(*(change if turn == when else ("next", 0, 0, turn % 2 == 0)))
        check(network, before)
    if network.phone.verified:
        assert network.agreed


@pytest.mark.parametrize("room", ["", "!room"])
@pytest.mark.parametrize("asks", ["bot", "phone"])
def test_whoever_sits_between_with_keys_of_their_own_is_seen_by_the_person(
    asks: str, room: str
) -> None:
    """X-020: one who speaks to each as the other, with MACs that are right, shows other emojis.

    The bot compares nothing, so it is done with whom it spoke to; the person is not, and that is
    why we sign nobody (X-019).
    """
    with_bot = Talk(asks, room).until("done")
    with_person = Talk(asks, room)
    with_person.compared = True  # with what the bot shows, below
    person = with_person.until("keyed").phone
    assert with_bot.bot.emojis != person.emojis
    [(kind, content)] = person.compare(with_bot.bot.emojis)
    assert (kind, content["code"]) == ("cancel", "m.mismatched_sas")
    assert not person.verified
    assert with_person.bot.verified_keys == ()
