"""Context windows of models: the configured size, the server's own, and the size we need.

    context_tokens ─┬─ longest answer
                    └─ room for a request ─┬─ fixed part: instructions, core memory, tools
                                           └─ the conversation

Only a server on a private address is asked for its window, with short timeouts.
"""

import asyncio
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Literal
from urllib.parse import SplitResult, urlsplit

from wintermute.config.schema import Backend
from wintermute.llm.usage import value_at
from wintermute.messages import mapping

SURE = 0.6
"""The lowest plausible ratio of a server's tokens to our estimate, for all measured models."""
ON_TOP = 1.1
TIGHT = 0.25
"""The share of the room below which a conversation has little space."""
FEWEST, MOST = 16, 10**9
"""Limits of a plausible window, in tokens."""
SECONDS = 2.0
"""Time limit for one request about the server itself."""
MOST_BYTES = 8 * 1024 * 1024
PRIVATE = tuple(
    ip_network(net)
    for net in (
        *("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16"),
        *("::1/128", "fc00::/7", "fe80::/10"),
    )
)
NUM_CTX = re.compile(r"^num_ctx\s+([0-9]{1,10})\s*$", re.MULTILINE)
CUTS = "its server cuts from the front"
LIMITS = re.compile(
    r"context (?:length|window|size)(?: of(?: only)?| is| \()\s*([0-9][0-9,]*)"
    r"|\bn_ctx\"?\s*[:=]\s*([0-9]+)|([0-9][0-9,]*) maximum\b|> ?([0-9][0-9,]*) max"
    r"|tokens allowed \(([0-9][0-9,]*)|must be <= ([0-9][0-9,]*)",
    re.IGNORECASE,
)
"""Patterns in which servers name their limit when they refuse more."""


def room(settings: Backend) -> int:
    """Return the most tokens of a request, so that an answer still fits; at least half of the window."""
    whole = settings.context_tokens
    return max(whole - settings.longest_answer, whole // 2)


def limit_in(complaint: str) -> int | None:
    """Return the window that a server names when it refuses a request as too large."""
    match = LIMITS.search(complaint)
    return _token_count(next(filter(None, match.groups())).replace(",", "")) if match else None


def too_small(name: str, settings: Backend, window: int | None) -> str:
    """Return the advice if a server takes less than a request that cannot be made smaller."""
    whole = f"config.yaml says context_tokens: {settings.context_tokens}"
    if window is None:
        return f"{whole}, and its server takes less: `wintermute check` compares them"
    if window < settings.context_tokens:
        return f"its server takes {window} tokens, {whole}: {_window_remedy(name, window)}"
    return (
        f"its server takes {window} tokens, {whole} and leaves {room(settings)} of them for a"
        " request: give the server a larger window and raise context_tokens with it"
    )


def cut_warning(name: str, window: int) -> str:
    """Return the warning about a server that silently cuts long prompts (F-064)."""
    return (
        f"with prompts that {CUTS}, for it counts {window} tokens however long they are: its context"
        f" window is {window} -> {_window_remedy(name, window)} (Ollama: PARAMETER num_ctx in a"
        " Modelfile, or OLLAMA_CONTEXT_LENGTH)"
    )


def _window_remedy(name: str, window: int) -> str:
    return (
        f"set llm.backends.{name}.context_tokens to {window}, or start the server with more (where it"
        " has several slots, each has its share)"
    )


@dataclass(frozen=True, slots=True)
class ServerWindow:
    """The window that a server reports. `at_most`: the model's limit; the server may give less."""

    tokens: int
    at_most: bool = False


@dataclass(frozen=True, slots=True)
class FixedPart:
    """The tokens of every request's fixed part: counted by the server, or estimated from the texts.

    `small`: with the texts for small models; None if they are the same.
    """

    tokens: int
    small: int | None = None
    estimated: bool = False

    @property
    def needs(self) -> int:
        """The room it needs; an estimate gets a tenth on top, as a count may be higher (L-090)."""
        return math.ceil(self.tokens * ON_TOP) if self.estimated else self.tokens

    def __str__(self) -> str:
        if self.estimated:
            return f"about {self.tokens} tokens (estimated)"
        return f"{self.tokens} tokens (measured)"


@dataclass(frozen=True, slots=True)
class Judgement:
    """A judgement if a window is large enough, in words that say what to do."""

    state: Literal["ok", "warn", "fail"]
    text: str


def judge_fixed_part(name: str, settings: Backend, fixed: FixedPart) -> Judgement:
    """Compare the fixed part with the room for a request."""
    whole, longest, left = settings.context_tokens, settings.longest_answer, room(settings)
    sizes = (
        f"instructions and tools take {fixed} of the {left} that context_tokens: {whole} and"
        f" max_output_tokens: {longest} leave for a request"
    )
    keys = _remedies(name, settings, fixed)
    if fixed.needs >= left:
        return Judgement("fail", f"{sizes}, so no message fits -> {keys}")
    if left - fixed.tokens < TIGHT * left:
        over = left - fixed.tokens
        return Judgement("warn", f"{sizes}, so {over} remain for a conversation -> {keys}")
    return Judgement("ok", sizes)


def _remedies(name: str, settings: Backend, fixed: FixedPart) -> str:
    """Name the settings to change so that more fits."""
    ways = [f"raise llm.backends.{name}.context_tokens to what its server takes"]
    written, unwritten = settings.max_output_tokens, replace(settings, max_output_tokens=None)
    if written is not None and written > unwritten.longest_answer:
        ways.append("leave max_output_tokens empty (a quarter of the window then)")
    elif written is not None:
        ways.append("lower max_output_tokens")
    if settings.size != "small" and fixed.small is not None and fixed.small < room(unwritten):
        ways.append("set size: small")
    return ", or ".join(ways)


def compare_windows(name: str, settings: Backend, server: ServerWindow) -> Judgement:
    """Compare the configured window with the server's."""
    whole = settings.context_tokens
    if server.tokens >= whole:
        return Judgement("ok", f"context_tokens: {whole}, its server takes {server.tokens}")
    if server.at_most:
        text = f"the model was made for {server.tokens} tokens, config.yaml says context_tokens: {whole}"
        return Judgement("warn", f"{text} -> see what its server takes, and set it to that")
    text = f"its server takes {server.tokens} tokens, config.yaml says context_tokens: {whole}"
    return Judgement("fail", f"{text} -> {_window_remedy(name, server.tokens)}")


async def server_window(settings: Backend) -> ServerWindow | None:
    """Ask a backend's server for its window; None if it is not private, or does not tell."""
    if not await is_private(settings):
        return None
    server, model = _Server(urlsplit(settings.base_url), settings), settings.model
    bounds: list[int | None] = []
    props = await server.asked("/props")
    if exact := _token_count(value_at(props, "default_generation_settings", "n_ctx")):
        return ServerWindow(exact)
    listed = _model_entry(await server.asked("/models", below="api"), model)
    if exact := _token_count(listed.get("max_model_len")) or _token_count(
        value_at(listed, "meta", "n_ctx")
    ):
        return ServerWindow(exact)
    bounds.append(_token_count(value_at(listed, "meta", "n_ctx_train")))
    studio = _model_entry(await server.asked("/api/v0/models"), model)
    if exact := _token_count(studio.get("loaded_context_length")):
        return ServerWindow(exact)
    bounds.append(_token_count(studio.get("max_context_length")))
    running = _model_entry(await server.asked("/api/ps"), model)
    shown = await server.asked("/api/show", {"model": model})
    if exact := _token_count(running.get("context_length")) or _num_ctx(shown):
        return ServerWindow(exact)
    bounds += [_token_count(value) for value in _lengths(shown)]
    known = [bound for bound in bounds if bound]
    return ServerWindow(min(known), at_most=True) if known else None


async def has_one_slot(settings: Backend) -> bool:
    """Return True if a backend's server caches the prompt of only one conversation.

    Only llama.cpp reports it; for other servers the answer is False.
    """
    if not await is_private(settings):
        return False
    props = await _Server(urlsplit(settings.base_url), settings).asked("/props")
    return bool(value_at(props, "total_slots") == 1)


class _Server:
    """Answers requests about itself; any failure counts as no answer."""

    def __init__(self, address: SplitResult, settings: Backend) -> None:
        self._host = address.hostname or ""
        self._netloc = address.netloc
        self._secure = address.scheme == "https"
        self._port = address.port or (443 if self._secure else 80)
        self._api = address.path.rstrip("/")
        self._key = settings.api_key.reveal() if settings.api_key else ""

    async def asked(
        self,
        path: str,
        body: Mapping[str, str] | None = None,
        *,
        below: Literal["root", "api"] = "root",
    ) -> Any:
        """Return the JSON at a path below the server's root or its API; None if there is none."""
        start = self._api if below == "api" else re.sub(r"/v[0-9]+\Z", "", self._api)
        try:
            async with asyncio.timeout(SECONDS):
                answer = await self._fetched(start + path, body)
            head, _, content = answer.partition(b"\r\n\r\n")
            return json.loads(content) if b" 200" in head.partition(b"\r\n")[0] else None
        except (OSError, TimeoutError, ValueError, RecursionError, asyncio.LimitOverrunError):
            return None

    async def _fetched(self, path: str, body: Mapping[str, str] | None) -> bytes:
        content = b"" if body is None else json.dumps(body).encode()
        # HTTP/1.0, so that the answer comes in one piece and ends with the connection.
        lines = [f"{'GET' if body is None else 'POST'} {path} HTTP/1.0", f"Host: {self._netloc}"]
        lines += ["Accept: application/json", "Connection: close"]
        lines += [f"Authorization: Bearer {self._key}"] if self._key else []
        lines += (
            [f"Content-Type: application/json\r\nContent-Length: {len(content)}"] if content else []
        )
        reader, writer = await asyncio.open_connection(
            self._host, self._port, ssl=self._secure or None
        )
        try:
            writer.write("\r\n".join([*lines, "", ""]).encode("ascii") + content)
            await writer.drain()
            answer = bytearray()
            while len(answer) < MOST_BYTES and (chunk := await reader.read(65536)):
                answer += chunk
            return bytes(answer)
        finally:
            writer.close()


async def is_private(settings: Backend) -> bool:
    """Return True if a server's name resolves only to this machine or network; never behind a proxy."""
    if settings.proxy:
        return False
    loop = asyncio.get_running_loop()
    try:
        address = urlsplit(settings.base_url)
        async with asyncio.timeout(SECONDS):
            addresses = await loop.getaddrinfo(address.hostname, address.port or 80)
    except (OSError, TimeoutError, ValueError):
        return False
    return bool(addresses) and all(_lies_within(str(each[4][0]), PRIVATE) for each in addresses)


def _lies_within(text: str, networks: Iterable[IPv4Network | IPv6Network]) -> bool:
    address = ip_address(text.partition("%")[0])
    if isinstance(address, IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    return any(address in network for network in networks)


def _model_entry(document: Any, model: str) -> Mapping[str, Any]:
    """Return a model's entry in a list, or the only entry; Ollama adds a tag to names."""
    listed = value_at(document, "data") or value_at(document, "models")
    entries = (
        [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    )
    names = {model, f"{model}:latest"}
    for entry in entries:
        if names & {str(entry.get(key)) for key in ("id", "name", "model")}:
            return entry
    return entries[0] if len(entries) == 1 else {}


def _num_ctx(shown: Any) -> int | None:
    parameters = value_at(shown, "parameters")
    match = NUM_CTX.search(parameters) if isinstance(parameters, str) else None
    return _token_count(match[1]) if match else None


def _lengths(shown: Any) -> list[Any]:
    """Return the context lengths in Ollama's model info, whose keys begin with the architecture."""
    known = mapping(value_at(shown, "model_info"))
    return [value for key, value in known.items() if str(key).endswith(".context_length")]


def _token_count(value: Any) -> int | None:
    """Return a plausible number of tokens, or None."""
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value[:12])
    return value if type(value) is int and FEWEST <= value <= MOST else None
