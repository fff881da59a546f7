"""The job that makes missing vectors in the background."""

import logging

from wintermute.clock import Clock
from wintermute.conversation.dispatcher import AGAIN
from wintermute.errors import MemoryUnavailable
from wintermute.jobs import Job
from wintermute.memory.embedding_search import PART
from wintermute.stores import Stores
from wintermute.work.jobs import JobDone, JobPutOff

log = logging.getLogger(__name__)


async def embed(stores: Stores, clock: Clock, _: Job) -> JobDone | JobPutOff:
    """Refresh memory files, and make missing vectors; embedder or index may be away for a while (M-023)."""
    await stores.memories.refresh()
    if stores.meaning is not None:
        try:
            await stores.meaning.make()
        except MemoryUnavailable as problem:
            log.warning("vectors not made reason=%s", problem)
            await stores.health.note(PART, "warn", f"embeddings are missing: {problem}")
            return JobPutOff(clock.now() + AGAIN, "the embedder is unavailable")
    return JobDone()
