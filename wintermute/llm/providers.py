"""Popular model servers, as data, and the list of models that any server offers."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import httpx2

from wintermute.config.schema import Backend
from wintermute.errors import ModelError, ModelRefused, ModelUnavailable
from wintermute.text import no_answer

SECONDS = 10.0
MOST_BYTES = 8 * 1024 * 1024
HERE, GOOGLE = "http://127.0.0.1", "https://generativelanguage.googleapis.com"
GOOD = ("qwen3", "llama3.1", "mistral")


@dataclass(frozen=True, slots=True)
class Provider:
    """A model server: its address, start command or page for keys, and parts of model names to suggest."""

    base_url: str
    start: str = ""
    keys: str = ""
    models: tuple[str, ...] = ()


PROVIDERS: Mapping[str, Provider] = {
    "ollama": Provider(f"{HERE}:11434/v1", "OLLAMA_CONTEXT_LENGTH=16384 ollama serve", "", GOOD),
    "llama.cpp": Provider(f"{HERE}:8080/v1", "llama-server -m MODEL.gguf --jinja -c 16384 -np 1"),
    "lm-studio": Provider(f"{HERE}:1234/v1", "lms server start", "", GOOD),
    "vllm": Provider(f"{HERE}:8000/v1", "vllm serve MODEL --enable-auto-tool-choice", "", GOOD),
    "openai": Provider(
        "https://api.openai.com/v1", "", "https://platform.openai.com/api-keys", ("gpt-5-mini",)
    ),
    "openrouter": Provider(
        "https://openrouter.ai/api/v1", "", "https://openrouter.ai/settings/keys", GOOD
    ),
    "mistral": Provider(
        "https://api.mistral.ai/v1", "", "https://console.mistral.ai/api-keys", ("-latest",)
    ),
    "gemini": Provider(
        f"{GOOGLE}/v1beta/openai", "", "https://aistudio.google.com/apikey", ("flash",)
    ),
}


async def list_models(base_url: str, key: str = "") -> tuple[str, tuple[str, ...]]:
    """Return the address that lists models, with `/v1` added if it was missing, and their names.

    Raises: ModelRefused if the key is wrong or missing, ModelUnavailable; both say what to do.
    """
    address = base_url.rstrip("/")
    try:
        return address, await _listed(address, key)
    except ModelUnavailable:
        with suppress(ModelUnavailable):
            return f"{address}/v1", await _listed(f"{address}/v1", key)
        raise


async def _listed(address: str, key: str) -> tuple[str, ...]:
    if not (key.isascii() and key.isprintable()):
        raise ModelRefused("this key has characters that no key has: copy it once more")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    content, is_plain = bytearray(), address.lower().startswith("http://")
    try:
        async with (
            asyncio.timeout(SECONDS),
            httpx2.AsyncClient(verify=not is_plain, trust_env=False) as http,
            http.stream("GET", f"{address}/models", headers=headers) as answer,
        ):
            async for chunk in answer.aiter_bytes():
                if len(content) < MOST_BYTES:
                    content += chunk
        entries = json.loads(content)["data"] if answer.is_success else None
        models = tuple(str(each["id"]) for each in entries) if entries is not None else None
    except (httpx2.HTTPError, httpx2.InvalidURL, TimeoutError, UnicodeError) as error:
        todo = "start the server" if is_plain else "check the address and the network"
        raise ModelUnavailable(f"{no_answer(address, error)}: {todo}") from error
    except (ValueError, TypeError, KeyError, RecursionError):
        models = None
    if answer.status_code in (401, 403):
        problem = "refuses this key: it may be one of another provider" if key else "wants a key"
        raise ModelRefused(f"{address} {problem}")
    if models is None:
        problem = f"answers {answer.status_code} without a list of models"
        if answer.is_redirect:
            problem = f"redirects to {answer.headers.get('location', '?')[:200]}"
        raise ModelUnavailable(f"{address} {problem}: check the address")
    return models


def matches(name: str, models: Sequence[str]) -> list[str]:
    """Return the models that a name may mean: itself, or those with a tag, or those that contain it."""
    tagged = [each for each in models if each.startswith(f"{name}:")]
    within = [each for each in models if name.lower() in each.lower()]
    return [name] if name in models else tagged or within


async def remedy(backend: Backend) -> str:
    """Return the change to config.yaml for a model that does not answer; "" if none is known."""
    key = backend.api_key.reveal() if backend.api_key else ""
    if backend.proxy:
        return ""
    try:
        address, models = await list_models(backend.base_url, key)
    except ModelRefused as error:
        return f"; {error}"
    except ModelError:
        return ""
    if address != backend.base_url.rstrip("/"):
        return f" -> write base_url: {address}"
    near = matches(backend.model, models)
    return f" -> write model: {near[0]}" if near and near[0] != backend.model else ""
