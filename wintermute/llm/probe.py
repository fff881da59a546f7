"""One tiny question to one backend, for `wintermute check`."""

import asyncio

from wintermute.config.schema import Backend
from wintermute.config.secrets import Redaction
from wintermute.errors import ModelUnavailable
from wintermute.ids import new_id
from wintermute.llm.backend import Endpoint
from wintermute.llm.failures import Empty, Failed
from wintermute.messages import Request

TOOL = {"name": "done", "description": "Ends.", "parameters": {"type": "object", "properties": {}}}
QUESTION = Request(
    ({"role": "user", "content": "Reply with: ok"},),
    ({"type": "function", "function": TOOL},),  # without tools, no model is of use here
)
MOST_TOKENS = 16


async def probe(name: str, backend: Backend, seconds: float) -> str:
    """How the backend answered within so many seconds (F-017), in one line.

    Raises: ModelError, which says what to do.
    """
    key = (backend.api_key.reveal(),) if backend.api_key else ()
    endpoint = Endpoint(name, backend, new_id, redact=Redaction(key))
    loop = asyncio.get_running_loop()
    began = loop.time()
    model = backend.model
    try:
        async with asyncio.timeout(seconds):
            answer = await endpoint.ask(QUESTION, MOST_TOKENS)
        model = answer.model or model
    except Empty:
        pass  # it works: a model that thinks first has used up these few tokens
    except Failed as failure:
        raise failure.public(str(failure)) from None
    except TimeoutError:
        raise ModelUnavailable(f"{name} gave no answer in {seconds:g} s") from None
    finally:
        await endpoint.aclose()
    return f"{name} answered in {loop.time() - began:.1f} s (model {model})"
