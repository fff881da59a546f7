"""One backend: its patience, and what it lets into its process and its requests."""

import asyncio
import json
import os
import subprocess
import sys
from contextlib import aclosing

import pytest

from tests.world.asking import DEAD, HELLO, KEY, backend
from tests.world.clock import SYSTEM
from tests.world.listener import Listening
from tests.world.model import Drip, Events, Hang, ModelServer, Step, Trickle
from wintermute.ids import new_id
from wintermute.llm.backend import Endpoint, Wait
from wintermute.llm.failures import Outage
from wintermute.messages import Json

ROLE = {"choices": [{"delta": {"role": "assistant", "content": ""}}]}
THOUGHT = {"choices": [{"delta": {"reasoning": "hm"}}]}


async def seconds_until_outage(model: ModelServer, step: Step, **settings: float) -> float:
    """How long an attempt is given that never comes to an end."""
    model.keyed(lambda _: step)
    async with aclosing(Endpoint("a", backend(model.url, **settings), new_id)) as endpoint:
        began = SYSTEM.monotonic()
        with pytest.raises(Outage, match=r"in the middle|did not begin"):
            await endpoint.ask(HELLO)
        return SYSTEM.monotonic() - began


async def test_silence_in_the_middle_of_an_answer_is_an_outage(model: ModelServer) -> None:
    """F-017: after the first token nothing counts but the time since the last byte."""
    said = Drip("one two", asyncio.Semaphore(1))
    assert 0.2 <= await seconds_until_outage(model, said, timeout_s=0.2) < 20
    thought = Events((THOUGHT,), stay=True)  # reasoning is a token as well
    assert 0.2 <= await seconds_until_outage(model, thought, timeout_s=0.2) < 20
    dull = Events((THOUGHT, ROLE), stay=b": here\n\n")  # F-063: that makes it four times as long
    assert 0.8 <= await seconds_until_outage(model, dull, timeout_s=0.2) < 20


@pytest.mark.parametrize("step", [Hang(), Events((ROLE,), stay=True)])
async def test_a_first_token_may_take_its_time(model: ModelServer, step: Step) -> None:
    """F-017: a role is none."""
    settings = {"first_token_s": 0.5, "timeout_s": 0.1}
    assert 0.5 <= await seconds_until_outage(model, step, **settings) < 20


async def test_a_silent_stream_that_lives_has_four_times_as_long(model: ModelServer) -> None:
    """F-017: a comment each 0.05 s, as a server sends them that is still reading the prompt."""
    comments = Trickle(b": still here\n\n", interval=0.05)
    assert 0.8 <= await seconds_until_outage(model, comments, first_token_s=0.2) < 20


@pytest.mark.slow
async def test_an_answer_may_take_as_long_as_it_goes_on(model: ModelServer) -> None:
    """F-017, seen live: a slow steady stream was thrown away again and again."""
    model.keyed(lambda _: Drip("slow but steady all the way", interval=0.15))
    settings = backend(model.url, timeout_s=0.5, first_token_s=0.5)
    async with aclosing(Endpoint("a", settings, new_id)) as endpoint:
        answer = await endpoint.ask(HELLO)
    assert answer.text.strip() == "slow but steady all the way"


async def test_whoever_listens_hears_when_the_first_token_is_there(model: ModelServer) -> None:
    heard = Listening()
    model.script(Events((ROLE, THOUGHT, {"choices": [{"delta": {"content": "yes"}}]}, "[DONE]")))
    async with aclosing(Endpoint("a", backend(model.url), new_id)) as endpoint:
        await endpoint.ask(HELLO, listener=heard)
    assert (heard.events, heard.pieces) == (["asked", "begun"], ["", "yes"])


def progress(read: int, total: int = 5249) -> Json:
    """What llama.cpp sends while it reads a question."""
    told = {"total": total, "cache": 0, "processed": read, "time_ms": 1}
    return {"choices": [{"delta": {"role": "assistant", "content": None}}], "prompt_progress": told}


async def test_how_much_was_read_is_heard_and_is_no_token(model: ModelServer) -> None:
    """Issue 17, F-017: as llama.cpp tells it, if it is asked to; garbage in it is no matter."""
    heard = Listening()
    told = (progress(0), progress(2048), progress(-1), progress(9999), progress(7, 0))
    model.script(Events((*told, {"choices": [{"delta": {"content": "yes"}}]}, "[DONE]")))
    async with aclosing(Endpoint("a", backend(model.url), new_id)) as endpoint:
        await endpoint.ask(HELLO, listener=heard)
    assert heard.events == ["asked", "begun"]
    assert heard.waits[0] == Wait("a")
    read = [(wait.read, wait.total) for wait in heard.waits if wait.total]
    assert sorted(set(read)) == [(0, 5249), (2048, 5249), (5249, 5249)]
    assert model.requests[0].body["return_progress"] is True


async def test_progress_keeps_a_server_alive_as_bytes_do(model: ModelServer) -> None:
    """F-017: no first token, so it has four times the silence in all."""
    lives = Trickle(f"data: {json.dumps(progress(5))}\n\n".encode(), interval=0.05)
    assert 0.8 <= await seconds_until_outage(model, lives, first_token_s=0.2) < 20


async def test_reasoning_that_never_began_is_taken_back_once(model: ModelServer) -> None:
    """F-020: a template may have begun it in the prompt."""
    deltas = [{"choices": [{"delta": {"content": text}}]} for text in ("hm ", "</think>", "yes")]
    model.keyed(lambda _: Events((*deltas, "[DONE]")))
    first, second = Listening(), Listening()
    async with aclosing(Endpoint("a", backend(model.url), new_id)) as endpoint:
        assert (await endpoint.ask(HELLO, listener=first)).text == "yes"
        assert (await endpoint.ask(HELLO, listener=second)).text == "yes"
    assert first.pieces == ["", "hm ", "yes"]
    assert first.events == ["asked", "begun", "was reasoning"]
    assert second.pieces == ["", "yes"]


CHILD = """
import asyncio, sys
import wintermute.llm.models, wintermute.llm.probes
from wintermute.config.schema import Backend
assert not {"openai", "httpx2", "pydantic"} & set(sys.modules)
print(asyncio.run(wintermute.llm.probes.probe("local", Backend(base_url=sys.argv[1], model="m"), 60)).report)
"""


@pytest.mark.slow
async def test_openai_loads_late_and_takes_nothing_from_the_environment(model: ModelServer) -> None:
    """DESIGN A-8; a child process, for modules and environment are its own."""
    intruders = {
        "OPENAI_API_KEY": KEY,
        "OPENAI_ORG_ID": "intruder",
        "OPENAI_PROJECT_ID": "intruder",
        "OPENAI_BASE_URL": DEAD,
        "OPENAI_CUSTOM_HEADERS": "Authorization: intruder\nX-Extra: intruder",
        "HTTP_PROXY": "http://127.0.0.1:9",
        "ALL_PROXY": "http://127.0.0.1:9",
    }
    command = [sys.executable, "-W", "error", "-c", CHILD, model.url]
    environment = {**os.environ, **intruders}  # noqa: TID251  handed on to the child
    done = await asyncio.to_thread(
        subprocess.run, command, env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith("local answered in"), done.stderr
    headers = model.requests[0].headers
    assert headers["authorization"] == "Bearer none"
    assert "intruder" not in repr(headers)
    assert not [name for name in headers if name.startswith("openai")]


GARBAGE = """
import asyncio, gc, sys
import wintermute.daemon, wintermute.llm.probes
from wintermute.config.schema import Backend
asyncio.run(wintermute.llm.probes.probe("local", Backend(base_url=sys.argv[1], model="m"), 60))
print(gc.get_freeze_count() > 20 * len(gc.get_objects()))
"""


@pytest.mark.slow
async def test_a_look_for_garbage_does_not_go_through_the_whole_program(model: ModelServer) -> None:
    """M-030: else it holds up whoever is answered meanwhile; in a process of its own."""
    command = [sys.executable, "-c", GARBAGE, model.url]
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, check=False
    )
    assert done.stdout == "True\n", done.stdout + done.stderr


@pytest.mark.parametrize("url", ["http://127.0.0.1:99999/v1", f"http://{'x' * 70}.test/v1", DEAD])
async def test_where_nobody_can_listen_nobody_does(url: str) -> None:
    """F-036: a mistaken address of one backend ends nothing but its own hopes."""
    async with aclosing(Endpoint("a", backend(url), new_id)) as endpoint:
        assert not await endpoint.accepts_connections()


async def test_a_server_that_is_there_listens(model: ModelServer) -> None:
    async with aclosing(Endpoint("a", backend(model.url), new_id)) as endpoint:
        assert await endpoint.accepts_connections()
    assert model.requests == []
