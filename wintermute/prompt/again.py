"""A recorded system prompt with the instructions as the prompt files have them now. Pure."""

from wintermute.prompt.assemble import DIVIDER, HEADINGS, INSTRUCTIONS, RANKED, pieces
from wintermute.prompt.parts import WORKER_HEADINGS, inert

SUMMARY = "Conversation Summary"
OURS = {*HEADINGS, RANKED, *WORKER_HEADINGS}


def again(prompt: str, *, instructions: str, minimal: str | None, summary: str) -> str:
    """The prompt as it would be now, had nothing but our own files and code changed (L-088).

    `minimal`: the light instructions, for prompts of sub-sessions, which may begin with them.
    """
    parts: list[tuple[str, str]] = []
    for name, text in pieces(prompt):
        if parts and name not in OURS:  # the instructions may have dividers of their own
            before, begun = parts[-1]
            parts[-1] = (before, begun + text)
        else:
            parts.append((name, text))
    return "".join(_now(part, n, instructions, minimal, summary) for n, part in enumerate(parts))


def _now(
    part: tuple[str, str], n: int, instructions: str, minimal: str | None, summary: str
) -> str:
    name, text = part
    divider = DIVIDER if n else ""
    if name == INSTRUCTIONS:
        return f"{divider}# {name}\n{instructions}"
    if name == SUMMARY:
        return f"{divider}# {name}\n{inert(summary)}" if summary else ""
    if n == 0 and name not in OURS and minimal is not None:
        return minimal.strip()
    return text
