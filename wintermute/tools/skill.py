"""The tool that teaches a skill."""

from wintermute.conversation.toolbox import Caller
from wintermute.errors import ToolFailed
from wintermute.messages import Json
from wintermute.skills.folder import shown
from wintermute.skills.store import Skills
from wintermute.tools.definition import definition
from wintermute.tools.reason import for_owner, reason


class AddSkill:
    """`add_skill(skill_name, summary, documentation)`: a new skill, or its new text (P-037)."""

    name = "add_skill"
    durable = True

    def __init__(self, skills: Skills, owner_scope: str) -> None:
        self.description, self.parameters = definition(self.name)
        self._skills = skills
        self._owner_scope = owner_scope

    async def run(self, caller: Caller, args: Json) -> object:
        """Where the skill stands now. Every room sees it, so only the owner teaches."""
        if not for_owner(caller, self._owner_scope):
            raise ToolFailed("only the owner may have skills written: every room would see them")
        name = args["skill_name"]
        created = await self._skills.write(
            reason(caller), name, args["summary"], args["documentation"]
        )
        return {"path": shown(name), "created": created}
