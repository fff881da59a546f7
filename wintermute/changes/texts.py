"""Items that are text files: skills, core memories, and pages of the wiki.

The record of a change holds the old text and is durable before the file is replaced, so a crash loses no text. A
record without effect is detected by comparing texts, and ignored (`changes.undo.effective_steps`).
"""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import (
    AbstractContextManager,
    ExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from functools import partial

from wintermute.changes.change_sets import Change
from wintermute.changes.placing import PutInPlace
from wintermute.files import TextFile, entered, run_uncancelled
from wintermute.messages import Json


class TextItems:
    """Text files as items that can be undone: see `FileItems`. Raises: WintermuteError."""

    def __init__(
        self,
        text: Callable[[str], str | None],
        prepared: Callable[[Sequence[Change]], AbstractContextManager[Callable[[], None]]],
        settled: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """`prepared`: writes all new texts, and returns what puts them in place. `settled`: see `mend`."""
        self._text = text
        self._prepared = prepared
        self._settled = settled

    async def state(self, item: str) -> Json | None:
        """Return the state of an item for a change set: its whole text."""
        return state_of(await run_uncancelled(partial(self._text, item)))

    async def mend(self) -> None:
        """Finish what a crash left half in place."""
        async with entered(self._settled()):
            pass

    @asynccontextmanager
    async def prepared(self, changes: Sequence[Change]) -> AsyncIterator[PutInPlace]:
        """Do everything that can fail on a full disk, before the change is recorded."""
        async with entered(self._prepared(changes)) as place:
            yield partial(run_uncancelled, place)


@contextmanager
def files_prepared(
    file_of: Callable[[str], TextFile], changes: Sequence[Change]
) -> Iterator[Callable[[], None]]:
    """Prepare items that are one file each, for `TextItems`."""
    with ExitStack() as stack:
        places = []
        for change in changes:
            file = file_of(change.item)
            text, seen = file.read_unchecked()
            saved = file.refusal(f"{file.name} was saved meanwhile: try again")
            if state_of(text) != change.before:
                raise saved
            block = file.prepared(text_in(change.after), seen)
            places.append((stack.enter_context(block), saved))

        def place_all() -> None:
            for place, saved in places:
                if not place():
                    raise saved

        yield place_all


def state_of(text: str | None) -> Json | None:
    """Return the state of a text for a change set."""
    return None if text is None else {"text": text}


def text_in(state: Json | None) -> str | None:
    """Return the text of a state."""
    return None if state is None else state["text"]
