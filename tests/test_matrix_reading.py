"""Reading room events: what is for us, what is context, what is nothing."""

import copy
import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.world.clock import cheap
from tests.world.malformed import ODD, nested
from tests.world.reading import (
    ACCOUNT,
    ANN,
    BOB,
    BOT,
    DIRECT,
    EDIT,
    EVE,
    GROUP,
    NOW,
    POLICY,
    SENT,
    Json,
    kind_and_body,
    message_event,
    read_change,
    read_message,
    read_sign,
    room_of,
    sign_event,
)
from wintermute.matrix.inbox import (
    OUTBOX_KEY,
    RAW_MOST,
    Policy,
    RoomView,
    invited_in,
    inviter,
    read_event,
    since_invitation,
    unread,
    views,
)
from wintermute.matrix.relations import read_edit
from wintermute.messages import Incoming
from wintermute.owner import Owner

REPLY: Json = {"m.relates_to": {"m.in_reply_to": {"event_id": "$old"}}}


def heard(event: object, room: RoomView = DIRECT) -> Incoming:
    """Read a message that is one."""
    found = read_message(event, room)
    assert found is not None
    return found


def kind_name(value: object) -> str:
    """A short test id for a value that may be too large to print."""
    return type(value).__name__


def test_a_message_in_a_direct_chat_is_read_whole() -> None:
    """X-002."""
    event = message_event("good morning")
    assert read_message(event) == Incoming(
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
    assert kind_and_body(message_event(body)) == expected


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
        ("/STOP it", ("command", "/STOP it")),
        ("/Stop", ("command", "/Stop")),
        ("/shrug", ("context", "/shrug")),
        ("/Shrug", ("context", "/Shrug")),
        ("Wintermute: /shrug", ("command", "/shrug")),
        ("/", ("context", "/")),
    ],
)
def test_in_a_group_only_what_addresses_us_is_for_us(body: str, expected: tuple[str, str]) -> None:
    """X-002."""
    assert kind_and_body(message_event(body), GROUP) == expected


def test_a_mention_by_id_addresses_us() -> None:
    """X-002."""
    pill: Json = {"m.mentions": {"user_ids": [EVE, BOT]}}
    assert kind_and_body(message_event("what do you think?", **pill), GROUP) == (
        "message",
        "what do you think?",
    )
    assert kind_and_body(message_event("/new", BOB, **pill), GROUP) == ("command", "/new")
    others: Json = {"m.mentions": {"user_ids": [EVE], "room": True}}
    assert kind_and_body(message_event("what do you think?", **others), GROUP)[0] == "context"


NOBODY: Json = {"m.mentions": {}}
FOR_EVE: Json = {"m.mentions": {"user_ids": [EVE]}}
ODD_MENTIONS: Json = {"m.mentions": "odd"}
TO = "https://matrix.to/#/"


def link(target: str, before: str = "ask ", quote: str = '"', words: str = "it") -> Json:
    """A text with a link in its HTML, from a client that does not say whom it mentions."""
    shown = f"{before}<a class='x' href={quote}{target}{quote}>{words}</a>"
    return message_event(f"ask {words}", format="org.matrix.custom.html", formatted_body=shown)


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
        (
            message_event("a", formatted_body=f"<mx-reply><a href='{TO}{BOT}'>x</a></mx-reply>a"),
            False,
        ),
        (message_event("a", formatted_body=f"<mx-reply><a href='{TO}{BOT}'>x</a>"), False),
        (
            message_event(
                "a", formatted_body=f"<mx-reply>q</mx-reply><a href='{TO}{BOT}'>x</a>", **NOBODY
            ),
            True,
        ),
        (message_event("go and ask @bot:home, please", **NOBODY), True),
        (message_event("(@BOT:HOME)", **NOBODY), True),
        (message_event("is @bot:home.", **NOBODY), True),
        (message_event("@bot:home: hi", **NOBODY), True),
        (message_event("mail ann@bot:home"), False),
        (message_event("go to @bot:home.org"), False),
        (message_event("go to @bot:home:8448"), False),
        (message_event("go to @bot:homestead"), False),
        (message_event("go to @bot:home-office"), False),
        (message_event("what does WINTERMUTE think?"), True),
        (message_event("(Wintermute)"), True),
        (message_event("wintermute's idea"), True),
        (message_event("ask Wintermuté"), False),
        (message_event("überwintermute"), False),
        (message_event("what does Wintermute think?", **NOBODY), False),
        (message_event("what does Wintermute think?", **FOR_EVE), False),
        (message_event("what does Wintermute think?", **ODD_MENTIONS), True),
        (message_event("Wintermute: hi", **NOBODY), True),
        (message_event("wintermute is a funny name", **NOBODY), False),  # about us, not for us
        (message_event("wintermute is a funny name"), True),
        (message_event("@wintermute is it?", **NOBODY), True),
        (message_event("wintermute", **NOBODY), False),
        (message_event("wintermute.png", msgtype="m.image"), False),
        (message_event("wintermute, look", msgtype="m.image", filename="cat.png"), True),
        (message_event("asks Wintermute", msgtype="m.emote"), True),
        (message_event("> <@bot:home> Wintermute\n\nyes", **REPLY), False),
    ],
    ids=lambda value: "" if isinstance(value, dict) else None,
)
def test_a_group_message_may_name_us_anywhere(event: Json, addressed: bool) -> None:
    """F-025: by a pill, our id, or our name where its client does not say whom it mentions."""
    assert kind_and_body(event, GROUP)[0] == ("message" if addressed else "context")


def test_a_reply_to_us_addresses_us() -> None:
    """F-025: in whatever words, as a command too, and in an edit, which does not say it again."""
    for body, kind in (("and then?", "message"), ("/shrug", "command")):
        found = read_event(
            message_event(body, **REPLY), GROUP, ACCOUNT, POLICY, NOW, answers_us=True
        )
        assert found is not None
        assert (found.kind, found.body, found.replies_to) == (kind, body, "$old")
    new: Json = {"m.new_content": {"msgtype": "m.text", "body": "x"}}
    change = message_event("* x", **EDIT, **new)
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
    assert heard(message_event("hi", **content)).replies_to == target


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
        kind_and_body(message_event(text, formatted_body=text), GROUP)


def test_without_the_mention_rule_allowed_people_are_always_heard() -> None:
    """X-002."""
    policy = Policy(Owner(ANN), POLICY.allowed, frozenset(), False, POLICY.commands)
    assert kind_and_body(message_event("hello"), GROUP, policy) == ("message", "hello")
    assert kind_and_body(message_event("/shrug"), GROUP, policy) == ("command", "/shrug")
    assert kind_and_body(message_event("hello", EVE), GROUP, policy) == ("context", "hello")


@pytest.mark.parametrize("body", ["Wintermute: obey", "/stop", "@bot:home /new"])
@pytest.mark.parametrize("room", [GROUP, room_of(EVE), DIRECT])
def test_a_stranger_is_context_whatever_they_say(body: str, room: RoomView) -> None:
    """X-003."""
    event = message_event(body, EVE, **{"m.mentions": {"user_ids": [BOT]}})
    assert kind_and_body(event, room) == ("context", body)


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
    found = heard(message_event("hello"), room)
    assert found.direct is direct
    assert found.kind == ("message" if direct else "context")


@pytest.mark.parametrize(
    "event",
    [
        message_event("echo", BOT),
        message_event("note", msgtype="m.notice"),
        message_event("* new", **EDIT),
        message_event("gone") | {"unsigned": {"redacted_because": {}}},
        message_event("gone") | {"content": {}},
        message_event("state") | {"state_key": ""},
        message_event("topic") | {"type": "m.room.topic"},
        message_event("locked") | {"type": "m.room.encrypted"},
        message_event("verify", msgtype="m.key.verification.request"),
        message_event("nobody") | {"sender": None},
        message_event("nameless") | {"event_id": "x" * 256},
        message_event("surrogate") | {"event_id": "$\ud800"},
    ],
)
def test_what_is_not_a_fresh_message_of_somebody_else_is_nothing(event: Json) -> None:
    """X-004."""
    assert read_message(event) is None


def test_only_listed_rooms_are_heard_when_there_is_a_list() -> None:
    elsewhere = Policy(Owner(ANN), POLICY.allowed, frozenset({"!other"}), True, POLICY.commands)
    here = Policy(Owner(ANN), POLICY.allowed, frozenset({"!room"}), True, POLICY.commands)
    assert read_message(message_event("hello"), DIRECT, elsewhere) is None
    assert read_message(message_event("hello"), DIRECT, here) is not None


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
    found = heard(message_event("Wintermute: and you?", BOB, **{OUTBOX_KEY: mark}), GROUP)
    assert found.by_bot == by_bot
    assert found.kind == "message"


@pytest.mark.parametrize(
    ("event", "body"),
    [
        (message_event("> <@bot:home> old\n> more\n\nyes\n> kept", **REPLY), "yes\n> kept"),
        (message_event("> * <@bot:home> waves\n\nyes", **REPLY), "yes"),
        (message_event("> a quote of my own\n\nyes", **REPLY), "> a quote of my own\n\nyes"),
        (message_event("> <@bot:home> old", **REPLY), "> <@bot:home> old"),
        (message_event("> <@bot:home> not a reply\n\nyes"), "> <@bot:home> not a reply\n\nyes"),
        (message_event("waves", msgtype="m.emote"), "* Ann waves"),
        (message_event("/stop", msgtype="m.emote"), "* Ann /stop"),
        (message_event("cat.png", msgtype="m.image"), "[image: cat.png]"),
        (message_event("look!", msgtype="m.image", filename="cat.png"), "[image: cat.png] look!"),
        (message_event("a\nb\u202egpj.exe", msgtype="m.file"), "[file: abgpj.exe]"),
        (message_event(None, msgtype="m.video"), "[video: ]"),
        (message_event("memo.ogg", msgtype="m.audio"), "[audio: memo.ogg]"),
    ],
)
def test_the_text_of_replies_emotes_and_media(event: Json, body: str) -> None:
    assert heard(event).body == body


@pytest.mark.parametrize(
    ("name", "shown"),
    [("An\u202en\x00", "Ann"), ("x" * 99, "x" * 39 + "…"), ("\n\u200b", ANN), ("A\nB", "AB")],
)
def test_a_hostile_display_name_is_one_short_line(name: str, shown: str) -> None:
    room = RoomView("!room", {BOT: "", ANN: name}, frozenset(), encrypted=False)
    assert heard(message_event("hello"), room).sender_name == shown


@pytest.mark.parametrize(
    "stamp",
    [None, "now", True, -1, 0, 1.5, 10**15, 10**5000, [1], {"ts": 1}, float("nan")],
    ids=kind_name,
)
def test_an_impossible_time_is_the_time_of_arrival(stamp: object) -> None:
    assert heard(message_event("hello") | {"origin_server_ts": stamp}).sent_at == NOW


def test_a_clock_a_little_ahead_is_believed() -> None:
    ahead = NOW + timedelta(minutes=3)
    stamp = {"origin_server_ts": int(ahead.timestamp() * 1000)}
    assert heard(message_event("hello") | stamp).sent_at == ahead


@pytest.mark.parametrize(
    "extra",
    ["x" * RAW_MOST, nested(60), nested(20_000), 10**5000, float("inf"), b"bytes"],
    ids=kind_name,
)
def test_of_an_event_too_large_to_keep_the_head_is_kept(extra: object) -> None:
    found = heard(message_event("hello") | {"extra": extra})
    assert found.raw == {
        "event_id": "$one",
        "sender": ANN,
        "type": "m.room.message",
        "origin_server_ts": int(SENT.timestamp() * 1000),
    }
    assert found.body == "hello"


def templates() -> Iterator[Json]:
    relations: tuple[Json, ...] = (
        REPLY["m.relates_to"],
        EDIT["m.relates_to"],
        {"rel_type": "m.thread", "event_id": "$root", "is_falling_back": True},
    )
    for msgtype in ("m.text", "m.emote", "m.notice", "m.image", "m.file", "m.audio", "m.video"):
        for relation in relations:
            event = message_event(
                "Wintermute: > hi", msgtype=msgtype, filename="a.png", format="html"
            )
            event["content"] |= {"formatted_body": "<b>hi</b>", "m.relates_to": relation}
            event["content"] |= {"m.mentions": {"user_ids": [BOT]}, OUTBOX_KEY: {"by": BOT}}
            yield event | {"unsigned": {"age": 5}, "room_id": "!room"}
    new = {"msgtype": "m.emote", "body": "Wintermute: > hi", "m.mentions": {"user_ids": [BOT]}}
    yield message_event("* hi", **{**EDIT, "m.new_content": {**new, **EDIT, "m.new_content": new}})
    yield sign_event("\N{OCTAGONAL SIGN}")
    for kind in ("m.sticker", "m.poll.start", "m.room.message"):
        content = {"msgtype": "m.location", "body": "x", **REPLY, "m.mentions": {"user_ids": [BOT]}}
        yield message_event("x") | {"type": kind, "content": content}


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
                reads = [read_message(broken, GROUP), read_change(broken, GROUP)]
                for found in filter(None, [*reads, sign_read and sign_read.command]):
                    (found.event_id + found.sender + found.sender_name + found.body).encode()
                    assert len(json.dumps(found.raw)) <= RAW_MOST
    assert count >= 5_000


@pytest.mark.parametrize("event", [*ODD, [{}], b"", object()], ids=kind_name)
def test_what_is_no_event_at_all_is_nothing(event: object) -> None:
    """X-022."""
    assert read_message(event) is None
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
    read_message(event, GROUP)
    read_change(event, GROUP)
    read_sign(event, GROUP)
    unread(event, GROUP, ACCOUNT, POLICY)
    since_invitation([event], BOT)
    inviter([event], ACCOUNT)


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
    before, between, after = map(message_event, ("before", "between", "after"))
    first, second = membership("invite"), membership("invite", sender=BOB)
    leave, join = membership("leave"), membership("join")
    events = [before, first, between, leave, second, after, join]
    assert since_invitation(events, BOT) == [after, join]
    assert since_invitation([before, between], BOT) == [before, between]
    assert since_invitation([before, first], BOT) == []
    assert invited_in(events, BOT)
    assert not invited_in([before, membership("invite", BOB), join], BOT)
