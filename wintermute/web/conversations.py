"""Conversations that are folders of the wiki: a second list, and three operations (W-072, V-020)."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Annotated
from zoneinfo import ZoneInfo

from fastapi import APIRouter, Body, Depends
from fastapi.responses import HTMLResponse, StreamingResponse
from pydantic import BaseModel

from wintermute.conversation.folder_chat import ANSWERED
from wintermute.conversation.state import ConversationWatch
from wintermute.errors import StoreBusy, StoreMissing, WintermuteError
from wintermute.files import entered, run_uncancelled
from wintermute.loom.reader import LoomReader
from wintermute.messages import FOLDER, Json
from wintermute.text import display_name, one_line
from wintermute.web.messages import NEWEST_MOST, DraftDesk, Renderings, written
from wintermute.web.sessions import Visitor
from wintermute.web.stream import BEATS, WatchedDraft, event
from wintermute.web.views import Refusal, Viewing, Views, Visiting, failure_words, of_application
from wintermute.wiki.conversations import (
    BUSY,
    ConversationFolder,
    MessageFile,
    create,
    delist,
    is_encodable,
    is_there,
    listed,
)
from wintermute.wiki.folder import missing
from wintermute.wiki.links import CONVERSATIONS, RAW, is_name, legible

LISTED_MOST = 30
PATIENCE = 5.0
"""Seconds to wait for the lock of a conversation before that is reported."""
GONE = "conversation not found", "Open one from the list, or make a new one."
KEPT = "This conversation is kept word for word: make a new one to go on"

router = APIRouter()


class FolderRow(BaseModel):
    """A conversation in the list. `missing`: its folder is gone."""

    id: str
    title: str
    missing: bool


class FolderList(BaseModel):
    """Conversations, the newest first, and the key of the next ones."""

    conversations: list[FolderRow]
    next: str | None = None


@dataclass(eq=False, slots=True)
class AskedAnswer:
    """A requested answer. `outcome`: the event that ends its streams, once there is one."""

    path: str
    desk: DraftDesk
    outcome: str = ""


class FolderViews:
    """The state that the routes of these conversations share while the server runs.

    One answer at a time is made in each folder, even if the client that asked has left.
    """

    def __init__(self, views: Views) -> None:
        self.asked: asyncio.Queue[AskedAnswer] = asyncio.Queue()
        self._views = views
        self._parts = views.parts
        self._wiki = views.parts.stores.wiki
        self._loom = LoomReader(views.parts.stores.database)
        self._renderings = Renderings()
        self._making: dict[str, AskedAnswer] = {}

    async def newest(self, after: str = "") -> FolderList:
        """List conversations, the newest first; `after`: the id of the last one before.

        Raises: StoreMissing; StoreUnusable for a list that is damaged.
        """

        def read() -> FolderList:
            if not self._wiki.exists:
                raise StoreMissing(missing(self._wiki.root))
            paths = [path for path in reversed(listed(self._wiki.files)) if _is_below(path)]
            ids = [_id(path) for path in paths]
            begin = ids.index(after) + 1 if after in ids else 0
            rows = [self._row(path) for path in paths[begin : begin + LISTED_MOST]]
            more = len(paths) > begin + LISTED_MOST
            return FolderList(conversations=rows, next=rows[-1].id if more else None)

        return await asyncio.to_thread(read)

    async def newest_or_none(self) -> FolderList:
        """List them for a page that is useful without them."""
        try:
            return await self.newest()
        except WintermuteError:  # the page of all conversations reports it
            return FolderList(conversations=[])

    def _row(self, path: str) -> FolderRow:
        name, words, is_gone = legible(_id(path)), "", not is_there(self._wiki.files, path)
        if not is_gone:
            with suppress(WintermuteError):  # its page reports it
                words = self.folder(path).opening()
        title = display_name(one_line(words), 60) or name
        return FolderRow(id=_id(path), title=title, missing=is_gone)

    async def path_of(self, conversation_id: str, *, gone: bool = False) -> str:
        """Find the path of a listed conversation, `gone`: also without folder. Raises: Refusal."""

        def read() -> str:
            for path in filter(_is_below, listed(self._wiki.files)):
                if _id(path) == conversation_id and (gone or is_there(self._wiki.files, path)):
                    return path
            raise Refusal(404, *GONE)

        return await asyncio.to_thread(read)

    def folder(self, path: str) -> ConversationFolder:
        """Return the folder of a path."""
        return ConversationFolder(self._wiki.root, path)

    @asynccontextmanager
    async def held(self, path: str) -> AsyncIterator[ConversationFolder]:
        """Hold a folder for a block; its lock is waited for in a thread. Raises: StoreBusy."""
        folder = self.folder(path)
        async with entered(folder.held(PATIENCE)):
            yield folder

    async def htmls(self, path: str, messages: Sequence[MessageFile]) -> list[str]:
        """Render messages, each answer with badges for the pages that it recalled."""
        texts = {each.text for each in messages if each.role == "assistant"}
        htmls = await self._renderings.html(texts)
        room = f"{FOLDER}{self.folder(path).path.resolve()}"
        casts = await self._loom.casts_of(room, texts)
        recalled = await self._loom.recalled([*casts.values()])

        def shown(each: MessageFile) -> str:
            badges = recalled.get(casts.get(each.text, ""), ())
            values = {"message": each, "html": htmls.get(each.text, ""), "badges": badges}
            return self._views.fragment("folder_message.html", **values)

        return [*map(shown, messages)]

    def is_making(self, path: str) -> bool:
        """Return True if an answer is being made here."""
        return path in self._making

    def ask(self, path: str) -> AskedAnswer:
        """Ask for an answer, unless one is being made. Raises: WintermuteError."""
        if path.startswith(f"{RAW}/"):
            raise WintermuteError(KEPT)
        if path not in self._making:
            self._making[path] = AskedAnswer(path, DraftDesk(self._parts.clock))
            self._parts.speaker.begin_answer(path, path)
            self.asked.put_nowait(self._making[path])
        return self._making[path]

    async def make(self, asked: AskedAnswer) -> None:
        """Let the model answer the last message, and add the answer to the folder."""
        path, watch = asked.path, ConversationWatch(self._parts.speaker, asked.path)
        try:
            async with self.held(path) as folder:
                text = await self._parts.answer_folder(folder, watch)
                name = await run_uncancelled(partial(folder.append, "assistant", text))
            [html] = await self.htmls(path, [MessageFile(name, "assistant", text)])
            self._end(asked, event("message", {"id": name, "html": html}))
        except WintermuteError as problem:
            self.fail(asked, *failure_words(self._parts.redact(str(problem))))

    def fail(self, asked: AskedAnswer, error: str, what_to_do: str) -> None:
        """End without an answer: the message stays, and can be answered again."""
        self._end(asked, event("error", {"error": error, "what_to_do": what_to_do}))

    def _end(self, asked: AskedAnswer, outcome: str) -> None:
        asked.outcome = outcome
        del self._making[asked.path]
        self._parts.speaker.end_answer(asked.path, asked.path)

    async def events(self, asked: AskedAnswer, visitor: Visitor) -> AsyncIterator[str]:
        """Yield the states of an answer, then its outcome."""
        parts, path, seen, spoke_at = self._parts, asked.path, 0, self._parts.clock.monotonic()
        draft = WatchedDraft(parts, visitor, asked.desk, path)
        while not visitor.left.is_set() and await self._views.sessions.lives(visitor):
            if asked.outcome:
                yield asked.outcome
                return
            found = await draft.news(parts.speaker.answer_in_progress(path))
            if found or parts.clock.monotonic() - spoke_at > BEATS:
                yield "".join(found) or ": still here\n\n"
                spoke_at = parts.clock.monotonic()
            seen = await draft.woken(seen)


Folders = Annotated[FolderViews, of_application("folders")]


async def folder_path(conversation_id: str, folders: Folders) -> str:
    """Return the path of the conversation in an address; clients never send paths."""
    return await folders.path_of(conversation_id)


FolderPath = Annotated[str, Depends(folder_path)]


@router.get("/conversations", include_in_schema=False)
async def all_folders(views: Viewing, folders: Folders, after: str = "") -> HTMLResponse:
    """Show the list of the wiki's conversations."""
    return _page(views, "Conversations of the wiki", await folders.newest(after))


@router.get("/conversations/{conversation_id}", include_in_schema=False)
async def folder_page(
    conversation_id: str, path: FolderPath, views: Viewing, folders: Folders, before: str = ""
) -> HTMLResponse:
    """Show a conversation, with `before` its earlier messages."""
    page = await asyncio.to_thread(folders.folder(path).page, NEWEST_MOST, before)
    shown: Json = {"id": conversation_id, "messages": page.messages, "earlier": page.earlier}
    shown |= {"htmls": await folders.htmls(path, page.messages), "before": before}
    shown |= {"is_making": folders.is_making(path), "is_kept": path.startswith(f"{RAW}/")}
    return _page(views, conversation_id, await folders.newest(), **shown)


def _page(views: Views, title: str, rows: FolderList, **shown: object) -> HTMLResponse:
    known: dict[str, object] = {"title": title, "place": "chat", "folders": rows, "id": ""}
    return views.page("conversation.html", 200, **known | shown)


@router.get("/api/conversations")
async def list_folders(folders: Folders, after: str = "") -> FolderList:
    """List the wiki's conversations, newest first; `after`: the key that the last list gave."""
    return await folders.newest(after)


@router.post("/api/conversations", status_code=201)
async def make_folder(views: Viewing) -> dict[str, str]:
    """Make a new conversation; its `id`."""
    parts, files = views.parts, views.parts.stores.wiki.files
    now = parts.clock.now().astimezone(ZoneInfo(parts.config.timezone))

    def make() -> str:
        with files.writing():
            return create(files, now)

    return {"id": _id(await run_uncancelled(make))}


@router.get("/api/conversations/{conversation_id}")
async def list_folder_messages(path: FolderPath, folders: Folders, before: str = "") -> Json:
    """Return the newest `messages` of a conversation, or those before the key of a list.

    Each has the `id` of its file, a `role` and a `text`. `earlier`: the key of those before them.
    """
    page = await asyncio.to_thread(folders.folder(path).page, NEWEST_MOST, before)
    rows = [{"id": each.name, "role": each.role, "text": each.text} for each in page.messages]
    return {"messages": rows, "earlier": page.earlier}


@router.delete("/api/conversations/{conversation_id}", status_code=204)
async def unlist_folder(conversation_id: str, views: Viewing, folders: Folders) -> None:
    """Remove a conversation from the list, also one without folder; its files stay."""
    files, path = views.parts.stores.wiki.files, await folders.path_of(conversation_id, gone=True)

    def unlist() -> None:
        with files.writing():
            delist(files, path)

    await run_uncancelled(unlist)


@router.post("/api/conversations/{conversation_id}/message", status_code=201)
async def add_message(
    path: FolderPath, folders: Folders, message: Annotated[str, Body(embed=True)] = ""
) -> dict[str, str]:
    """Add a person's message, which nothing answers yet; its `id`, and its `html` on a page."""
    text = written(message)
    if folders.is_making(path):
        raise StoreBusy(BUSY)
    async with folders.held(path) as folder:
        name = await run_uncancelled(partial(folder.append, "user", text))
    [html] = await folders.htmls(path, [MessageFile(name, "user", text)])
    return {"id": name, "html": html}


@router.post(
    "/api/conversations/{conversation_id}/generate",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}}},
)
async def generate(path: FolderPath, visitor: Visiting, folders: Folders) -> StreamingResponse:
    """Let the model answer the last message, and stream that; all who ask meanwhile get the same answer."""
    last = (await asyncio.to_thread(folders.folder(path).page, 1)).messages
    if not folders.is_making(path) and (not last or last[0].role == "assistant"):
        raise WintermuteError(ANSWERED if last else "There is no message: add one first")
    events = folders.events(folders.ask(path), visitor)
    return StreamingResponse(events, media_type="text/event-stream")


def _id(path: str) -> str:
    """Name a conversation in addresses: nearly all are folders of one folder."""
    return path.removeprefix(f"{CONVERSATIONS}/").replace("/", ":")


def _is_below(path: str) -> bool:
    """Return True if a listed path is inside the store and can be that of a folder."""
    return is_encodable(path) and all(part and is_name(part) for part in path.split("/"))
