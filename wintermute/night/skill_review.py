"""Skills at night: ask about long, similar and unread ones; nothing is changed without a yes (M-080).

changed since the last night ─┬ similar to another ─▶ one question to a model ─▶ "merge these?"
                              ╰ long ───────────────▶ one question to a model ─▶ "change this?"
not read for 90 days ──────────────────────────────────────────────────────────▶ "remove this?"
"""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import ClassVar

from wintermute.changes.decisions import Decision, digest_of
from wintermute.clock import stamp
from wintermute.errors import ToolFailed
from wintermute.forgetting.executors import DecisionKind, Kinds
from wintermute.llm.json_answer import InvalidAnswer, require_keys
from wintermute.llm.tokens import estimate
from wintermute.memory.lexical_overlap import are_made_of, main_words, shared_words
from wintermute.messages import Json
from wintermute.night.pipeline import ROLE, PhaseStep, PhaseWork, answer_or_step
from wintermute.skills.skills import ENDING, IN_FOLDER, MOST_DOCUMENTATION, skill_path, summary_in
from wintermute.work.data_folder import DataFolder

LONG = 4_000
"""Characters; for a longer skill a shorter text is proposed."""
UNREAD = timedelta(days=90)
MOST = 20
"""Questions to a model in a night."""
NUMBERING = re.compile(r"^\s*\d+[.)]\s", re.MULTILINE)
"""Numbers of steps; they may vanish when steps are merged."""
READ = """
SELECT DISTINCT json_extract(args, '$.path') FROM observations
WHERE gate = 'read_file' AND NOT is_error AND started_at > ? AND json_valid(args)
"""

log = logging.getLogger(__name__)

CHANGED = DecisionKind(
    *("skill", "skill changed", "skills changed", "Change this skill?"),
    ends=("Remove this skill?", "skill removed"),
    joins=("Merge these skills?", "skills merged"),
)


@dataclass(frozen=True, slots=True)
class SkillText:
    """Text of a skill's file. `saved`: the time when it was written."""

    name: str
    text: str
    saved: datetime

    @property
    def digest(self) -> str:
        """Digest of name and text."""
        return digest_of("skill", self.name, self.text)


def parse_proposal(found: Json, old: Sequence[SkillText]) -> str:
    """Return the text that replaces these skills; "" for none. Raises: Unfit."""
    require_keys(found, "text")
    text = found["text"]
    if not isinstance(text, str):
        raise InvalidAnswer('"text" must be a text')
    if not text.strip():
        return ""
    texts = [skill.text for skill in old]
    if not summary_in(text):
        raise InvalidAnswer("its first line does not say what it is for")
    if len(text) >= min(MOST_DOCUMENTATION, sum(map(len, texts))):
        raise InvalidAnswer("it is not shorter")
    lines = [line for line in text.splitlines() if line.strip()]
    if not all(are_made_of(NUMBERING.sub("", line), texts) for line in lines):
        raise InvalidAnswer(
            "a line says something that is in none of them, or uses another language"
        )
    if _numbers(NUMBERING.sub("", "\n".join(texts))) - _numbers(text):
        raise InvalidAnswer("a number of them is missing")
    return text.rstrip() + "\n"


class SkillReview:
    """Phase that reviews skills. They belong to everybody, and are reviewed with the owner's scope."""

    name: ClassVar = "skills"
    use: ClassVar = "review skills"
    kinds: ClassVar[Kinds] = (CHANGED,)

    def __init__(self, own: DataFolder) -> None:
        self._stores = own.stores
        self._template = own.texts.dream_skills
        self._similarity = own.config.dreaming.dedup_similarity

    async def size(self, scope: str) -> int:
        """Count skills."""
        mine = self._stores.owner.scope == scope
        return len(await self._stores.skills.listed()) if mine else 0

    async def steps(self, work: PhaseWork) -> AsyncIterator[PhaseStep]:
        """Yield one step for each question. Raises: ModelError."""
        if work.scope != self._stores.owner.scope:
            return
        skills = await self._skills()
        new = await self._stores.nights.not_yet_asked(
            work.scope, [skill.digest for skill in skills.values()]
        )
        asked, asked_about, waiting = 0, set[str](), set[str]()
        for group in await asyncio.to_thread(self._find_groups, skills, new):
            if asked_about & {skill.name for skill in group}:
                waiting |= {skill.name for skill in group}
                continue
            if asked == MOST:
                yield PhaseStep(note="more skills wait for the next night", unfinished=True)
                return
            asked += 1
            asked_about |= {skill.name for skill in group}
            yield await self._propose(work, group)
        judged = [s.digest for s in skills.values() if s.digest in new and s.name not in waiting]
        if judged:
            yield PhaseStep(judged=tuple(judged))
        unread = [s for s in await self._unread(skills) if s.name not in asked_about]
        digests = {digest_of("unread", skill.digest): skill for skill in unread}
        for digest in sorted(await self._stores.nights.not_yet_asked(work.scope, digests)):
            yield PhaseStep((_removal(digests[digest], digest),))

    async def _skills(self) -> dict[str, SkillText]:
        folder, skills = self._stores.places.skills(), dict[str, SkillText]()
        for skill in await self._stores.skills.listed():
            if skill.name.endswith(IN_FOLDER):  # a skill with further files
                continue
            try:
                text = await self._stores.skills.read(skill.name)
                saved = await asyncio.to_thread(_saved, folder / f"{skill.name}{ENDING}")
            except (ToolFailed, OSError) as problem:
                log.warning("skill left out name=%s reason=%s", skill.name, problem)
                continue
            skills[skill.name] = SkillText(skill.name, text, saved)
        return skills

    def _find_groups(
        self, skills: Mapping[str, SkillText], new: set[str]
    ) -> list[tuple[SkillText, ...]]:
        """Return similar pairs with a new skill, most similar first; then new long skills."""
        fresh = [skill for skill in skills.values() if skill.digest in new]
        texts = [_whole(skill) for skill in skills.values()]
        likeness = shared_words([_whole(skill) for skill in fresh], texts) if fresh else []
        pairs: dict[tuple[str, str], float] = {}
        for skill, parts in zip(fresh, likeness, strict=True):
            for other, part in zip(skills.values(), parts, strict=True):
                if other.name != skill.name and part >= self._similarity:
                    pairs[min(skill.name, other.name), max(skill.name, other.name)] = part
        ranked = sorted(pairs, key=lambda pair: (-pairs[pair], pair))
        groups = [(skills[one], skills[other]) for one, other in ranked]
        return [*groups, *((skill,) for skill in fresh if len(skill.text) > LONG)]

    async def _propose(self, work: PhaseWork, group: Sequence[SkillText]) -> PhaseStep:
        """Ask a model to shorten a long skill, or to merge two similar ones."""
        judged = tuple(skill.digest for skill in group)
        content = "\n\n".join(f"{skill_path(skill.name)}\n\n{skill.text}" for skill in group)
        template = self._template.text()
        if estimate(template + content) > work.models.window(ROLE):
            return PhaseStep(
                judged=judged, note=f"{skill_path(group[0].name)} is too long for a model"
            )
        asked = work.models.answer_in_json(
            *(ROLE, template, {"content": content}, lambda found: parse_proposal(found, group))
        )
        names = " and ".join(skill_path(skill.name) for skill in group)
        text = await answer_or_step(
            asked, judged, lambda problem: f"nothing is proposed for {names}: {problem}"
        )
        if isinstance(text, PhaseStep):
            return text
        if not text:
            return PhaseStep(judged=judged)
        kept = SkillText(group[0].name, text, group[0].saved)
        return PhaseStep((_replacement(group, text),), judged=(*judged, kept.digest))

    async def _unread(self, skills: Mapping[str, SkillText]) -> list[SkillText]:
        """Return skills that were neither written nor read for `UNREAD`, according to the loom."""
        before = self._stores.facts.now() - UNREAD
        old = [skill for skill in skills.values() if skill.saved <= before]
        if not old:
            return []
        paths = await self._stores.database.scalars(READ, (stamp(before),))
        read = {Path(path).name for path in paths if isinstance(path, str)}
        return [skill for skill in old if f"{skill.name}{ENDING}" not in read]


def _numbers(text: str) -> set[str]:
    return {word for word in main_words(text) if any(map(str.isdigit, word))}


def _saved(path: Path) -> datetime:
    return datetime.fromtimestamp(path.stat().st_mtime, UTC)


def _whole(skill: SkillText) -> str:
    return f"{skill.name} {skill.text}"


def _file(skill: SkillText, text: str | None) -> Json:
    return {"kind": "skill", "item": skill.name, "was": skill.text, "text": text}


def _replacement(group: Sequence[SkillText], text: str) -> Decision:
    first, *others = group
    named = " and ".join(skill.name for skill in group)
    return Decision(
        kind="skill",
        before=tuple(skill.text for skill in group),
        after=text,
        reason=f"{named} are alike" if others else f"{named} has {len(first.text)} characters",
        plan={"files": [_file(first, text), *(_file(other, None) for other in others)]},
        state="open",
    )


def _removal(skill: SkillText, digest: str) -> Decision:
    return Decision(
        kind="skill",
        before=(skill.text,),
        after="",
        reason=f"{skill.name} was not read for {UNREAD.days} days",
        plan={"files": [_file(skill, None)]},
        state="open",
        digest=digest,
    )
