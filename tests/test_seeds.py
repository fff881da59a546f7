"""A conversation opens with a seed: once, before everything else, whatever happens meanwhile."""

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.world.house import ANN, House, house_at_work, open_house
from tests.world.model import Fail, Hang, ModelServer, Seen, Step, Text
from wintermute.errors import ConfigurationError
from wintermute.prompt.context_builder import seed_template
from wintermute.templates import shipped_prompts


def greet(seen: Seen) -> Step | None:
    return Text("Hello, I am here.") if "conversation_seed" in seen.last_user else None


async def events(house: House) -> Sequence[str]:
    rows = await house.rows("SELECT event_id FROM inbox WHERE kind = 'event' ORDER BY seq")
    return [row["event_id"] for row in rows]


async def test_the_first_message_is_answered_after_the_greeting(
    tmp_path: Path, model: ModelServer
) -> None:
    """P-055, P-060, L-070: once, as an event, also for two first messages at once."""
    model.keyed(greet)
    async with open_house(tmp_path, model.url, language="en") as house:
        await house.incoming("one")
        await house.incoming("two")
        async with house.working():
            assert await house.said(3) == ["Hello, I am here.", "echo: one", "echo: two"]
            await house.incoming("three")
            assert (await house.said(4))[3] == "echo: three"
        row = await house.one("SELECT origin, direct, sender FROM inbox WHERE kind = 'event'")
    assert row == {"origin": "system", "direct": 1, "sender": ANN}
    first = model.requests[0].messages[1]
    assert first["role"] == "user"
    assert first["content"].startswith('<event kind="conversation_seed" id="seed">\n')
    assert first["content"].endswith("\n</event>")
    assert shipped_prompts()["SEED_en.txt"].strip() in first["content"]
    shown = [message["content"] for message in model.requests[1].messages[1:]]
    assert shown[1:] == ["Hello, I am here.", "one"]


async def test_new_greets_at_once_and_not_again(tmp_path: Path, model: ModelServer) -> None:
    """P-056, P-067: also when messages wait behind it, and as a server has read it before."""
    model.keyed(greet)
    async with open_house(tmp_path, model.url, language="en") as house:
        for text in ("one", "/new", "two"):
            await house.incoming(text)
        async with house.working():
            said = await house.said(5)
            await house.settled()
    assert said[:2] == ["Hello, I am here.", "echo: one"]
    assert "new conversation" in said[2]
    assert said[3:] == ["Hello, I am here.", "echo: two"]
    first, second = (
        each.messages for each in model.requests if "conversation_seed" in each.last_user
    )
    assert first == second


async def test_events_alone_do_not_open_a_conversation(tmp_path: Path, model: ModelServer) -> None:
    """P-060."""
    async with house_at_work(tmp_path, model.url, language="en") as house:
        await house.incoming("a task is due", kind="event", origin="timer")
        await house.incoming("/status")
        await house.said(2)
        assert len(await events(house)) == 1


@pytest.mark.parametrize("failure", [Fail(503), Fail(400), Text("")])
async def test_a_failed_seed_leaves_only_the_answer(
    tmp_path: Path, model: ModelServer, failure: Step
) -> None:
    """P-061."""
    model.keyed(lambda seen: failure if "conversation_seed" in seen.last_user else None)
    async with house_at_work(tmp_path, model.url, language="en") as house:
        await house.incoming("hello")
        assert await house.said(1) == ["echo: hello"]
        await house.settled()
        assert await house.spoken() == ["echo: hello"]


async def test_a_restart_in_the_middle_makes_no_second_seed(
    tmp_path: Path, model: ModelServer
) -> None:
    """P-060: and the greeting still comes first."""
    model.script(Hang())
    async with house_at_work(tmp_path, model.url, language="en") as house:
        await house.incoming("hello")
        await asyncio.wait_for(model.request_arrived(1), 10)
    model.keyed(greet)
    async with house_at_work(tmp_path, model.url, language="en") as house:
        assert await house.said(2) == ["Hello, I am here.", "echo: hello"]
        await house.incoming("again")
        assert len(await house.said(3)) == 3
        assert len(await events(house)) == 1


async def test_stop_during_the_greeting_stops_what_was_asked(
    tmp_path: Path, model: ModelServer
) -> None:
    """L-023, P-055: the message that waits for its greeting is what the person wants stopped."""
    model.script(Hang())
    async with house_at_work(tmp_path, model.url, language="en") as house:
        await house.incoming("do the thing")
        await asyncio.wait_for(model.request_arrived(1), 10)
        await house.say("/stop")
        assert await house.spoken() == ["Stopped."]
    assert len(model.requests) == 1


async def test_a_group_is_greeted_in_its_own_branch(tmp_path: Path, model: ModelServer) -> None:
    """P-055, DESIGN §6: a third person came, and nothing said before is carried over."""
    model.keyed(greet)
    async with house_at_work(tmp_path, model.url, language="en") as house:
        await house.incoming("just us")
        await house.said(2)
        await house.incoming("and Bob", scope="room:!room:test", direct=False)
        said = await house.said(4)
    assert said[2] == "Hello, I am here."
    assert "just us" not in str(model.requests[2].messages)


def test_a_language_without_a_file_falls_back_to_english(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """P-057, P-058, P-059."""
    (tmp_path / "SEED_en.txt").write_text("Say hello.")
    (tmp_path / "SEED_pt.txt").write_text("Diz olá.")
    assert seed_template(tmp_path, "pt").text() == "Diz olá."
    assert not caplog.records
    assert seed_template(tmp_path, "nl").text() == "Say hello."
    assert ["SEED_nl.txt" in record.getMessage() for record in caplog.records] == [True]
    (tmp_path / "SEED_en.txt").unlink()
    with pytest.raises(ConfigurationError, match=r"SEED_en\.txt"):
        seed_template(tmp_path, "pt")


async def test_an_edited_seed_counts_and_a_lost_one_stays_in_use(
    tmp_path: Path, model: ModelServer
) -> None:
    """P-005."""
    prompts = tmp_path / "prompts"
    shutil.copytree(Path(__file__).parent.parent / "data" / "prompts", prompts)
    async with house_at_work(tmp_path, model.url, language="de", prompts=prompts) as house:
        (prompts / "SEED_de.txt").write_text("Grüß kurz.")
        await house.incoming("hallo")
        await house.said(2)
        (prompts / "SEED_de.txt").unlink()
        await house.incoming("/new")
        await house.said(4)
    assert "Grüß kurz." in model.requests[0].last_user
    assert "Grüß kurz." in model.requests[2].last_user
