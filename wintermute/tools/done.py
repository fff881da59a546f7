"""The tool that ends a cast; the loop acts on it, here are its words."""

from wintermute.conversation.toolbox import Caller
from wintermute.messages import Json
from wintermute.tools.definition import definition


class Done:
    """`done(answer)`: the answer is the result of the cast."""

    name = "done"
    durable = True

    def __init__(self) -> None:
        self.description, self.parameters = definition(self.name)

    async def run(self, caller: Caller, args: Json) -> object:
        """The answer as it was given."""
        return args["answer"]
