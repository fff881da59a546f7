"""The chat page and its API: conversations, messages, and the stream of their states."""

import hashlib
from datetime import datetime
from typing import Annotated
from urllib.parse import quote
from weakref import WeakValueDictionary

from fastapi import APIRouter, Depends, HTTPException, Path, Query, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from pydantic import BaseModel, Field

from wintermute.clock import stamp
from wintermute.mailbox.history import NEWEST, HeldConversation, MessageKey
from wintermute.mailbox.outbox import TERMINAL, WEB
from wintermute.messages import Incoming
from wintermute.text import clean, is_blank
from wintermute.web.conversations import FolderViews
from wintermute.web.messages import MESSAGE_MOST, MessageViews, RenderedPage, title_of
from wintermute.web.stream import DraftDesk, Stream
from wintermute.web.views import Viewing, Views, Visiting, is_api, told

LISTED_MOST = 30
"""Conversations of a list."""
FROM_NEWEST = "~ "
"""A key before that of each conversation."""
ID = r"^[A-Za-z0-9_-]{1,64}$"
KNOWN = "conv_"
"""Beginning of ids that conversations of other doors have: no new one is called like that."""
GONE = "There is no such conversation here.", "Open one from the list, or begin a new one."


async def rooms_served(request: Request, views: Viewing) -> None:
    """Refuse where a store of the wiki is served alone: the chats here are not its own (V-030)."""
    if views.parts.rooms is None:
        is_page = not is_api(request.url.path)
        raise HTTPException(303 if is_page else 404, headers={"Location": "/conversations"})


router = APIRouter(dependencies=[Depends(rooms_served)])
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
        self._clock = views.parts.clock
        self._desks: WeakValueDictionary[str, DraftDesk] = WeakValueDictionary()

    async def opened(self, chat_id: str) -> HeldConversation | None:
        """Find a conversation by the end of its address."""
        return await self.messages.reader.held(chat_id, f"{WEB}{chat_id}")

    def desk(self, conversation_id: str) -> DraftDesk:
        """Give the desk of a conversation, which is there while somebody has it."""
        return self._desks.setdefault(conversation_id, DraftDesk(self._clock))


async def chat_views(request: Request) -> ChatViews:
    """Give the views of the application that a request reached."""
    found: ChatViews = request.app.state.chats
    return found


Chatting = Annotated[ChatViews, Depends(chat_views)]


@router.get("/", include_in_schema=False)
async def newest_chat(views: Viewing, chats: Chatting) -> HTMLResponse:
    """Show the conversation of the web that was used last, or an empty one."""
    newest = await chats.messages.reader.conversations(1, f"{WEB}*")
    return await _page(views, chats, next(iter(newest), None))


@router.get("/chat", include_in_schema=False)
async def new_chat(views: Viewing, chats: Chatting) -> HTMLResponse:
    """Show an empty conversation: it comes into being with its first message."""
    return await _page(views, chats, None)


@router.get("/chat/{chat_id}", include_in_schema=False)
async def chat_page(
    request: Request,
    chat_id: ChatId,
    views: Viewing,
    chats: Chatting,
    before: str = "",
    after: str = FROM_NEWEST,
) -> Response:
    """Show a conversation, with `before` its earlier messages, with `after` more conversations."""
    held, key = await chats.opened(chat_id), MessageKey.from_page(before)
    if key is None or (held is None and chat_id.startswith(KNOWN)):
        return views.problem(request.scope, 404, *GONE)
    return await _page(views, chats, held, chat_id, key, after)


async def _page(
    views: Views,
    chats: ChatViews,
    held: HeldConversation | None,
    chat_id: str = "",
    before: MessageKey = NEWEST,
    after: str = FROM_NEWEST,
) -> HTMLResponse:
    row = _row(held) if held else None
    return views.page(
        "chat.html",
        title=row.title if row else "New conversation",
        place="chat",
        chat_id=row.id if row else chat_id or views.parts.new_id("chat"),
        row=row,
        is_open=row is None or row.is_open,
        is_newest=before == NEWEST,
        page=await chats.messages.page(held.id, before) if held else RenderedPage(),
        list=await list_chats(chats, after),
        folders=await chats.folders.newest_or_none(),
    )


@router.get("/api/chats")
async def list_chats(chats: Chatting, after: str = FROM_NEWEST) -> ChatList:
    """List conversations, newest first; `after`: the key that the last list gave."""
    last, _, conversation_id = after.partition(" ")
    reader = chats.messages.reader
    found = await reader.conversations(LISTED_MOST + 1, before=(last, conversation_id))
    shown, more = found[:LISTED_MOST], found[LISTED_MOST:]
    key = f"{stamp(shown[-1].last)} {shown[-1].id}" if more else None
    return ChatList(chats=[_row(each) for each in shown], next=key)


def _row(held: HeldConversation) -> ChatRow:
    room = held.room_id
    is_open, is_here = room.startswith(WEB), room == TERMINAL
    return ChatRow(
        id=room.removeprefix(WEB) if is_open else held.id,
        title=title_of(held),
        last=held.last,
        is_open=is_open,
        matrix=None if is_open or is_here else f"https://matrix.to/#/{quote(room)}",
    )


@router.get("/api/chats/{chat_id}/messages", response_model=RenderedPage)
async def list_messages(
    chat_id: ChatId, chats: Chatting, before: str = ""
) -> RenderedPage | JSONResponse:
    """Give the newest messages of a conversation, or those before the key of a list."""
    held, key = await chats.opened(chat_id), MessageKey.from_page(before)
    if key is None:
        return told(400, "The key of the earlier messages is none of ours.", "Reload the page.")
    return await chats.messages.page(held.id, key) if held else told(404, *GONE)


@router.post(
    "/api/chats/{chat_id}/messages",
    status_code=202,
    response_model=Taken,
)
async def take_message(
    chat_id: ChatId, new: NewMessage, views: Viewing, chats: Chatting
) -> Taken | JSONResponse:
    """Store a message or a command of the owner, once for each key, and wake its room."""
    parts, text = views.parts, clean(new.text).rstrip().lstrip("\n")
    text = text.strip() if text.lstrip().startswith("/") else text  # an indent may be one of code
    if len(new.text.encode(errors="replace")) > MESSAGE_MOST:
        return told(413, "The message is longer than 64 kB.", "Send it in parts.")
    if is_blank(text):
        return told(400, "message required", "Write a message first.")
    held = await chats.opened(chat_id)
    if held is not None and not held.room_id.startswith(WEB):
        return told(403, "This conversation can only be read here.", "Answer where it is held.")
    if parts.rooms is None or (held is None and chat_id.startswith(KNOWN)):
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
        conversations = parts.stores.conversations
        known = await conversations.of_room(tx, room)
        if known is not None and not owner.owns(known.scope):  # of who was the owner before
            return told(404, *GONE)
        conversation = await conversations.in_room(tx, room, owner.scope, "terminal")
        if not await parts.stores.inbox.store(tx, conversation, incoming, "waiting"):
            stored = await parts.stores.inbox.find(tx, event_id)
            if stored and stored.body not in ("", parts.redact(text)):
                return told(409, "This key was used for other words.", "Send it with a new key.")
    parts.rooms.wake(conversation)
    parts.speaker.speak(conversation)
    return Taken(id=event_id)


@router.get(
    "/api/chats/{chat_id}/stream",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}}},
)
async def stream_chat(
    chat_id: ChatId,
    views: Viewing,
    visitor: Visiting,
    chats: Chatting,
    has: Annotated[str, Query(max_length=64)] = "",
) -> Response:
    """Stream the states of a conversation. `has`: the version of the messages that a page has."""
    held = await chats.opened(chat_id)
    if held is None:
        return told(404, *GONE)
    shared = (views.parts, views.sessions, chats.messages, chats.desk(held.id))
    stream = Stream(*shared, held.id, visitor, has)
    return StreamingResponse(stream.events(), media_type="text/event-stream")
