"""Reading what a server says an answer took, and how much of that came from its cache. Pure.

Everybody counts what was read from a cache among the tokens read, except Anthropic's own words.
"""

from typing import Any

from wintermute.messages import Json, Usage, mapping

MOST_TOKENS = 10**9
"""A count beyond this is none."""
CACHED = (
    ("prompt_tokens_details", "cached_tokens"),  # OpenAI, llama.cpp, vLLM, Ollama, Gemini and more
    ("prompt_token_details", "cached_tokens"),  # Mistral
    ("input_tokens_details", "cached_tokens"),
    ("prompt_cache_hit_tokens",),  # DeepSeek
    ("num_cached_tokens",),  # Mistral
    ("cached_tokens",),  # Moonshot, Together
)
"""Where servers say how much of the prompt they had in their cache."""
READ, WRITTEN = "cache_read_input_tokens", "cache_creation_input_tokens"


def reported(document: Json) -> Usage | None:
    """What one part of an answer tells; None: nothing, or nothing that can be true."""
    usage = mapping(document.get("usage")) or _of_choice(document.get("choices"))
    tokens_in = count(usage.get("prompt_tokens"))
    tokens_out = count(usage.get("completion_tokens"))
    if not (tokens_in or tokens_out):
        tokens_in, tokens_out = (count(usage.get(f"{part}_tokens")) for part in ("input", "output"))
    cached = max(count(at(usage, *path)) for path in CACHED)
    read, written = count(usage.get(READ)), count(usage.get(WRITTEN))
    if read + written > tokens_in or ("prompt_tokens" not in usage and not cached):
        tokens_in += read + written  # it was told without them
    found = Usage(tokens_in, tokens_out, max(cached, read))
    return _checked(_with_timings(found, mapping(document.get("timings"))))


def _with_timings(usage: Usage, timings: Json) -> Usage:
    """What llama.cpp says beside the usage, for what that leaves open."""
    kept, new = count(timings.get("cache_n")), count(timings.get("prompt_n"))
    tokens_in = usage.tokens_in or kept + new
    if (
        "cache_n" not in timings and 0 < new < tokens_in
    ):  # before September 2025 it told only what was new
        kept = tokens_in - new
    tokens_out = usage.tokens_out or count(timings.get("predicted_n"))
    return Usage(tokens_in, tokens_out, usage.tokens_cached or kept)


def _checked(usage: Usage) -> Usage | None:
    if usage == Usage():
        return None
    return Usage(usage.tokens_in, usage.tokens_out, min(usage.tokens_cached, usage.tokens_in))


def _of_choice(choices: Any) -> Json:
    """Moonshot tells it within the last choice of a stream."""
    first = choices[0] if isinstance(choices, list) and choices else None
    return mapping(at(first, "usage"))


def at(document: Any, *names: str) -> Any:
    """What stands in a document below these names; None: nothing does."""
    for name in names:
        document = document.get(name) if isinstance(document, dict) else None
    return document


def count(value: Any) -> int:
    """A number of tokens that can be one; else none."""
    return value if type(value) is int and 0 < value <= MOST_TOKENS else 0
