"""Which embedder the configuration asks for."""

from collections.abc import Callable
from typing import assert_never

from wintermute.clock import Clock
from wintermute.config.schema import BY_MEANING, Memory
from wintermute.llm.embedded import EmbeddedEmbedder
from wintermute.llm.models import Models
from wintermute.llm.vector import Embedder


def open_embedder(
    memory: Memory, models: Models, clock: Clock, starts: Callable[[], None] | None = None
) -> Embedder | None:
    """It starts nothing before it is asked; None: meanings are not wanted. To be closed.

    Raises: ConfigurationError for an endpoint without a backend (M-021).
    """
    settings = memory.embeddings
    if memory.backend not in BY_MEANING:
        return None
    match settings.provider:
        case "embedded":
            return EmbeddedEmbedder(clock, starts=starts)
        case "endpoint":
            return models.embedder(settings)
        case "none":
            return None
    assert_never(settings.provider)
