"""Tool definitions: the texts for the model are one JSON file per tool in `definitions/`.

The reason of a change records on whose behalf a tool acts. `done` has no effect of its own: the loop acts on it.
"""

import json
from functools import cache
from importlib import resources

from wintermute.changes.change_sets import Reason
from wintermute.conversation.toolbox import Caller
from wintermute.errors import ToolFailed
from wintermute.llm.special_tokens import without_recalls
from wintermute.messages import Json

ASK_FIRST = (
    "here you may only add, for nobody is there to say yes: nothing was done. Say in your answer what"
    " should be changed; the person can ask for it"
)
"""Error for a small model that wants to change something while nobody watches (`Caller.only_adds`)."""


def reason(caller: Caller) -> Reason:
    """Return the reason for the change set: the cast, and the message that it answers."""
    evidence = (caller.event_id,) if caller.event_id else ()
    asked = caller.origin in ("owner", "other")
    return Reason("tool", caller.scope, caller.cast_id, evidence, asked=asked)


class OwnTool:
    """Built-in tool whose texts for models are in the file of its name."""

    name: str
    for_small = True

    @property
    def description(self) -> str:
        """Description from its file."""
        return str(definition(self.name)["description"])

    @property
    def parameters(self) -> Json:
        """JSON schema of its arguments."""
        schema: Json = definition(self.name)["parameters"]
        return schema

    @property
    def brief(self) -> tuple[str, Json] | None:
        """Short description and schema for small models; all arguments are accepted anyway."""
        small = definition(self.name).get("small") if self.for_small else None
        return (small["description"], small["parameters"]) if small else None


@cache
def definition(name: str) -> Json:
    """Read the file of a tool: `description` and `parameters`, the same in `small`, `people` for the docs."""
    file = resources.files("wintermute.tools") / "definitions" / f"{name}.json"
    texts: Json = json.loads(file.read_text("utf-8"))
    return texts


class Done(OwnTool):
    """Tool `done(answer)`: the answer is the result of the cast."""

    name = "done"
    doing = "finishing"
    durable = True

    async def run(self, caller: Caller, args: Json) -> object:
        """Return the answer without recall tags, since it is too late to recall pages (W-027)."""
        answer = args["answer"]
        if not isinstance(answer, str):
            return answer
        text = without_recalls(answer)
        if not text.strip():
            raise ToolFailed("done requires an answer: recall pages before it, not in it")
        return text
