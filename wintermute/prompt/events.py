"""How something that is no message of a person is told to the model (L-070)."""

from typing import Literal

from wintermute.text import untagged

EventKind = Literal[
    "conversation_seed",
    "component_oversize",
    "sub_session_result",
    "sub_session_failed",
    "sub_session_timeout",
    "workflow_complete",
    "scheduled_task",
    "task_error",
]


def event(kind: EventKind, event_id: str, text: str) -> str:
    """The event as the model sees it; nothing in `text` can close or open a tag of ours."""
    return f'<event kind="{kind}" id="{event_id}">\n{untagged(text.strip())}\n</event>'


def text_of(body: str) -> str:
    """What such an event tells, without its tags."""
    return body.partition("\n")[2].removesuffix("\n</event>")
