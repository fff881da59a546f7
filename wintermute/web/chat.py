"""The chat page and its API: conversations, messages, and the stream of their states."""

import hashlib
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Body, Depends, HTTPException, Path, Query, Request
from fastapi.responses import HTMLResponse, StreamingResponse
from pydantic import BaseModel

from wintermute.clock import stamp
from wintermute.mailbox.history import NEWEST, MessageKey, OwnedConversation
from wintermute.mailbox.outbox import TERMINAL, WEB
from wintermute.messages import Incoming
from wintermute.web.conversations import Folders, FolderViews
from wintermute.web.messages import Messages, MessageViews, RenderedPage, title_of, written
from wintermute.web.stream import Stream
from wintermute.web.views import Refusal, Viewing, Visiting, is_api

LISTED_MOST = 30
"""The conversations of one page of the list."""
FROM_NEWEST = "~ "
"""A cursor before those of all conversations."""
ID = r"^[A-Za-z0-9_-]{1,64}$"
KNOWN = "conv_"
"""The prefix of ids of other doors' conversations: no new one may have it."""
GONE = "There is no such conversation here.", "Open one from the list, or begin a new one."
ChatId = Annotated[str, Path(pattern=ID)]


async def rooms_served(request: Request, views: Viewing) -> None:
    """Refuse where a store of the wiki is served alone: the chats here are not its own (V-030)."""
    if views.parts.rooms is None:
        is_page = not is_api(request.url.path)
        raise HTTPException(303 if is_page else 404, headers={"Location": "/conversations"})


router = APIRouter(dependencies=[Depends(rooms_served)])


class ChatRow(BaseModel):
    """A conversation in the list. `is_open`: it can be gone on with here."""

    id: str
    title: str
    is_open: bool
    matrix: str | None


class ChatList(BaseModel):
    """Conversations, newest first, and the key of the next ones."""

    chats: list[ChatRow]
    next: str | None


@router.get("/", include_in_schema=False)
async def newest_chat(messages: Messages, folders: Folders) -> HTMLResponse:
    """Show the conversation of the web that was used last, or an empty one."""
    newest = await messages.reader.conversations(1, f"{WEB}*")
    return await _page(messages, folders, next(iter(newest), None))


@router.get("/chat", include_in_schema=False)
async def new_chat(messages: Messages, folders: Folders) -> HTMLResponse:
    """Show an empty conversation: it comes into being with its first message."""
    return await _page(messages, folders, None)


@router.get("/chat/{chat_id}", include_in_schema=False)
async def chat_page(
    chat_id: ChatId,
    messages: Messages,
    folders: Folders,
    before: str = "",
    after: str = FROM_NEWEST,
) -> HTMLResponse:
    """Show a conversation, with `before` its earlier messages, with `after` more conversations."""
    held, key = await messages.opened(chat_id), MessageKey.from_page(before)
    if key is None or (held is None and chat_id.startswith(KNOWN)):
        raise Refusal(404, *GONE)
    return await _page(messages, folders, held, chat_id, key, after)


async def _page(
    messages: MessageViews,
    folders: FolderViews,
    held: OwnedConversation | None,
    chat_id: str = "",
    before: MessageKey = NEWEST,
    after: str = FROM_NEWEST,
) -> HTMLResponse:
    row, views = _row(held) if held else None, messages.views
    return views.page(
        "chat.html",
        title=row.title if row else "New conversation",
        place="chat",
        chat_id=row.id if row else chat_id or views.parts.new_id("chat"),
        row=row,
        is_open=row is None or row.is_open,
        is_newest=before == NEWEST,
        page=await messages.page(held.id, before) if held else RenderedPage(),
        list=await list_chats(messages, after),
        folders=await folders.newest_or_none(),
    )


@router.get("/api/chats")
async def list_chats(messages: Messages, after: str = FROM_NEWEST) -> ChatList:
    """List conversations, newest first; `after`: the key that the last list gave."""
    last, _, conversation_id = after.partition(" ")
    found = await messages.reader.conversations(LISTED_MOST + 1, before=(last, conversation_id))
    shown, more = found[:LISTED_MOST], found[LISTED_MOST:]
    key = f"{stamp(shown[-1].last)} {shown[-1].id}" if more else None
    return ChatList(chats=[_row(each) for each in shown], next=key)


def _row(held: OwnedConversation) -> ChatRow:
    room = held.room_id
    is_open, is_here = room.startswith(WEB), room == TERMINAL
    return ChatRow(
        id=room.removeprefix(WEB) if is_open else held.id,
        title=title_of(held),
        is_open=is_open,
        matrix=None if is_open or is_here else f"https://matrix.to/#/{quote(room)}",
    )


@router.get("/api/chats/{chat_id}/messages")
async def list_messages(chat_id: ChatId, messages: Messages, before: str = "") -> RenderedPage:
    """Return the newest messages of a conversation, or those before the key of a list."""
    held, key = await messages.opened(chat_id), MessageKey.from_page(before)
    if key is None:
        raise Refusal(400, "The key of the earlier messages is none of ours.", "Reload the page.")
    if held is None:
        raise Refusal(404, *GONE)
    return await messages.page(held.id, key)


@router.post("/api/chats/{chat_id}/messages", status_code=202)
async def take_message(
    chat_id: ChatId,
    key: Annotated[str, Body(pattern=ID)],
    text: Annotated[str, Body()],
    messages: Messages,
) -> dict[str, str]:
    """Store a message or a command of the owner, once for each key; its `id`. Its room wakes."""
    parts, text = messages.views.parts, written(text).lstrip("\n")
    text = text.strip() if text.lstrip().startswith("/") else text  # an indent may mean code
    held = await messages.opened(chat_id)
    if held is not None and not held.room_id.startswith(WEB):
        raise Refusal(403, "This conversation can only be read here.", "Answer where it is held.")
    if parts.rooms is None or (held is None and chat_id.startswith(KNOWN)):
        raise Refusal(404, *GONE)
    owner, room = parts.stores.owner, f"{WEB}{chat_id}"
    event_id = f"web_{hashlib.sha256(f'{room} {key}'.encode()).hexdigest()[:32]}"
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
        if known is not None and not owner.owns(known.scope):  # of an earlier owner
            raise Refusal(404, *GONE)
        conversation = await conversations.in_room(tx, room, owner.scope, "terminal")
        if not await parts.stores.inbox.store(tx, conversation, incoming, "waiting"):
            stored = await parts.stores.inbox.find(tx, event_id)
            if stored and stored.body not in ("", parts.redact(text)):
                error = "This key was used for other words."
                raise Refusal(409, error, "Send it with a new key.")
    parts.rooms.wake(conversation)
    parts.speaker.speak(conversation)
    return {"id": event_id}


@router.get(
    "/api/chats/{chat_id}/stream",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}}},
)
async def stream_chat(
    chat_id: ChatId,
    visitor: Visiting,
    messages: Messages,
    has: Annotated[str, Query(max_length=64)] = "",
) -> StreamingResponse:
    """Stream the states of a conversation. `has`: the version of the messages that a page has."""
    held = await messages.opened(chat_id)
    if held is None:
        raise Refusal(404, *GONE)
    stream = Stream(messages, held.id, visitor, has)
    return StreamingResponse(stream.events(), media_type="text/event-stream")
