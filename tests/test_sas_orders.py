"""Whatever a network does to a verification by emoji, it trusts nobody without both MACs right."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiers import examples
from tests.world.phone import NEW, OLD, Phone, Talk
from wintermute.matrix.sas import Phase, Verification
from wintermute.messages import Json

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
