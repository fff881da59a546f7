"""The wiki's pages: reading, searching, mending."""

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from wintermute.web.views import Viewing

router = APIRouter()


@router.get("/wiki", include_in_schema=False)
async def wiki_home(views: Viewing) -> HTMLResponse:
    """Show where reading the wiki begins."""
    return views.page("wiki.html", title="Wiki", place="wiki")
