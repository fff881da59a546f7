"""An answer of a model server as a stream of pieces."""

import json
from collections.abc import Iterable

from wintermute.llm.wire import AnswerParser


def in_bytes(data: bytes) -> list[bytes]:
    """Split into single bytes."""
    return [data[at : at + 1] for at in range(len(data))]


def shown_after(gathering: AnswerParser, shown: str) -> str:
    """What a reader has before him after another look."""
    piece = gathering.fresh()
    return gathering.fresh() or "" if piece is None else shown + piece


def content_in(pieces: Iterable[str], **frame: str) -> bytes:
    """A stream of these pieces of text."""
    events = [{**frame, "choices": [{"delta": {"content": piece}}]} for piece in pieces]
    lines = [f"data: {json.dumps(event)}\n\n" for event in events]
    end = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
    return "".join([*lines, f"data: {json.dumps(end)}\n\ndata: [DONE]\n\n"]).encode()
