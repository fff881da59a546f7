"""The recorder that looks at every request of the suite: what it lets pass, and what it does not."""

from pathlib import Path

import aiohttp
import pytest

from tests.world.model import ModelServer, Text
from tests.world.prefixes import Cause, Prefixes
from tests.world.schema import lay_schema
from wintermute.messages import Json

SYSTEM = {"role": "system", "content": "Be kind."}
TOOL: Json = {"type": "function", "function": {"name": "task", "parameters": {}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "task", "arguments": "{}"}}
USED: Json = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT: Json = {"role": "tool", "tool_call_id": "c1", "content": "done"}


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def model(text: str) -> Json:
    return {"role": "assistant", "content": text}


def asked(*messages: Json, system: Json = SYSTEM, tools: tuple[Json, ...] = (TOOL,)) -> Json:
    return {"messages": [system, *messages], "tools": list(tools)}


class Wire:
    """A server's side of a few requests, each with its answer."""

    def __init__(self, *causes: Cause, perhaps: bool = False) -> None:
        self.seen = Prefixes(counting=True)
        self.seen.allow(*causes, perhaps=perhaps)

    def ask(self, *messages: Json, answer: Json | None = None, **more: object) -> list[str]:
        self.seen.saw(asked(*messages, **more))  # type: ignore[arg-type]  # passed on
        if answer:
            self.seen.answered(answer)
        return self.seen.problems()


def test_what_only_grows_at_its_end_is_no_break() -> None:
    """A text that is added to the newest message belongs to what grows."""
    wire = Wire()
    assert wire.ask(user("hi"), answer=USED) == []
    assert wire.ask(user("hi"), USED, RESULT, answer=model("hello")) == []
    shown = {**RESULT, "content": "done<context>"}
    assert wire.ask(user("hi"), USED, shown, model("hello"), user("more")) == []
    assert [step.cause for step in wire.seen.steps] == [None, None, None]
    assert wire.seen.share() > 0.7


@pytest.mark.parametrize(
    ("messages", "system"),
    [
        ([user("hi"), model("hello"), user("more")], "Be kind. It is 12:01."),
        ([user("ho"), model("hello"), user("more")], "Be kind."),
        ([user("hi"), model("hello "), user("more")], "Be kind. It is later."),
        ([model("hello"), user("more")], "Be kind."),
    ],
    ids=["the clock in the system message", "the first message", "both", "a message left out"],
)
def test_what_is_said_differently_is_a_break(messages: list[Json], system: str) -> None:
    wire = Wire()
    wire.ask(user("hi"), answer=model("hello"))
    [problem] = wire.ask(*messages, system={"role": "system", "content": system})
    assert problem.startswith("after ")
    assert "became" in problem


def test_a_request_continues_the_newest_one_and_not_one_before_it() -> None:
    """The result of a call is shown shorter in the next cast: begun again in the middle."""
    wire = Wire()
    wire.ask(user("hi"), answer=USED)
    wire.ask(user("hi"), USED, RESULT, answer=model("hello"))
    cut = {**RESULT, "content": "d"}
    assert wire.ask(user("hi"), USED, cut, model("hello"), user("more")) != []


def test_a_named_cause_explains_a_break_and_must_occur() -> None:
    named = Wire("edit")
    assert named.ask(user("hi"), answer=model("hello")) == [
        "'edit' is named as a cause and nothing broke off for it"
    ]
    assert named.ask(user("ho"), model("hello"), user("more")) == []
    assert Wire("edit", perhaps=True).ask(user("hi")) == []


def test_a_fold_and_other_tools_show_what_they_are() -> None:
    """No other name excuses them, and they excuse nothing else."""
    folded = user("# Conversation Summary\n[Folded: turns 1-1]\nThey met.\n\nmore")
    for cause, excused in (("fold", True), ("edit", False)):
        wire = Wire(cause, perhaps=True)  # type: ignore[arg-type]  # of the list
        wire.ask(user("hi"), answer=model("hello"))
        wire.ask(user("hi"), model("hello"), user("and"), answer=model("yes"))
        assert (wire.ask(folded, model("yes"), user("more")) == []) is excused
    changed = Wire("edit", perhaps=True)
    changed.ask(user("hi"), answer=model("hello"))
    assert changed.ask(user("hi"), model("hello"), user("more"), tools=(TOOL, TOOL)) != []


ERASED = user("[this message was erased]")
CUT = user("h\n[… 40 characters left out to fit the model's window …]\ni")
SHORT: Json = {**RESULT, "content": "[ephemeral:read_file]"}


@pytest.mark.parametrize(
    ("now", "system", "causes"),
    [
        ((user("hi"), USED, RESULT), "Be brief.", {"edited prompt", "edited core", "failover"}),
        ((user("hi"), USED, SHORT), "Be kind.", {"decay", "redaction"}),
        ((ERASED, USED, RESULT), "Be kind.", {"redaction", "forgetting", "edit", "fork"}),
        ((CUT, USED, RESULT), "Be kind.", {"cutting"}),
        ((USED, RESULT), "Be kind.", {"redaction", "edit"}),
    ],
    ids=["the instructions", "a result", "a message", "a message is cut", "one is left out"],
)
def test_a_cause_excuses_what_it_breaks(
    now: tuple[Json, ...], system: str, causes: set[Cause]
) -> None:
    """Whoever names an edit is told of a clock in the system message all the same."""
    others: set[Cause] = {"edited prompt", "decay", "cutting", "edit", "interrupted", "retry line"}
    for cause in causes | others:
        wire = Wire(cause, perhaps=True)
        wire.ask(user("hi"), answer=USED)
        wire.ask(user("hi"), USED, RESULT, answer=model("hello"))
        found = wire.ask(*now, model("hello"), user("more"), system={**SYSTEM, "content": system})
        allowed = cause in causes or (cause == "edit" and now[0] in (CUT, ERASED))
        assert (found == []) is allowed, cause


def test_rooms_that_say_the_same_are_two_branches() -> None:
    """Each is continued once."""
    wire = Wire()
    for _ in range(2):
        wire.ask(user("hi"), answer=model("hello"))
    for text in ("one", "two"):
        assert wire.ask(user("hi"), model("hello"), user(text), answer=model("yes")) == []
    assert wire.ask(user("hi"), model("hello"), user("three")) != []


def test_an_attempt_that_failed_and_its_repetition_are_one() -> None:
    wire = Wire()
    wire.ask(user("hi"), answer=model("hello"))
    wire.ask(user("hi"), model("hello"), user("more"))
    wire.ask(user("hi"), model("hello"), user("more"), answer=model("yes"))
    assert wire.ask(user("hi"), model("hello"), user("more"), model("yes"), user("so")) == []
    assert wire.ask(user("hi"), model("hello"), user("more")) != []


def test_what_another_server_answered_begins_here() -> None:
    assert Wire().ask(user("hi"), model("from elsewhere"), user("more")) == []


def test_a_branch_that_lost_its_past_is_seen_by_the_number_of_branches(tmp_path: Path) -> None:
    """On the wire it looks like one more; the database knows better."""
    wire = Wire()
    wire.ask(user("hi"), answer=model("hello"))
    wire.seen.count(tmp_path)
    assert wire.seen.problems() == []
    lay_schema(tmp_path / "wintermute.db")
    wire.seen.count(tmp_path)
    told = "branches that began on the wire: 1; in the database: 0"
    assert wire.seen.problems() == [told]
    wire.seen.allow("cutting")
    assert wire.seen.problems() == []


def test_only_causes_of_the_list_can_be_named() -> None:
    with pytest.raises(AssertionError, match="whim"):
        Prefixes().allow("whim")  # type: ignore[arg-type]  # this is the test


async def test_a_server_that_saw_a_break_fails_its_test() -> None:
    """Through the wire: the answers of the server are what tells its branches."""
    from_wire = [asked(user("hi")), asked(user("now"), model("hello"), user("more"))]
    server = ModelServer(default=lambda _: Text("hello"))
    server.prefixes = Prefixes()
    with pytest.raises(AssertionError, match="became"):
        async with server:
            await post(server, from_wire)
    assert len(server.requests) == 2


async def post(server: ModelServer, bodies: list[Json]) -> None:
    async with aiohttp.ClientSession() as session:
        for body in bodies:
            async with session.post(f"{server.url}/chat/completions", json=body) as answer:
                assert answer.status == 200
