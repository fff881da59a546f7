"""Reading room events: what is for us, what is context, what is nothing."""

import copy
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.world.clock import cheap
from wintermute.matrix.inbox import (
    OUTBOX_KEY,
    RAW_MOST,
    Account,
    Policy,
    RoomView,
    invited_in,
    inviter,
    read_event,
    since_invitation,
    unread,
    views,
)
from wintermute.matrix.relations import Reaction, read_edit, read_reaction
from wintermute.messages import Incoming
from wintermute.owner import Owner

Json = dict[str, Any]
BOT, ANN, BOB, EVE = "@bot:home", "@ann:home", "@bob:home", "@eve:far"
NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
SENT = datetime(2026, 3, 1, 11, 59, 58, tzinfo=UTC)
ACCOUNT = Account(BOT, "DEVICE", "Wintermute")
POLICY = Policy(
    owner=Owner(ANN),
    allowed=frozenset({ANN, BOB}),
    rooms=frozenset(),
    mention_in_groups=True,
    commands=frozenset({"/stop", "/new", "/help", "/status"}),
)


EDIT: Json = {"m.relates_to": {"rel_type": "m.replace", "event_id": "$old"}}
REPLY: Json = {"m.relates_to": {"m.in_reply_to": {"event_id": "$old"}}}


def kind_name(value: object) -> str:
    """A short test id for a value that may be too large to print."""
    return type(value).__name__


def room_of(*members: str, invited: tuple[str, ...] = ()) -> RoomView:
    names = {member: member[1:4].title() for member in members}
    return RoomView("!room", {BOT: "Wintermute"} | names, frozenset(invited), encrypted=True)


DIRECT = room_of(ANN)
GROUP = room_of(ANN, BOB, EVE)


def said(body: Any, sender: str = ANN, **content: Any) -> Json:
    return {
        "type": "m.room.message",
        "event_id": "$one",
        "sender": sender,
        "origin_server_ts": int(SENT.timestamp() * 1000),
        "content": {"msgtype": "m.text", "body": body, **content},
    }


def read(event: object, room: RoomView = DIRECT, policy: Policy = POLICY) -> Incoming | None:
    return read_event(event, room, ACCOUNT, policy, NOW)


def read_change(event: object, room: RoomView = DIRECT, policy: Policy = POLICY) -> Incoming | None:
    return read_edit(event, room, ACCOUNT, policy, NOW)


def read_sign(event: object, room: RoomView = DIRECT, policy: Policy = POLICY) -> Reaction | None:
    return read_reaction(event, room, ACCOUNT, policy, NOW)


def verdict(event: object, room: RoomView = DIRECT, policy: Policy = POLICY) -> tuple[str, str]:
    found = read(event, room, policy)
    return (found.kind, found.body) if found else ("nothing", "")


def test_a_message_in_a_direct_chat_is_read_whole() -> None:
    """X-002."""
    event = said("good morning")
    assert read(event) == Incoming(
        event_id="$one",
        room_id="!room",
        sender=ANN,
        sender_name="Ann",
        origin="owner",
        kind="message",
        body="good morning",
        sent_at=SENT,
        direct=True,
        raw=event,
    )


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("hello", ("message", "hello")),
        ("  /stop now ", ("command", "/stop now")),
        ("/unknown", ("command", "/unknown")),
        ("Wintermute is a novel", ("message", "Wintermute is a novel")),
        ("a\r\nb\x00c", ("message", "a\nb\ufffdc")),
        (" \n ", ("nothing", "")),
        ("x" * 100_000, ("message", "x" * 100_000)),
    ],
)
def test_in_a_direct_chat_everything_said_is_for_us(body: str, expected: tuple[str, str]) -> None:
    assert verdict(said(body)) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("nice weather", ("context", "nice weather")),
        ("Wintermute: how are you?", ("message", "how are you?")),
        ("wintermute, how are you?", ("message", "how are you?")),
        ("WINTERMUTE how are you?", ("message", "how are you?")),
        ("bot: hi", ("message", "hi")),
        ("@bot hi", ("message", "hi")),
        ("@bot:home: hi", ("message", "hi")),
        ("@bot:home hi", ("message", "hi")),
        ("@Wintermute: hi", ("message", "hi")),
        ("wintermute", ("message", "wintermute")),
        ("Wintermute:", ("message", "Wintermute:")),
        ("bottom up", ("context", "bottom up")),
        ("@bot:elsewhere hi", ("context", "@bot:elsewhere hi")),
        ("I like Wintermute", ("message", "I like Wintermute")),
        ("I like Wintermuted colours", ("context", "I like Wintermuted colours")),
        ("/stop", ("command", "/stop")),
        ("/stop it", ("command", "/stop it")),
        ("/shrug", ("context", "/shrug")),
        ("Wintermute: /shrug", ("command", "/shrug")),
        ("/", ("context", "/")),
    ],
)
def test_in_a_group_only_what_addresses_us_is_for_us(body: str, expected: tuple[str, str]) -> None:
    """X-002."""
    assert verdict(said(body), GROUP) == expected


def test_a_mention_by_id_addresses_us() -> None:
    """X-002."""
    pill: Json = {"m.mentions": {"user_ids": [EVE, BOT]}}
    assert verdict(said("what do you think?", **pill), GROUP) == ("message", "what do you think?")
    assert verdict(said("/new", BOB, **pill), GROUP) == ("command", "/new")
    others: Json = {"m.mentions": {"user_ids": [EVE], "room": True}}
    assert verdict(said("what do you think?", **others), GROUP)[0] == "context"


NOBODY: Json = {"m.mentions": {}}
FOR_EVE: Json = {"m.mentions": {"user_ids": [EVE]}}
ODD_MENTIONS: Json = {"m.mentions": "odd"}
TO = "https://matrix.to/#/"


def link(target: str, before: str = "ask ", quote: str = '"', words: str = "it") -> Json:
    """A text with a link in its HTML, from a client that does not say whom it mentions."""
    shown = f"{before}<a class='x' href={quote}{target}{quote}>{words}</a>"
    return said(f"ask {words}", format="org.matrix.custom.html", formatted_body=shown)


@pytest.mark.parametrize(
    ("event", "addressed"),
    [
        (link(f"{TO}{BOT}"), True),
        (link(f"{TO}{BOT}?via=home"), True),
        (link("http://matrix.to/#/%40bot%3Ahome", quote="'"), True),
        (link(f"{TO}&#64;bot:home", quote=""), True),
        (link("matrix:u/bot:home"), True),
        (link("MATRIX:u/bot%3Ahome?action=chat"), True),
        (link(f"{TO}{BOT}.org"), False),
        (link(f"{TO}@robot:home"), False),
        (link(f"{TO}!room:home/$event"), False),
        (link(f"https://evil.example/?{TO}{BOT}"), False),
        (link("matrix:roomid/bot:home"), False),
        (link(f"{TO}{BOT}") | {"sender": EVE}, False),
        (said("a", formatted_body=f"<mx-reply><a href='{TO}{BOT}'>x</a></mx-reply>a"), False),
        (said("a", formatted_body=f"<mx-reply><a href='{TO}{BOT}'>x</a>"), False),
        (
            said("a", formatted_body=f"<mx-reply>q</mx-reply><a href='{TO}{BOT}'>x</a>", **NOBODY),
            True,
        ),
        (said("go and ask @bot:home, please", **NOBODY), True),
        (said("(@BOT:HOME)", **NOBODY), True),
        (said("is @bot:home.", **NOBODY), True),
        (said("@bot:home: hi", **NOBODY), True),
        (said("mail ann@bot:home"), False),
        (said("go to @bot:home.org"), False),
        (said("go to @bot:home:8448"), False),
        (said("go to @bot:homestead"), False),
        (said("go to @bot:home-office"), False),
        (said("what does WINTERMUTE think?"), True),
        (said("(Wintermute)"), True),
        (said("wintermute's idea"), True),
        (said("ask Wintermuté"), False),
        (said("überwintermute"), False),
        (said("what does Wintermute think?", **NOBODY), False),
        (said("what does Wintermute think?", **FOR_EVE), False),
        (said("what does Wintermute think?", **ODD_MENTIONS), True),
        (said("Wintermute: hi", **NOBODY), True),
        (said("wintermute.png", msgtype="m.image"), False),
        (said("wintermute, look", msgtype="m.image", filename="cat.png"), True),
        (said("asks Wintermute", msgtype="m.emote"), True),
        (said("> <@bot:home> Wintermute\n\nyes", **REPLY), False),
    ],
    ids=lambda value: "" if isinstance(value, dict) else None,
)
def test_a_group_message_may_name_us_anywhere(event: Json, addressed: bool) -> None:
    """F-025: by a pill, our id, or our name where its client does not say whom it mentions."""
    assert verdict(event, GROUP)[0] == ("message" if addressed else "context")


def test_a_reply_to_us_addresses_us() -> None:
    """F-025: in whatever words, as a command too, and in an edit, which does not say it again."""
    for body, kind in (("and then?", "message"), ("/shrug", "command")):
        found = read_event(said(body, **REPLY), GROUP, ACCOUNT, POLICY, NOW, answers_us=True)
        assert found is not None
        assert (found.kind, found.body, found.replies_to) == (kind, body, "$old")
    new: Json = {"m.new_content": {"msgtype": "m.text", "body": "x"}}
    change = said("* x", **EDIT, **new)
    edit = read_edit(change, GROUP, ACCOUNT, POLICY, NOW, answers_us=True)
    assert edit is not None
    assert (edit.kind, edit.edits, edit.replies_to) == ("message", "$old", None)


@pytest.mark.parametrize(
    ("relation", "target"),
    [
        (REPLY["m.relates_to"], "$old"),
        ({**REPLY["m.relates_to"], "rel_type": "m.thread", "is_falling_back": False}, "$old"),
        ({**REPLY["m.relates_to"], "rel_type": "m.thread", "is_falling_back": True}, None),
        ({"m.in_reply_to": {"event_id": "$one"}}, None),
        ({"m.in_reply_to": {"event_id": "$" * 256}}, None),
        ({"m.in_reply_to": {"event_id": ["$old"]}}, None),
        ({"m.in_reply_to": "$old"}, None),
        ("$old", None),
        ({}, None),
    ],
)
def test_what_a_message_replies_to(relation: object, target: str | None) -> None:
    """F-025, F-026: what a thread names for older clients is no reply, nor is a message to itself."""
    content: Json = {"m.relates_to": relation}
    found = read(said("hi", **content))
    assert found is not None
    assert found.replies_to == target


HOSTILE = (
    "<a " * 20_000,
    "<a href=" * 8_000,
    f"<a href={TO}" * 2_000,
    "<a" + " " * 60_000,
    f"<a {'href ' * 12_000}",
    "<mx-reply>" * 6_000,
    "@bot:home" * 7_000,
    "Wintermute" * 6_000,
)


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: text[:12])
def test_hostile_text_is_searched_in_no_time(text: str) -> None:
    """F-025, X-022: as large as an event can be."""
    with cheap(0.5):
        verdict(said(text, formatted_body=text), GROUP)


def test_without_the_mention_rule_allowed_people_are_always_heard() -> None:
    """X-002."""
    policy = Policy(Owner(ANN), POLICY.allowed, frozenset(), False, POLICY.commands)
    assert verdict(said("hello"), GROUP, policy) == ("message", "hello")
    assert verdict(said("/shrug"), GROUP, policy) == ("command", "/shrug")
    assert verdict(said("hello", EVE), GROUP, policy) == ("context", "hello")


@pytest.mark.parametrize("body", ["Wintermute: obey", "/stop", "@bot:home /new"])
@pytest.mark.parametrize("room", [GROUP, room_of(EVE), DIRECT])
def test_a_stranger_is_context_whatever_they_say(body: str, room: RoomView) -> None:
    """X-003."""
    event = said(body, EVE, **{"m.mentions": {"user_ids": [BOT]}})
    assert verdict(event, room) == ("context", body)


@pytest.mark.parametrize(
    ("room", "direct"),
    [
        (room_of(ANN), True),
        (room_of(BOB), True),
        (room_of(EVE), False),
        (room_of(ANN, BOB), False),
        (room_of(ANN, invited=(EVE,)), False),
        (room_of(invited=(ANN,)), False),
        (room_of(), False),
    ],
)
def test_a_direct_chat_is_us_and_one_allowed_person(room: RoomView, direct: bool) -> None:
    """X-002, X-031."""
    found = read(said("hello"), room)
    assert found is not None
    assert found.direct is direct
    assert found.kind == ("message" if direct else "context")


@pytest.mark.parametrize(
    "event",
    [
        said("echo", BOT),
        said("note", msgtype="m.notice"),
        said("* new", **EDIT),
        said("gone") | {"unsigned": {"redacted_because": {}}},
        said("gone") | {"content": {}},
        said("state") | {"state_key": ""},
        said("topic") | {"type": "m.room.topic"},
        said("locked") | {"type": "m.room.encrypted"},
        said("verify", msgtype="m.key.verification.request"),
        said("nobody") | {"sender": None},
        said("nameless") | {"event_id": "x" * 256},
        said("surrogate") | {"event_id": "$\ud800"},
    ],
)
def test_what_is_not_a_fresh_message_of_somebody_else_is_nothing(event: Json) -> None:
    """X-004."""
    assert read(event) is None


def test_only_listed_rooms_are_heard_when_there_is_a_list() -> None:
    elsewhere = Policy(Owner(ANN), POLICY.allowed, frozenset({"!other"}), True, POLICY.commands)
    here = Policy(Owner(ANN), POLICY.allowed, frozenset({"!room"}), True, POLICY.commands)
    assert read(said("hello"), DIRECT, elsewhere) is None
    assert read(said("hello"), DIRECT, here) is not None


@pytest.mark.parametrize(
    ("mark", "by_bot"),
    [
        ({"by": BOB, "id": "wm-1"}, True),
        ({"by": BOT, "id": "wm-1"}, False),
        ({"by": ANN}, False),
        ({"by": ""}, False),
        ({"by": [BOB]}, False),
        ({}, False),
        ("wm-1", False),
        (None, False),
        ([{"by": BOB}], False),
    ],
)
def test_another_bot_is_known_by_a_mark_that_names_itself(mark: object, by_bot: bool) -> None:
    """X-004, F-006: whatever else stands under that key, a person may have forwarded or typed."""
    found = read(said("Wintermute: and you?", BOB, **{OUTBOX_KEY: mark}), GROUP)
    assert found is not None
    assert found.by_bot == by_bot
    assert found.kind == "message"


@pytest.mark.parametrize(
    ("event", "body"),
    [
        (said("> <@bot:home> old\n> more\n\nyes\n> kept", **REPLY), "yes\n> kept"),
        (said("> * <@bot:home> waves\n\nyes", **REPLY), "yes"),
        (said("> a quote of my own\n\nyes", **REPLY), "> a quote of my own\n\nyes"),
        (said("> <@bot:home> old", **REPLY), "> <@bot:home> old"),
        (said("> <@bot:home> not a reply\n\nyes"), "> <@bot:home> not a reply\n\nyes"),
        (said("waves", msgtype="m.emote"), "* Ann waves"),
        (said("/stop", msgtype="m.emote"), "* Ann /stop"),
        (said("cat.png", msgtype="m.image"), "[image: cat.png]"),
        (said("look!", msgtype="m.image", filename="cat.png"), "[image: cat.png] look!"),
        (said("a\nb\u202egpj.exe", msgtype="m.file"), "[file: abgpj.exe]"),
        (said(None, msgtype="m.video"), "[video: ]"),
        (said("memo.ogg", msgtype="m.audio"), "[audio: memo.ogg]"),
    ],
)
def test_the_text_of_replies_emotes_and_media(event: Json, body: str) -> None:
    found = read(event)
    assert found is not None
    assert found.body == body


@pytest.mark.parametrize(
    ("name", "shown"),
    [("An\u202en\x00", "Ann"), ("x" * 99, "x" * 39 + "…"), ("\n\u200b", ANN), ("A\nB", "AB")],
)
def test_a_hostile_display_name_is_one_short_line(name: str, shown: str) -> None:
    room = RoomView("!room", {BOT: "", ANN: name}, frozenset(), encrypted=False)
    found = read(said("hello"), room)
    assert found is not None
    assert found.sender_name == shown


@pytest.mark.parametrize(
    "stamp",
    [None, "now", True, -1, 0, 1.5, 10**15, 10**5000, [1], {"ts": 1}, float("nan")],
    ids=kind_name,
)
def test_an_impossible_time_is_the_time_of_arrival(stamp: object) -> None:
    found = read(said("hello") | {"origin_server_ts": stamp})
    assert found is not None
    assert found.sent_at == NOW


def test_a_clock_a_little_ahead_is_believed() -> None:
    ahead = NOW + timedelta(minutes=3)
    found = read(said("hello") | {"origin_server_ts": int(ahead.timestamp() * 1000)})
    assert found is not None
    assert found.sent_at == ahead


def nested(depth: int) -> Json:
    value: Json = {}
    for _ in range(depth):
        value = {"deeper": value}
    return value


@pytest.mark.parametrize(
    "extra",
    ["x" * RAW_MOST, nested(60), nested(20_000), 10**5000, float("inf"), b"bytes"],
    ids=kind_name,
)
def test_of_an_event_too_large_to_keep_the_head_is_kept(extra: object) -> None:
    found = read(said("hello") | {"extra": extra})
    assert found is not None
    assert found.raw == {
        "event_id": "$one",
        "sender": ANN,
        "type": "m.room.message",
        "origin_server_ts": int(SENT.timestamp() * 1000),
    }
    assert found.body == "hello"


ODD: tuple[Any, ...] = (
    None, True, 0, -1, 1.5, float("nan"), "", "x", "\ud800", "\x00" * 9, "y" * 300_000, 10**5000,
    [], [None], [[]] * 3, {}, {"a": None}, {"user_ids": "x"}, {"user_ids": [{}, None]}, nested(3000),
)  # fmt: skip


def templates() -> Iterator[Json]:
    relations: tuple[Json, ...] = (
        REPLY["m.relates_to"],
        EDIT["m.relates_to"],
        {"rel_type": "m.thread", "event_id": "$root", "is_falling_back": True},
    )
    for msgtype in ("m.text", "m.emote", "m.notice", "m.image", "m.file", "m.audio", "m.video"):
        for relation in relations:
            event = said("Wintermute: > hi", msgtype=msgtype, filename="a.png", format="html")
            event["content"] |= {"formatted_body": "<b>hi</b>", "m.relates_to": relation}
            event["content"] |= {"m.mentions": {"user_ids": [BOT]}, OUTBOX_KEY: {"by": BOT}}
            yield event | {"unsigned": {"age": 5}, "room_id": "!room"}
    new = {"msgtype": "m.emote", "body": "Wintermute: > hi", "m.mentions": {"user_ids": [BOT]}}
    yield said("* hi", **{**EDIT, "m.new_content": {**new, **EDIT, "m.new_content": new}})
    yield sign("\N{OCTAGONAL SIGN}")
    for kind in ("m.sticker", "m.poll.start", "m.room.message"):
        content = {"msgtype": "m.location", "body": "x", **REPLY, "m.mentions": {"user_ids": [BOT]}}
        yield said("x") | {"type": kind, "content": content}


def places(value: Json, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, inner in value.items():
        yield (*path, key)
        if isinstance(inner, dict):
            yield from places(inner, (*path, key))


def test_no_malformed_event_raises_and_what_is_read_can_be_stored() -> None:
    """X-022: each field of each kind of message missing or odd, far over 2,000 events."""
    count = 0
    for event in templates():
        for path in places(event):
            for odd in (*ODD, KeyError):
                broken = copy.deepcopy(event)
                *parents, last = path
                holder: Json = broken
                for key in parents:
                    holder = holder[key]
                holder[last] = odd
                if odd is KeyError:
                    del holder[last]
                count += 1
                sign_read = read_sign(broken, GROUP)
                unread(broken, GROUP, ACCOUNT, POLICY)
                reads = [read(broken, GROUP), read_change(broken, GROUP)]
                for found in filter(None, [*reads, sign_read and sign_read.command]):
                    (found.event_id + found.sender + found.sender_name + found.body).encode()
                    assert len(json.dumps(found.raw)) <= RAW_MOST
    assert count >= 5_000


@pytest.mark.parametrize("event", [*ODD, [{}], b"", object()], ids=kind_name)
def test_what_is_no_event_at_all_is_nothing(event: object) -> None:
    """X-022."""
    assert read(event) is None
    assert read_change(event) is None
    assert read_sign(event) is None
    assert unread(event, DIRECT, ACCOUNT, POLICY) is None
    assert inviter([event], ACCOUNT) is None


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8
)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["m.room.message", "m.reaction"]) | ANYTHING,
            "event_id": ANYTHING,
            "sender": st.sampled_from([ANN, BOT, EVE]) | ANYTHING,
            "unsigned": ANYTHING,
            "content": ANYTHING | st.fixed_dictionaries({"msgtype": ANYTHING, "body": ANYTHING}),
        },
    )
)
def test_arbitrary_events_never_raise(event: Json) -> None:
    """X-022."""
    read(event, GROUP)
    read_change(event, GROUP)
    read_sign(event, GROUP)
    unread(event, GROUP, ACCOUNT, POLICY)
    since_invitation([event], BOT)
    inviter([event], ACCOUNT)


def sign(key: Any, sender: str = ANN, **relation: Any) -> Json:
    relation = {"rel_type": "m.annotation", "event_id": "$old", "key": key} | relation
    event = said("", sender) | {"type": "m.reaction", "content": {"m.relates_to": relation}}
    return event | {"event_id": "$sign"}


def membership(kind: str, user: str = BOT, sender: str = ANN, **content: Any) -> Json:
    content |= {"membership": kind}
    return {"type": "m.room.member", "state_key": user, "sender": sender, "content": content}


def test_an_invitation_names_the_inviter() -> None:
    """X-001; the inviting server may put what it likes before the invitation itself."""
    state = [{"type": "m.room.name"}, membership("join", ANN), None]
    assert inviter([*state, membership("invite")], ACCOUNT) == ANN
    assert inviter([*state, membership("invite", BOB)], ACCOUNT) is None
    assert inviter([membership("invite") | {"sender": 5}], ACCOUNT) is None
    assert inviter([], ACCOUNT) is None
    forged = [membership("invite"), membership("invite", sender=EVE)]
    assert inviter(forged, ACCOUNT) == EVE


def changed(kind: str, user: str, before: str | None) -> Json:
    previous = {"prev_content": {"membership": before, "displayname": "Old"}} if before else {}
    return membership(kind, user) | {"unsigned": previous}


@pytest.mark.parametrize(
    ("change", "now_members", "now_invited", "then_members", "then_invited"),
    [
        (changed("invite", BOB, None), {ANN, BOT}, {BOB}, {ANN, BOT}, set()),
        (changed("join", BOB, "invite"), {ANN, BOT, BOB}, set(), {ANN, BOT}, {BOB}),
        (changed("leave", BOB, "join"), {ANN, BOT}, set(), {ANN, BOT, BOB}, set()),
        (changed("join", BOB, "join"), {ANN, BOT, BOB}, set(), {ANN, BOT, BOB}, set()),
        (changed("join", BOT, "invite"), {ANN, BOT}, set(), {ANN, BOT}, set()),
        (membership("join", BOB) | {"unsigned": 5}, {ANN, BOB}, set(), {ANN}, set()),
    ],
)
def test_a_message_is_seen_in_the_room_as_it_was_then(
    change: Json,
    now_members: set[str],
    now_invited: set[str],
    then_members: set[str],
    then_invited: set[str],
) -> None:
    """X-002, X-031: who was there when it was said, not who is there now."""
    now = RoomView("!r", dict.fromkeys(now_members, "N"), frozenset(now_invited), encrypted=False)
    before, at = views([{"type": "m.room.message", "sender": ANN}, change], now, BOT)
    assert at == now
    assert (set(before.members), set(before.invited)) == (then_members, then_invited)
    assert views([], now, BOT) == []


def test_who_speaks_was_there_whatever_the_server_leaves_out() -> None:
    """X-002: homeservers need not say what a membership was before."""
    now = RoomView("!r", {ANN: "New", BOT: ""}, frozenset(), encrypted=False)
    hello = {"type": "m.room.message", "sender": ANN}
    (then, _) = views([hello, membership("join", ANN)], now, BOT)
    assert then.members == {ANN: "New", BOT: ""}


@pytest.mark.parametrize(
    ("kind", "key", "now_open", "before"),
    [
        ("m.room.join_rules", "join_rule", "public", "invite"),
        ("m.room.history_visibility", "history_visibility", "world_readable", "shared"),
    ],
)
def test_a_rule_holds_from_when_it_was_made(
    kind: str, key: str, now_open: str, before: str
) -> None:
    """F-001, F-003: what was said before was said in private."""
    rules = {"join_rule": "invite", "history": "shared"}
    rules[{"join_rule": "join_rule"}.get(key, "history")] = now_open
    now = RoomView("!r", {ANN: "", BOT: ""}, frozenset(), encrypted=False, **rules)
    hello = {"type": "m.room.message", "sender": ANN}
    for unsigned in ({"prev_content": {key: before}}, {"prev_content": 7}, None):
        made = {"type": kind, "state_key": "", "content": {key: now_open}, "unsigned": unsigned}
        first, _, last = views([hello, made, hello], now, BOT)
        assert (first.is_open, last.is_open) == (False, True)
        elsewhere = made | {"state_key": "x"}
        assert views([hello, elsewhere], now, BOT)[0].is_open


def test_a_crowd_that_joins_is_looked_at_once() -> None:
    """F-001: ten thousand who come in at once hold up nobody."""
    crowd = [f"@n{n}:test" for n in range(10_000)]
    now = RoomView("!r", dict.fromkeys([ANN, BOT, *crowd], ""), frozenset(), encrypted=False)
    hello = {"type": "m.room.message", "sender": ANN}
    found = views([hello, *(membership("join", user) for user in crowd), hello], now, BOT)
    assert len({id(view) for view in found}) == 2
    assert (set(found[0].members), found[-1]) == ({ANN, BOT}, now)


def test_only_what_was_said_after_our_newest_invitation_is_ours() -> None:
    """X-005."""
    before, between, after = said("before"), said("between"), said("after")
    first, second = membership("invite"), membership("invite", sender=BOB)
    leave, join = membership("leave"), membership("join")
    events = [before, first, between, leave, second, after, join]
    assert since_invitation(events, BOT) == [after, join]
    assert since_invitation([before, between], BOT) == [before, between]
    assert since_invitation([before, first], BOT) == []
    assert invited_in(events, BOT)
    assert not invited_in([before, membership("invite", BOB), join], BOT)


@pytest.mark.parametrize(
    ("body", "mentions", "kind"),
    [
        ("wintermute is a funny name", NOBODY, "context"),
        ("wintermute is a funny name", {}, "message"),
        ("wintermute: is it?", NOBODY, "message"),
        ("@wintermute is it?", NOBODY, "message"),
        ("wintermute", NOBODY, "context"),
    ],
)
def test_who_says_whom_they_mean_means_no_other(body: str, mentions: Json, kind: str) -> None:
    """F-025: a text that begins with our name is about us, one that calls us is for us."""
    event = said(body, **mentions)
    incoming = read(event, GROUP)
    assert incoming is not None
    assert incoming.kind == kind
