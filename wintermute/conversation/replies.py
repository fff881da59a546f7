"""Texts that the program itself writes in a room; all others come from the model."""

from collections.abc import Sequence

from wintermute.conversation.cast import Outcome
from wintermute.conversation.tool_summary import done_so_far
from wintermute.llm.backend import Wait
from wintermute.loom.records import Turn
from wintermute.text import display_name

MODEL = "waiting for the model"
MOST_WORDS = 60
"""The most characters shown of an attempt's error, or of the message that is answered."""
LIMITS = {
    "max_turns": "I stopped: this took more steps than `loop.max_turns` allows.",
    "max_seconds": "I stopped: this took longer than `loop.max_seconds` allows.",
    "max_tokens": "I stopped: this used more tokens than `loop.max_tokens` allows.",
}
EMPTY = "The model gave an empty answer several times. Please try again, or say it differently."
INTERNAL = "Something went wrong inside me; the log has the details. Your other chats go on."
UNSAID = (
    "I read the wiki about this, but then the model wrote no answer. Please ask again, perhaps for"
    " one thing at a time."
)
JOINED = (
    "Since you asked, somebody else has joined, and the answer was meant for you alone. If"
    " everybody here may read it, mention me and ask again."
)
LEFT = (
    "Somebody left before I could answer, so I did nothing. Please ask again if it still matters."
)
RESULT = "Work that I started before the people in this room changed has ended:\n\n{result}"
STOPPED = "Stopped."
UNANSWERED = "I leave {} unanswered."
STOPPED_HERE = "*Stopped.*"
"""The last line of an answer that was stopped while it grew."""
BELOW = "My answer is below."
WITHHELD = "I held this answer back."
ELSEWHERE = "My answer is in the room that replaced this one."
"""The text that replaces a growing answer when the answer is a message of its own."""
NOTHING_RUNNING = "Nothing was running."
NO_SUCH_SUB_SESSION = "No work `{id}` is running here. `/sessions` lists what is."
EDITED = "[This message was changed. For its earlier wording you had already done: {effects}. That still stands.]\n\n"
REWORDED = "I already did what the first wording said. Undo or cancel that. Then send the new wording as a new message."
FIRST_REVERTED = "I undid what the first wording did."
FIRST_STAYS = "What the first wording did stays."
OUTAGE = (
    "The model does not answer: {problem}. I keep your message and keep trying. `/stop` drops it."
)
UNREACHABLE = (
    "The model cannot be reached: {problem}. Is its server running? I keep your message and answer it"
    " when the model is back. `/stop` drops it."
)
ALONE = (
    "The model answers other messages, but not this one: {problem}. I will try again. `/stop` drops"
    " your message."
)
KEPT = "`{word}` waits until I have answered your earlier message; `/stop` drops that message."
READING = "I am still waiting for {model}, which needs time to read long texts{read}."
READ = "; {read:,} of {total:,} tokens read"
ATTEMPT = "This is attempt {n} of {of} ({problem})."
BACK = "The model answers again."
BROKEN_OFF = {
    "length": "*This is cut off: an answer cannot be longer than `max_output_tokens`.*",
    "content_filter": "*The model's provider withheld the answer, or the rest of it.*",
    "refusal": "*The model refused to answer this.*",
    "cut": "*This may be cut off: the model server ended it without saying that it is complete.*",
    "silent": "*This is cut off: the model sent nothing more.*",
}
"""The last line of an incomplete answer: the reason why there is no more (F-019)."""


PART_READ = (
    "*I could read only {shown:,} of the {whole:,} characters of your message: the rest is too"
    " long for the model.*"
)
PROBLEMS = {
    "empty_reply": EMPTY,
    "internal_error": INTERNAL,
    "context_too_large": "This is too long for the model, even shortened: {problem}.",
    "budget": "{problem}. I keep your messages and answer them then. Reminders and commands still work.",
    "given_up": "I could not answer {message}, and have stopped trying: {problem}. The model answers"
    " other messages, so the cause may be {blamed}. I have set it aside. Please ask in other words.",
    "content_refused": "The model's provider refuses {blamed} because of its content. I have set it"
    " aside. Please ask in other words, or start over with `/new`. You can also delete the message.",
    "context_refused": "{problem}. I did not answer {message}. Start over with `/new`, or delete the"
    " message that may be the cause.",
}
OF_MODEL = frozenset({*PROBLEMS, "model_refused", "prompt_too_large"} - {"internal_error"})
"""Reasons of failed casts that another model might avoid."""
CHOSEN = "This conversation uses only `{name}`; `/model reset` goes back to the usual models."
GONE = (
    "The model `{name}`, which was chosen for this conversation, is no longer configured. I ask the"
    " usual models from now on; `/model` lists what there is."
)


def below(shown: str, notice: str) -> str:
    """Append a notice to the text of an answer that people have already seen."""
    return f"{shown}\n\n{notice}".strip()


def reply_text(
    outcome: Outcome,
    when: str = "",
    turns: Sequence[Turn] = (),
    shown: str = "",
    chosen: str | None = None,
) -> str:
    """Return the text that a person reads at the end of a cast, as Markdown.

    `when`: the date of the message. `turns`: the turns with effects, if the message is given up.
    `shown`: the text that people have already seen growing. `chosen`: the only model that was
    asked.
    """
    if outcome.state == "terminated" and outcome.part_read and outcome.text:
        read, whole = outcome.part_read
        return f"{outcome.text}\n\n{PART_READ.format(shown=read, whole=whole)}"
    if outcome.state == "terminated":
        return outcome.text or UNSAID
    if outcome.reason in LIMITS:
        partial = f"\n\nWhat I had so far:\n\n{outcome.text}" if outcome.text else ""
        if shown:
            return below(outcome.text or shown, LIMITS[outcome.reason])
        return LIMITS[outcome.reason] + partial
    if outcome.reason in BROKEN_OFF:
        return f"{outcome.text}\n\n{BROKEN_OFF[outcome.reason]}".strip()
    message = f"your message of {when}" if when and not shown else "this"
    blamed = f"what a tool gave me for {message}" if turns else message
    notice = PROBLEMS.get(outcome.reason, "{problem}")
    notice = notice.format(problem=outcome.text, message=message, blamed=blamed)
    if chosen is not None and outcome.reason in OF_MODEL:
        notice = f"{notice}\n\n{CHOSEN.format(name=chosen)}"
    return below(shown, f"{notice}\n\n{done_so_far(turns)}".strip())


def waiting_for(name: str, seconds: int, wait: Wait | None = None) -> str:
    """Return the status line of a running answer: the part in progress and its seconds."""
    if wait is None:
        return f"· {name}, {seconds} s"
    parts = [f"· waiting for {display_name(wait.backend)}, {seconds} s"]
    if wait.total:
        parts.append(f"{wait.read:,} of {wait.total:,} tokens read")
    if wait.attempt > 1:
        problem = display_name(wait.problem.removeprefix(f"{wait.backend} "), MOST_WORDS)
        parts.append(f"attempt {wait.attempt} of {wait.of}: {problem}")
    return " · ".join(parts)
