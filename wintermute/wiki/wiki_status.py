"""Status line about the wiki: pages, broken links, the last job."""

from datetime import datetime, tzinfo

from wintermute.errors import WintermuteError
from wintermute.health.health import StatusLine
from wintermute.text import counted
from wintermute.wiki.links import INDEX, is_page
from wintermute.wiki.page_jobs import WikiJob, listed_jobs
from wintermute.wiki.pages import MOST_INDEX_LINES
from wintermute.wiki.store import WikiStore

PART = "wiki"
SHORTEN = "link some pages from other pages instead"
NO_STORE = "no pages yet -> `wintermute wiki init` makes a store"


def wiki_status(store: WikiStore, zone: tzinfo) -> StatusLine:
    """Return the status line; pages that changed are read for it."""
    if not store.exists:
        return StatusLine(PART, "ok", NO_STORE)
    try:
        with store.files.reading():
            all_pages = store.pages()
            pages = sum(map(is_page, all_pages))
            broken = len(store.graph().broken)
            job = next(iter(listed_jobs(store.files)), None)
    except WintermuteError as problem:
        return StatusLine(PART, "warn", str(problem))
    parts = [counted(pages, "page"), counted(broken, "broken link")]
    lines = all_pages[INDEX].lines if INDEX in all_pages else 0
    if is_long := lines > MOST_INDEX_LINES:
        parts.append(f"the index has {lines} lines, prompts show {MOST_INDEX_LINES} -> {SHORTEN}")
    parts += [_last(job, zone)] if job else []
    failed = job is not None and job.status != "applied"
    numbers = {"pages": pages, "broken_links": broken}
    return StatusLine(PART, "warn" if failed or is_long else "ok", ", ".join(parts), numbers)


def _last(job: WikiJob, zone: tzinfo) -> str:
    at = datetime.fromisoformat(job.start).astimezone(zone)
    why = f" ({job.reason}) -> see sleep/{job.name}/report.md" if job.status != "applied" else ""
    return f"last job {at:%Y-%m-%d %H:%M} {job.status}{why}"
