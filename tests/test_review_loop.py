"""What a reviewer of the loop broke: edits between histories, secrets and results in odd places."""

import json
from pathlib import Path

import pytest

from tests.test_forks import TOLD, branches, edit, shown, tell
from tests.world.house import ANN, Gate, HeldClock, House, open_house
from tests.world.model import Calls, Fail, ModelServer, Seen, Step, Text, Use, is_for_summary
from wintermute.config.schema import Context
from wintermute.config.secrets import HIDDEN, Redaction
from wintermute.messages import Incoming, Json

SECRET = "hunter2-canary"


async def waits(house: House) -> None:
    async def tried() -> bool:
        rows = await house.rows("SELECT 1 FROM inbox WHERE not_before IS NOT NULL")
        return bool(rows)

    await house.until(tried)


def away_for(model: ModelServer, text: str) -> list[bool]:
    """The model does not answer this text while the list has something."""
    gone = [True]
    model.keyed(lambda seen: Fail(500) if gone and seen.last_user.endswith(text) else None)
    return gone


async def test_an_edit_that_waits_tells_who_came_in_nothing_of_what_was_done_before(
    tmp_path: Path, model: ModelServer
) -> None:
    """L-054, M-010: effects of another scope stay there, arguments and all."""
    mail, clock = Gate("mail"), HeldClock()
    model.script(Calls((Use("mail", {"say": "private words"}),)), Text("sent"))
    async with (
        open_house(tmp_path, model.url, gates=[mail], clock=clock) as house,
        house.working(),
    ):
        event = await tell(house, "old")
        gone = away_for(model, "new")
        await edit(house, event, "new")
        await waits(house)
        await house.incoming("hi all", scope="room:!room:test", kind="context", direct=False)
        gone.clear()
        await clock.move(61)
        await house.settled()
        (*_, last) = await house.rows("SELECT scope FROM branches ORDER BY seq")
    assert last["scope"] == "room:!room:test"
    assert shown(model.requests[-1]) == ["new"]


async def test_an_edit_that_waits_goes_into_the_fresh_thread_as_any_message(
    tmp_path: Path, model: ModelServer
) -> None:
    """L-054, L-074: `/new` has left behind what was done for the old text."""
    mail, clock = Gate("mail"), HeldClock()
    model.script(Calls((Use("mail", {"say": "x"}),)), Text("sent"))
    async with (
        open_house(tmp_path, model.url, gates=[mail], clock=clock) as house,
        house.working(),
    ):
        event = await tell(house, "old")
        gone = away_for(model, "new")
        await edit(house, event, "new")
        await waits(house)
        await house.incoming("/new")
        await house.said(2)
        gone.clear()
        await clock.move(61)
        await house.settled()
        reasons = [row["reason"] for row in await branches(house)]
    assert shown(model.requests[-1]) == ["new"]
    assert reasons == ["start", "edit", "new"]


async def test_an_edit_that_finds_the_model_away_forks_once(
    tmp_path: Path, model: ModelServer
) -> None:
    """L-034, L-054: it goes on where it began, with what was done for it in view."""
    mail, clock = Gate("mail"), HeldClock()
    model.script(Calls((Use("mail", {"say": "old one"}),)), Text("sent"))
    async with (
        open_house(tmp_path, model.url, gates=[mail], clock=clock) as house,
        house.working(),
    ):
        event = await tell(house, "old")
        model.script(Calls((Use("mail", {"say": "new one"}),)), Fail(500), Fail(500))
        await edit(house, event, "new")
        await waits(house)
        await clock.move(61)
        await model.request_arrived(5)
        await waits(house)
        await clock.move(61)
        await house.settled()
        assert [row["reason"] for row in await branches(house)] == ["start", "edit"]
    told, call, result = shown(model.requests[-1])
    assert told.count(TOLD) == 1
    assert (call, result) == ("", "new one")
    assert mail.taken == [{"say": "old one"}, {"say": "new one"}]


async def test_a_secret_in_a_noted_edit_is_hidden(tmp_path: Path, model: ModelServer) -> None:
    """L-089: in no database row."""
    async with open_house(tmp_path, model.url, redact=Redaction([SECRET])) as house:
        event = await house.incoming("old")
        row = await house.one("SELECT conversation_id FROM inbox")
        async with house.database.transaction() as tx:
            await house.stores.edits.note(
                tx, "$edit", event, row["conversation_id"], ANN, f"it is {SECRET}"
            )
        edits = await house.one("SELECT text FROM edits")
    assert edits["text"] == f"it is {HIDDEN}"


async def test_a_secret_in_a_prompt_file_is_in_no_row(tmp_path: Path, model: ModelServer) -> None:
    """L-089: the recorded prompt is the one that was sent."""
    async with (
        open_house(
            tmp_path, model.url, redact=Redaction([SECRET]), prompt=lambda: f"Key: {SECRET}"
        ) as house,
        house.working(),
    ):
        await tell(house, "hello")
        rows = [
            await house.rows(f"SELECT * FROM {table}")  # noqa: S608
            for table in ("prompts", "prompt_parts")
        ]
    assert SECRET not in json.dumps(rows)
    assert SECRET not in json.dumps(model.requests[0].body)


async def test_what_the_model_may_not_see_is_not_summed_up(
    tmp_path: Path, model: ModelServer
) -> None:
    """L-055: the summary is a view of the model as well."""
    hidden = Gate("camera")
    model.script(Calls((Use("camera", {"say": "a naked truth"}, id="c1"),)), Text("noted it all"))
    model.keyed(lambda s: Text("a summary of it", usage=None) if is_for_summary(s.body) else None)
    async with (
        open_house(
            tmp_path,
            model.url,
            gates=[hidden],
            ephemeral=["camera"],
            context=Context(keep_recent=1),
        ) as house,
        house.working(),
    ):
        await tell(house, "look there", "a second message", "/compact")
    (asked,) = [seen for seen in model.requests if is_for_summary(seen.body)]
    assert "[result]\n[ephemeral:camera]" in asked.messages[0]["content"]


@pytest.mark.parametrize("told", [True, False])
async def test_one_call_larger_than_the_window_ends_no_cast(
    tmp_path: Path, model: ModelServer, told: bool
) -> None:
    """L-036, L-043: what the model itself wrote into a call is shortened like any message."""
    most = 8000

    def too_large(seen: Seen) -> bool:
        return len(json.dumps(seen.messages)) > most

    def answer(seen: Seen) -> Step | None:
        if is_for_summary(seen.body):
            return Text("a summary of it all", usage=None)
        if too_large(seen):
            return Fail(400, {"error": {"message": "context_length_exceeded"}})
        if seen.messages[-1]["role"] == "user":
            return Calls((Use("echo", {"say": "x" * 12000, "n": [1]}),), usage=None)
        return Text("done it", usage=None)

    model.keyed(answer)
    window = {"context_tokens": 4096, "max_output_tokens": 1024} if told else {}
    echo = Gate("echo", act=_short)
    async with (
        open_house(tmp_path, model.url, gates=[echo], **window) as house,
        house.working(),
    ):
        await tell(house, "write much")
        assert await house.spoken() == ["done it"]
    sent = [json.dumps(seen.body) for seen in model.requests]
    assert all(one != other for one, other in zip(sent, sent[1:], strict=False))


async def _short(_caller: object, _args: Json) -> object:
    return "ok"
