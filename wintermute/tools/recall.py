"""Tool that opens a page of the wiki."""

from wintermute.conversation.toolbox import Caller
from wintermute.errors import ToolFailed
from wintermute.loom.casts import Casts
from wintermute.messages import Json
from wintermute.owner import Owner
from wintermute.tools.definition import OwnTool
from wintermute.wiki.recall import RECALL, RecalledPage, not_found, refused
from wintermute.wiki.store import WikiStore


class RecallTool(OwnTool):
    """Tool `recall(title)`: a page, at most three in one cast (W-026 to W-035)."""

    name = RECALL
    doing = "reading a page"
    durable = True

    def __init__(self, pages: WikiStore, casts: Casts, owner: Owner) -> None:
        self._pages = pages
        self._casts = casts
        self._owner = owner

    async def exists_in(self, scope: str) -> bool:
        """Offer the tool in the owner's chats, if there is a page (M-013, P-015)."""
        return self._owner.owns(scope) and await self._pages.has_pages()

    async def run(self, caller: Caller, args: Json) -> object:
        """Return the page as a record, which the model is shown as text."""
        title = args["title"].strip()
        earlier = await self._casts.results(caller.cast_id, self.name)
        if why_not := refused(earlier, title):
            raise ToolFailed(why_not)
        page = await self._find(caller, title)
        if isinstance(page, str):
            raise ToolFailed(page)
        if why_not := refused(earlier, title, page.path):
            raise ToolFailed(why_not)
        return page.record(title)

    async def _find(self, caller: Caller, title: str) -> RecalledPage | str:
        if not (title and self._owner.owns(caller.scope)):
            return not_found(title)
        return await self._pages.recalled(title)

    def is_untrusted(self, caller: Caller, args: Json, result: object) -> bool:
        """Decide if the page has untrusted text: it informs and never instructs."""
        return isinstance(result, dict) and bool(result["outside"])
