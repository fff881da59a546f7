"""Parses the token usage that servers report, and how much of it came from their cache. Pure.

All servers include cached tokens in the prompt's count, except in Anthropic's own fields.
"""

from typing import Any

from wintermute.messages import Json, Usage, mapping

MOST_TOKENS = 10**9
"""Counts above this are ignored."""
CACHED = (
    ("prompt_tokens_details", "cached_tokens"),  # OpenAI, llama.cpp, vLLM, Ollama, Gemini and more
    ("prompt_token_details", "cached_tokens"),  # Mistral
    ("input_tokens_details", "cached_tokens"),
    ("prompt_cache_hit_tokens",),  # DeepSeek
    ("num_cached_tokens",),  # Mistral
    ("cached_tokens",),  # Moonshot, Together
)
"""Paths of the number of cached prompt tokens."""
READ, WRITTEN = "cache_read_input_tokens", "cache_creation_input_tokens"


def reported(document: Json) -> Usage | None:
    """Return the usage in one part of an answer; None if it has none, or it cannot be true."""
    usage = mapping(document.get("usage")) or _of_choice(document.get("choices"))
    tokens_in = count(usage.get("prompt_tokens"))
    tokens_out = count(usage.get("completion_tokens"))
    if not (tokens_in or tokens_out):
        tokens_in, tokens_out = (count(usage.get(f"{part}_tokens")) for part in ("input", "output"))
    cached = max(count(value_at(usage, *path)) for path in CACHED)
    read, written = count(usage.get(READ)), count(usage.get(WRITTEN))
    if read + written > tokens_in or ("prompt_tokens" not in usage and not cached):
        tokens_in += read + written  # the prompt's count is without them
    counts = Usage(tokens_in, tokens_out, max(cached, read))
    return _checked(_with_timings(counts, mapping(document.get("timings"))))


def _with_timings(usage: Usage, timings: Json) -> Usage:
    """Fill gaps of the usage from llama.cpp's timings."""
    cached, new = count(timings.get("cache_n")), count(timings.get("prompt_n"))
    tokens_in = usage.tokens_in or cached + new
    # Before September 2025 it reported only new tokens.
    if "cache_n" not in timings and 0 < new < tokens_in:
        cached = tokens_in - new
    tokens_out = usage.tokens_out or count(timings.get("predicted_n"))
    return Usage(tokens_in, tokens_out, usage.tokens_cached or cached)


def _checked(usage: Usage) -> Usage | None:
    if usage == Usage():
        return None
    return Usage(usage.tokens_in, usage.tokens_out, min(usage.tokens_cached, usage.tokens_in))


def _of_choice(choices: Any) -> Json:
    """Return the usage in the last choice of a stream, where Moonshot has it."""
    first = choices[0] if isinstance(choices, list) and choices else None
    return mapping(value_at(first, "usage"))


def value_at(document: Any, *names: str) -> Any:
    """Return the value at a path of names in a document; None if there is none."""
    for name in names:
        document = document.get(name) if isinstance(document, dict) else None
    return document


def count(value: Any) -> int:
    """Return a plausible number of tokens, or else 0."""
    return value if type(value) is int and 0 < value <= MOST_TOKENS else 0
