"""The chat page and its API: conversations, messages, and the stream of their states."""

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from wintermute.web.views import Viewing

router = APIRouter()


@router.get("/", include_in_schema=False)
async def chat_page(views: Viewing) -> HTMLResponse:
    """Show the conversation that was used last."""
    return views.page("chat.html", title="Chat", place="chat")
