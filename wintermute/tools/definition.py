"""A tool's words for the model are data: one JSON file per tool in `definitions/`.

On whose behalf a tool acts is in the reason of what it changes. `done` is words alone: the loop
acts on it.
"""

import json
from importlib import resources

from wintermute.changes.change_sets import Reason
from wintermute.conversation.toolbox import Caller
from wintermute.errors import ToolFailed
from wintermute.llm.markup import without_recalls
from wintermute.messages import Json

ASK_FIRST = (
    "here you may only add, for nobody is there to say yes: nothing was done. Say in your answer what"
    " should be changed; the person can ask for it"
)
"""What a small model is told that nobody watches (`Caller.only_adds`)."""


def reason(caller: Caller) -> Reason:
    """The reason that stands in the change set: the cast, and the message that it answers."""
    evidence = (caller.event_id,) if caller.event_id else ()
    asked = caller.origin in ("owner", "other")
    return Reason("tool", caller.scope, caller.cast_id, evidence, asked=asked)


def definition(name: str) -> tuple[str, Json]:
    """The description of a tool and the JSON schema of its arguments."""
    words = _words(name)
    return words["description"], words["parameters"]


def brief(name: str) -> tuple[str, Json]:
    """The same in few words and with few arguments, for small models; it takes all of them."""
    words = _words(name)["small"]
    return words["description"], words["parameters"]


def _words(name: str) -> Json:
    file = resources.files("wintermute.tools") / "definitions" / f"{name}.json"
    found: Json = json.loads(file.read_text("utf-8"))
    return found


class Done:
    """`done(answer)`: the answer is the result of the cast."""

    name = "done"
    doing = "finishing"
    durable = True

    def __init__(self) -> None:
        self.description, self.parameters = definition(self.name)
        self.brief = brief(self.name)

    async def run(self, caller: Caller, args: Json) -> object:
        """The answer as it was given; in one nothing can be recalled any more (W-027)."""
        answer = args["answer"]
        if not isinstance(answer, str):
            return answer
        said = without_recalls(answer)
        if not said.strip():
            raise ToolFailed("done requires an answer: recall pages before it, not in it")
        return said
