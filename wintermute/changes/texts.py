"""Items that are text files: skills, core memories, and pages of the wiki.

The record of a change holds the text from before and is durable first, then the file is replaced:
whenever we are killed, no text is lost. A record without its effect is found out by comparing
texts, and passed over (`changes.undo.standing`).
"""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import Protocol

from wintermute.changes.change_sets import Change
from wintermute.changes.undo import PutInPlace
from wintermute.errors import WintermuteError
from wintermute.files import entered, to_its_end
from wintermute.messages import Json


class TextFiles(Protocol):
    """The files of one kind of item. Each call may wait for the disk. Raises: WintermuteError."""

    def text(self, item: str) -> str | None:
        """Give the whole text of an item; None: there is none."""
        ...

    def prepared(self, changes: Sequence[Change]) -> AbstractContextManager[Callable[[], None]]:
        """Write all new texts; what is given puts them in place, unless somebody saved meanwhile."""
        ...


class TextItems:
    """Text files as items that can be undone: see `FileItems`."""

    def __init__(self, files: TextFiles) -> None:
        self._files = files

    async def state(self, item: str) -> Json | None:
        """Give what a change set holds of an item: its whole text."""
        return state_of(await to_its_end(partial(self._files.text, item)))

    @asynccontextmanager
    async def prepared(self, changes: Sequence[Change]) -> AsyncIterator[PutInPlace]:
        """Do all that may fail on a full disk, before the change is recorded."""
        async with entered(self._files.prepared(changes)) as place:
            yield partial(to_its_end, place)


class ItemFile(Protocol):
    """A file that is one item. `name`: what people call it. Raises: WintermuteError."""

    @property
    def name(self) -> str: ...

    def found(self) -> tuple[str | None, bytes | None]:
        """Give its text and its bytes; None: there is no such file."""
        ...

    def prepared(
        self, text: str | None, seen: bytes | None
    ) -> AbstractContextManager[Callable[[], bool]]:
        """Write a new text; what is given puts it in the place of what was `seen`, or says no."""
        ...


class SingleFiles:
    """Items that are one file each, by what gives the file of an item."""

    def __init__(
        self, file_of: Callable[[str], ItemFile], refusal: Callable[[str], WintermuteError]
    ) -> None:
        """`refusal`: the error for what somebody saved meanwhile."""
        self._file_of = file_of
        self._refusal = refusal

    def text(self, item: str) -> str | None:
        """As `TextFiles`."""
        return self._file_of(item).found()[0]

    @contextmanager
    def prepared(self, changes: Sequence[Change]) -> Iterator[Callable[[], None]]:
        """As `TextFiles`."""
        with ExitStack() as stack:
            places = []
            for change in changes:
                file = self._file_of(change.item)
                text, seen = file.found()
                saved = self._refusal(f"{file.name} was saved meanwhile: try again")
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
    """Give what a change set holds of a text."""
    return None if text is None else {"text": text}


def text_in(state: Json | None) -> str | None:
    """Give the text of such a state."""
    return None if state is None else state["text"]
