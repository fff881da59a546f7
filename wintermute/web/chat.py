"""The chat page and its API: conversations, messages, and the stream of their states."""

import hashlib
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.responses import (
    HTMLResponse,
    JSONResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from pydantic import BaseModel, Field

from wintermute.mailbox.outbox import TERMINAL, WEB
from wintermute.mailbox.reading import NEWEST, HeldConversation, MailboxReader, MessageKey
from wintermute.messages import Incoming
from wintermute.text import clean, is_blank
from wintermute.web.conversations import FolderViews
from wintermute.web.messages import MESSAGE_MOST, MessageViews, RenderedPage, first_words
from wintermute.web.stream import Drafts, Stream
from wintermute.web.views import Viewing, Views, Visiting, problems, told

LISTED_MOST = 30
"""Conversations of a list."""
ID = r"^[A-Za-z0-9_-]{1,64}$"
GONE = (
    "There is no such conversation here.",
    "Open one from the list, or begin a new one.",
)

router = APIRouter()
ChatId = Annotated[str, Path(pattern=ID)]


class ChatRow(BaseModel):
    """A conversation in the list. `is_open`: it can be gone on with here."""

    id: str
    title: str
    last: datetime
    is_open: bool
    matrix: str | None


class ChatList(BaseModel):
    """Conversations, newest first, and the key of the next ones."""

    chats: list[ChatRow]
    next: str | None


class MessageRow(BaseModel):
    """A message as HTML. `answers`: the message it answers."""

    id: str
    html: str
    answers: str | None


class MessageList(BaseModel):
    """Messages, oldest first, and the key of those before them."""

    messages: list[MessageRow]
    earlier: str | None


class NewMessage(BaseModel):
    """A message as a page sends it: the same key again is the same message."""

    key: str = Field(pattern=ID)
    text: str


class Taken(BaseModel):
    """The id under which a message is known."""

    id: str


class ChatViews:
    """Everything the routes of the chat share while the server runs."""

    def __init__(self, views: Views, folders: FolderViews) -> None:
        self.folders = folders
        self.messages = MessageViews(views)
        self.drafts = Drafts(views.parts.clock)

    @property
    def reader(self) -> MailboxReader:
        return self.messages.reader

    async def find(self, chat_id: str) -> HeldConversation | None:
        """Find a conversation by the end of its address."""
        return await self.reader.find(chat_id, f"{WEB}{chat_id}")


def chat_views(request: Request) -> ChatViews:
    """Give the views of the application that a request reached."""
    found: ChatViews = request.app.state.chats
    return found


Chatting = Annotated[ChatViews, Depends(chat_views)]


@router.get("/", include_in_schema=False)
async def newest_chat(views: Viewing, chats: Chatting) -> Response:
    """Show the conversation of the web that was used last, or an empty one."""
    if views.parts.rooms is None:
        return RedirectResponse("/conversations", 303)
    newest = await chats.reader.conversations(1, WEB)
    return await _page(views, chats, newest[0] if newest else None)


@router.get("/chat", include_in_schema=False)
async def new_chat(views: Viewing, chats: Chatting) -> HTMLResponse:
    """Show an empty conversation: it comes into being with its first message."""
    return await _page(views, chats, None)


@router.get("/chat/{chat_id}", include_in_schema=False)
async def chat_page(
    request: Request, chat_id: ChatId, views: Viewing, chats: Chatting, before: str = ""
) -> Response:
    """Show a conversation, with `before` its earlier messages."""
    held, key = await chats.find(chat_id), MessageKey.of(before) if before else NEWEST
    is_new = held is None and not chat_id.startswith("conv_")
    if key is None or (held is None and not is_new):
        return views.problem(request.scope, 404, *GONE)
    return await _page(views, chats, held, chat_id, key)


async def _page(
    views: Views,
    chats: ChatViews,
    held: HeldConversation | None,
    chat_id: str = "",
    before: MessageKey = NEWEST,
) -> HTMLResponse:
    page = await chats.messages.page(held.id, before) if held else RenderedPage((), None)
    row = _row(held) if held else None
    return views.page(
        "chat.html",
        title=row.title if row else "New conversation",
        place="chat",
        chat_id=row.id if row else chat_id or views.parts.new_id("chat"),
        row=row,
        is_open=row is None or row.is_open,
        is_newest=before == NEWEST,
        page=page,
        list=await _list(chats, ("~", "")),
        folders=await chats.folders.newest_or_none(),
    )


@router.get("/api/chats", responses=problems(400))
async def list_chats(chats: Chatting, after: str = "") -> ChatList:
    """List conversations, newest first; `after`: the key that the last list gave."""
    last, _, conversation_id = after.rpartition(" ")
    return await _list(chats, (last, conversation_id) if after else ("~", ""))


async def _list(chats: ChatViews, before: tuple[str, str]) -> ChatList:
    found = await chats.reader.conversations(LISTED_MOST + 1, before=before)
    shown = found[:LISTED_MOST]
    more = len(found) > LISTED_MOST
    key = f"{shown[-1].last.isoformat(timespec='microseconds')} {shown[-1].id}" if more else None
    return ChatList(chats=[_row(each) for each in shown], next=key)


def _row(held: HeldConversation) -> ChatRow:
    room, words = held.room_id, first_words(held.words)
    if room.startswith(WEB):
        title = words or "Commands only"
        return ChatRow(
            id=room.removeprefix(WEB), title=title, last=held.last, is_open=True, matrix=None
        )
    where = "Terminal" if room == TERMINAL else "Matrix"
    link = None if room == TERMINAL else f"https://matrix.to/#/{room}"
    title = f"{where}: {words}" if words else where
    return ChatRow(id=held.id, title=title, last=held.last, is_open=False, matrix=link)


@router.get(
    "/api/chats/{chat_id}/messages", response_model=MessageList, responses=problems(400, 404)
)
async def list_messages(
    chat_id: ChatId, chats: Chatting, before: str = ""
) -> MessageList | JSONResponse:
    """Give the newest messages of a conversation, or those before the key of a list."""
    held, key = await chats.find(chat_id), MessageKey.of(before) if before else NEWEST
    if key is None:
        return told(400, "The key of the earlier messages is none of ours.", "Reload the page.")
    if held is None:
        return told(404, *GONE)
    page = await chats.messages.page(held.id, key)
    rows = [MessageRow(id=m.id, html=m.html, answers=m.answers) for m in page.messages]
    return MessageList(messages=rows, earlier=str(page.earlier) if page.earlier else None)


@router.post(
    "/api/chats/{chat_id}/messages",
    status_code=202,
    response_model=Taken,
    responses=problems(400, 403, 404, 409, 413),
)
async def take_message(
    chat_id: ChatId, new: NewMessage, views: Viewing, chats: Chatting
) -> Taken | JSONResponse:
    """Store a message or a command of the owner, once for each key, and wake its room."""
    parts, text = views.parts, clean(new.text).strip()
    if len(new.text.encode(errors="replace")) > MESSAGE_MOST:
        return told(413, "The message is longer than 64 kB.", "Send it in parts.")
    if is_blank(text):
        return told(400, "message required", "Write a message first.")
    held = await chats.find(chat_id)
    if held is not None and not held.room_id.startswith(WEB):
        return told(403, "This conversation can only be read here.", "Answer where it is held.")
    if parts.rooms is None or (held is None and chat_id.startswith("conv_")):
        return told(404, *GONE)
    owner, room = parts.stores.owner, f"{WEB}{chat_id}"
    event_id = f"web_{hashlib.sha256(f'{room} {new.key}'.encode()).hexdigest()[:32]}"
    incoming = Incoming(
        event_id=event_id,
        room_id=room,
        sender=owner.user_id,
        sender_name="",
        origin=owner.origin_of(owner.user_id),
        kind="command" if text.startswith("/") else "message",
        body=text,
        sent_at=parts.clock.now(),
        direct=True,
    )
    async with parts.stores.database.transaction() as tx:
        held_in = parts.stores.conversations.in_room
        conversation = await held_in(tx, room, owner.scope, "terminal")
        if not await parts.stores.inbox.store(tx, conversation, incoming, "waiting"):
            known = await parts.stores.inbox.find(tx, event_id)
            if known and known.body not in ("", parts.redact(text)):
                return told(409, "This key was used for other words.", "Send it with a new key.")
    parts.rooms.wake(conversation)
    parts.speaker.speak(conversation)
    return Taken(id=event_id)


@router.get(
    "/api/chats/{chat_id}/stream",
    response_class=StreamingResponse,
    responses={**problems(404), 200: {"content": {"text/event-stream": {}}}},
)
async def stream_chat(
    chat_id: ChatId,
    views: Viewing,
    visitor: Visiting,
    chats: Chatting,
    has: Annotated[str, Query(max_length=64)] = "",
) -> Response:
    """Stream the states of a conversation. `has`: the version of the messages that a page has."""
    held = await chats.find(chat_id)
    if held is None:
        return told(404, *GONE)
    stream = Stream(
        views.parts, views.sessions, chats.messages, chats.drafts, held.id, visitor, has
    )
    return StreamingResponse(stream.events(), media_type="text/event-stream")
