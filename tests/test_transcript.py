"""What a lived evening is judged by can go red: tests/two_hours.py trusts it."""

import pytest

from tests.world.transcript import (
    Deletion,
    Request,
    Ring,
    Told,
    asked_again,
    read_by_others,
    rung,
    told_late,
    unanswered,
)
from tests.world.user import Json, Message
from wintermute.conversation import replies

ANN, BOT = "@ann:x", "@bot:x"
AWAY = replies.UNREACHABLE.format(problem="scripted is not reachable")


def message(n: int, sender: str, body: str) -> Message:
    return Message(f"${n}", sender, "m.room.message", {"msgtype": "m.text", "body": body}, True)


def numbered(*said: tuple[str, str]) -> list[Message]:
    return [message(n, sender, body) for n, (sender, body) in enumerate(said)]


@pytest.mark.parametrize(
    ("said", "silent"),
    [
        ([(ANN, "hi"), (BOT, "ok: hi")], 0),
        ([(ANN, "hi")], 1),
        ([(BOT, "ok: hi"), (ANN, "hi")], 1),
        ([(ANN, "hi"), (ANN, "ho"), (BOT, "ok: ho")], 1),
        ([(ANN, "hi"), (ANN, "/help"), (BOT, "- `/new`"), (BOT, "ok: hi")], 0),
        ([(ANN, "/status"), (ANN, "/help"), (BOT, "- `/new`")], 1),
        ([(ANN, "hi"), (BOT, AWAY)], 1),
        ([(ANN, "hi"), (BOT, "⏰ tea")], 1),
        ([(ANN, ""), (ANN, "hi"), (BOT, "ok: hi")], 1),
        ([(ANN, "hi"), (ANN, "/stop"), (BOT, "Stopped.")], 0),
        ([(ANN, "/new"), (BOT, "`/new` waits until I have answered your earlier message")], 1),
        ([(BOT, "Stopped."), (ANN, "hi")], 1),
    ],
)
def test_a_message_wants_an_answer_or_a_line_of_its_own(
    said: list[tuple[str, str]], silent: int
) -> None:
    assert len(unanswered(numbered(*said), ANN, BOT)) == silent


def test_who_deletes_or_edits_wants_no_other_answer() -> None:
    about: Json = {"rel_type": "m.replace", "event_id": "$0"}
    new: dict[str, Json] = {"m.new_content": {"body": "Porto"}, "m.relates_to": about}
    edit = Message("$2", ANN, "m.room.message", {"body": "* Porto", **new}, True)
    lived = [message(0, ANN, "Lyon"), message(1, ANN, "oh"), edit, message(3, BOT, "ok: Porto")]
    assert unanswered(lived, ANN, BOT) == ["no answer to m.text 'oh'"]
    gone = Message("$4", ANN, "m.room.redaction", {"redacts": "$1"}, False)
    assert unanswered([*lived, gone], ANN, BOT) == []


def test_a_deleted_text_is_asked_with_once_it_could_be_known() -> None:
    """F-027."""
    gone = [Deletion(10.0, "alpha")]
    requests = [Request(9.0, "alpha"), Request(11.0, "alpha"), Request(30.0, "beta")]
    assert asked_again(requests, gone) == []
    assert len(asked_again([*requests, Request(13.0, "plan alpha")], gone)) == 1


def test_late_words_and_reminders_that_ring_twice_are_named() -> None:
    """F-036, F-028."""
    assert len(told_late([Told("chat", 4.9), Told("chat", 5.1)])) == 1
    assert len(rung([Ring("tea", 1), Ring("tea", 5), Ring("tea", 0)])) == 2


def test_what_was_said_in_private_is_for_nobody_else() -> None:
    heard = {ANN: ["ok: my pin"], "@eve:x": ["ok: hello", "I know: my pin"]}
    assert len(read_by_others({ANN: {"my pin"}}, heard)) == 1
    assert read_by_others({"@eve:x": {"hello"}}, heard) == []
