"""How the practice model tells what a tool gave: what the store says, errors included."""

from collections.abc import Sequence

from wintermute.demo.replies import listed, phrase
from wintermute.demo.seen import Result
from wintermute.messages import Json
from wintermute.text import shortened

MOST_RAW = 4_000
PAST = {"add": "added", "complete": "completed", "delete": "deleted", "pause": "paused"}


def reported(result: Result) -> str:
    """One result in words; what has no words of its own is shown as it is."""
    why = result.text.removeprefix("error: ")
    if why != result.text:
        return phrase("failed", why=shortened(why, MOST_RAW))
    if result.text.startswith(("interrupted: ", "not run: ")):
        return phrase("open", why=result.text)
    match result.tool, result.data:
        case "append_memory", {"text": str(text), "stored": stored}:
            return phrase("known" if stored == "known" else "remembered", fact=text)
        case "task", [*rows]:
            return _task_list(result.arguments, rows)
        case "task", {"id": str(task_id), "content": str(content), **row}:
            return _changed_task(result.arguments, task_id, content, row.get("next_due"))
        case "add_skill", {"path": str(path), "created": created}:
            return phrase("learnt" if created else "relearnt", path=f"`{path}`")
        case "read_file", _:
            return shortened(result.text, MOST_RAW).strip() or phrase("nothing")
    text = shortened(result.text, MOST_RAW).strip() or phrase("nothing")
    return phrase("raw", tool=result.tool, text=text)


def _changed_task(arguments: Json, task_id: str, content: str, due: object) -> str:
    if due:
        return phrase("task_due", id=task_id, content=content, due=str(due))
    reply = PAST.get(str(arguments.get("action")), "resumed")
    return phrase(f"task_{reply}", id=task_id, content=content)


def _task_list(arguments: Json, rows: Sequence[object]) -> str:
    lines = [
        phrase("task_line", id=str(row.get("id")), content=str(row.get("content")))
        for row in rows
        if isinstance(row, dict)
    ]
    status = str(arguments.get("status") or "active")
    if not lines:
        return phrase("no_tasks", status=status)
    return phrase("tasks", status=status, tasks=listed(lines))
