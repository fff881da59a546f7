"""The embedder of the configuration."""

from collections.abc import Callable
from typing import assert_never

from wintermute.clock import Clock
from wintermute.config.schema import VECTOR_BACKENDS, Memory
from wintermute.llm.embedded import EmbeddedEmbedder
from wintermute.llm.models import Models
from wintermute.llm.vector import Embedder


def open_embedder(
    memory: Memory, models: Models, clock: Clock, starts: Callable[[], None] | None = None
) -> Embedder | None:
    """Return the embedder; None if memory does not use one. The caller closes it.

    It starts nothing before the first request. Raises: ConfigurationError for an endpoint without a
    backend (M-021).
    """
    settings = memory.embeddings
    if memory.backend not in VECTOR_BACKENDS:
        return None
    match settings.provider:
        case "embedded":
            return EmbeddedEmbedder(clock, starts=starts)
        case "endpoint":
            return models.embedder(settings)
        case "none":
            return None
    assert_never(settings.provider)
