"""One backend: its patience, and what it lets into its process and its requests."""

import asyncio
import os
import subprocess
import sys
from contextlib import aclosing

import pytest

from tests.test_llm_models import DEAD, HELLO, KEY, backend
from tests.world.model import Drip, Events, ModelServer
from wintermute.ids import new_id
from wintermute.llm.backend import Endpoint
from wintermute.llm.failures import Outage


async def test_silence_in_the_middle_of_an_answer_is_an_outage(model: ModelServer) -> None:
    gate = asyncio.Semaphore(1)
    model.keyed(lambda _: Drip("one two", gate))
    async with aclosing(Endpoint("a", backend(model.url), new_id, 0.1)) as endpoint:
        with pytest.raises(Outage, match=r"silent in the middle of one for 0\.1 s"):
            await endpoint.ask(HELLO)


async def test_silence_before_an_answer_is_a_model_that_thinks(model: ModelServer) -> None:
    thought = {"choices": [{"delta": {"role": "assistant", "reasoning": "hm"}}]}
    model.keyed(lambda _: Events((thought,), stay=True))
    loop = asyncio.get_running_loop()
    async with aclosing(Endpoint("a", backend(model.url, timeout_s=0.4), new_id, 0.01)) as endpoint:
        began = loop.time()
        with pytest.raises(Outage):
            await endpoint.ask(HELLO)
        assert loop.time() - began >= 0.4


CHILD = """
import asyncio, sys
import wintermute.llm.models, wintermute.llm.probe
from wintermute.config.schema import Backend
assert not {"openai", "httpx2", "pydantic"} & set(sys.modules)
print(asyncio.run(wintermute.llm.probe.probe("local", Backend(base_url=sys.argv[1], model="m"))))
"""


async def test_openai_loads_late_and_takes_nothing_from_the_environment(
    model: ModelServer,
) -> None:
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
