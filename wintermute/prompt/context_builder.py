"""Reads the parts of the system prompt in their present state; `assemble` then joins them.

The prompt files are read at each use, and a broken one is replaced by its last valid text. A part
that grew too long is noticed, and the model is asked to shorten it (P-048). Events, which are not
messages of a person, have a tag of their own (L-070).
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal, get_args

from wintermute.clock import Clock, moment, stamp
from wintermute.config.schema import ComponentSizeLimits, Seed, Wiki
from wintermute.db import Transaction
from wintermute.errors import ConfigurationError, MemoryUnavailable
from wintermute.llm.tokens import estimate
from wintermute.memory.fact import Hit, entries
from wintermute.memory.ranking import Query
from wintermute.memory.search import fitting
from wintermute.memory.status import LIST_TOO_LONG
from wintermute.messages import OPENED, Size
from wintermute.prompt.assemble import (
    LOAD,
    MEMORIES,
    PromptParts,
    Section,
    assemble,
    chosen,
    core_text,
    current_time,
    flat_lines,
    inert,
    parse,
    ranked_lines,
    skill_lines,
    task_lines,
    wiki_text,
)
from wintermute.prompt.context_block import ChangingParts, Layout
from wintermute.stores import Stores
from wintermute.templates import (
    CONSOLIDATION,
    DREAM_SKILLS,
    NOTHING_KEPT,
    RUNTIME,
    Template,
    fill,
    shipped_prompts,
)
from wintermute.text import untagged
from wintermute.wiki.recall import RECALL

log = logging.getLogger(__name__)

FILE = "BASE_PROMPT.txt"
FILE_SMALL = "BASE_PROMPT.small.txt"
OUTDATED = (
    "{name} does not say what {tag} blocks are: it is from before them -> move it away, then"
    " `wintermute init DIR` writes the new one, into which you can take what you had changed; or set"
    " context.layout: system"
)
Component = Literal["memories", "tasks", "skills"]
COMPONENTS: tuple[Component, ...] = get_args(Component)
QUIET = timedelta(hours=24)
TOP_K = 10
MOST_IN_VIEW = 4_000
"""Tokens of memories that may be in view; at most an eighth of the window."""
BEST = 3
"""Ranks that are shown even beyond that limit."""
FALLBACK = "SEED_en.txt"
EventKind = Literal[
    "conversation_seed",
    "component_oversize",
    "night_report",
    "sub_session_result",
    "sub_session_failed",
    "sub_session_timeout",
    "workflow_complete",
    "scheduled_task",
    "task_error",
]
FILES: Mapping[Component, str] = {
    "memories": "OVERSIZE_MEMORIES.txt",
    "tasks": "OVERSIZE_TASKS.txt",
    "skills": "OVERSIZE_SKILLS.txt",
}


class Instructions:
    """The newest valid version of the file in `folder`; that of `kept` if it is no text (F-031).

    Raises: ConfigurationError when it cannot be used at the start.
    """

    def __init__(
        self, folder: Path, kept: Mapping[str, str] = NOTHING_KEPT, name: str = FILE
    ) -> None:
        self._name = name
        self._file = Template(folder, name, kept)
        self._last_text = self._file.text()
        self._sections = parse(self._last_text, name)

    def sections(self) -> tuple[Section, ...]:
        """Return the sections of the latest edit (P-005).

        A broken edit is logged once, and ignored (P-030).
        """
        text = self._file.text()
        if text != self._last_text:
            self._last_text = text
            try:
                self._sections = parse(text, self._name)
            except ConfigurationError as error:
                log.error("edited prompt refused, last one stays in use reason=%s", error)  # noqa: TRY400
        return self._sections

    def outdated(self, layout: Layout) -> str | None:
        """Return the advice if they do not explain blocks, but blocks are used; None if all is well."""
        if layout == "system" or OPENED.strip() in self._file.text():
            return None
        return OUTDATED.format(name=self._name, tag=OPENED.strip())


@dataclass(frozen=True, slots=True)
class SizeNotice:
    """The size of a component when the model was last told, and the time."""

    size: int
    at: datetime


def components_to_report(
    sizes: Mapping[Component, int],
    limits: Mapping[Component, int],
    notified: Mapping[Component, SizeNotice],
    now: datetime,
) -> tuple[Component, ...]:
    """Return the components to report now, in order (P-050): over the limit, and news (P-051)."""
    return tuple(
        each
        for each in COMPONENTS
        if sizes.get(each, 0) > limits[each] and _is_news(sizes[each], notified.get(each), now)
    )


def _is_news(size: int, told: SizeNotice | None, now: datetime) -> bool:
    return told is None or now - told.at >= QUIET or size * 10 >= told.size * 11


def seed_template(folder: Path, language: str, kept: Mapping[str, str] = NOTHING_KEPT) -> Template:
    """Return the seed of a language; English, with a warning, if it has no file (P-057, P-058).

    Raises: ConfigurationError when even `SEED_en.txt` cannot be used (P-059).
    """
    english = Template(folder, FALLBACK, kept)
    name = f"SEED_{language}.txt"
    if (folder / name).exists():
        return Template(folder, name, kept)
    log.warning("seed file missing name=%s used=%s", name, FALLBACK)
    return english


def event(kind: EventKind, event_id: str, text: str) -> str:
    """Return the event in the form that the model sees; `text` cannot close or open a tag of ours."""
    return f'<event kind="{kind}" id="{event_id}">\n{untagged(text.strip())}\n</event>'


def text_of(body: str) -> str:
    """Return the text of such an event, without its tags."""
    return body.partition("\n")[2].removesuffix("\n</event>")


@dataclass(frozen=True, slots=True)
class MemoryQuery:
    """The query for ranked memory; empty for an event.

    `in_view`: the memories in view already. `window`: tokens of the model's window. The hits that
    fit are recorded for `cast_id`, if given; once its cast has `begun`, the recorded ones are used.
    """

    query: Query | None = None
    cast_id: str | None = None
    begun: bool = False
    in_view: tuple[str, ...] = ()
    window: int = 0


class ContextBuilder:
    """Gathers the parts of a system prompt. Every part is read anew each time (P-001, P-005).

    It has all memories of a scope, as in their file (P-010), or the best that fit (P-011).
    """

    def __init__(
        self,
        stores: Stores,
        instructions: Instructions,
        clock: Clock,
        layout: Layout = "append",
        small: Instructions | None = None,
        top_k: int = TOP_K,
        runtime: Template | None = None,
    ) -> None:
        """Take the stores. `small`: the instructions for small models, if different.

        `top_k`: the most memories of a search. `runtime`: the text about recalling pages; None: no
        wiki.
        """
        self.layout: Layout = layout
        self._small = small or instructions
        self._stores = stores
        self._instructions = instructions
        self._clock = clock
        self._top_k = top_k
        self._runtime = runtime

    async def system(
        self,
        scope: str,
        tools: Collection[str],
        query: MemoryQuery | None,
        summary: str = "",
        size: Size = "full",
    ) -> str:
        """Return the system prompt for one scope and one set of tools."""
        parts = await self.shown(scope, tools, query, size)
        return assemble(
            parts if self.layout == "append" else replace(parts, summary=inert(summary))
        )

    async def shown(
        self,
        scope: str,
        tools: Collection[str],
        query: MemoryQuery | None = None,
        size: Size = "full",
    ) -> PromptParts:
        """Return the parts of the system message."""
        if self.layout == "append":
            return await self._stable_parts(scope, tools, size)
        return await self.all_parts(scope, tools, query, size)

    async def instructions(self, tools: Collection[str], size: Size) -> str:
        """Return the instructions for these tools."""
        return self._chosen(tools, size, await self._index(tools))

    def _chosen(self, tools: Collection[str], size: Size, index: str | None) -> str:
        of_size = self._small if size == "small" else self._instructions
        return chosen(of_size.sections(), tools, index)

    async def _index(self, tools: Collection[str]) -> str | None:
        """Return the index of the wiki, if the tools include recalling pages."""
        recalls = self._runtime is not None and RECALL in tools
        return await self._stores.wiki.index_text() if recalls else None

    async def all_parts(
        self,
        scope: str,
        tools: Collection[str],
        query: MemoryQuery | None = None,
        size: Size = "full",
    ) -> PromptParts:
        """Return all parts for this scope."""
        current = await self._changing_parts(scope, query)
        return replace(
            await self._stable_parts(scope, tools, size),
            now=current.now,
            memories=current.memories or "",
            ranked=current.ranked,
            tasks=current.tasks,
            skills=current.skills,
        )

    async def changing_parts(
        self, scope: str, query: MemoryQuery | None, size: Size, *, anew: bool
    ) -> ChangingParts | None:
        """Return the parts for a block; None if the layout has them in the system message."""
        if self.layout == "system":
            return None
        parts = await self._changing_parts(scope, query)
        if self._stores.memories.ranked and not parts.ranked and not anew:  # P-013
            parts = replace(parts, memories=None)
        if query is not None and query.in_view:
            parts = await self._checked(scope, parts, query.in_view)
        # Small models misread the sentence as a request to load something.
        return replace(parts, skills="") if size == "small" and parts.skills == LOAD else parts

    async def _stable_parts(self, scope: str, tools: Collection[str], size: Size) -> PromptParts:
        index = await self._index(tools)
        instructions = self._chosen(tools, size, index)
        if not instructions:
            raise ConfigurationError(
                "BASE_PROMPT.txt has no section for these tools: let one of them require always"
            )
        core = core_text(await self._stores.core.text(scope))
        runtime = self._runtime.text() if self._runtime else ""
        wiki = wiki_text(runtime, index)
        return PromptParts(instructions=instructions, core=core, wiki=wiki)

    async def _changing_parts(self, scope: str, query: MemoryQuery | None) -> ChangingParts:
        return ChangingParts(
            now=current_time(self._clock.now(), self._stores.tasks.zone.key),
            memories=await self._memory_lines(scope, query),
            ranked=self._stores.memories.ranked and query is not None and query.query is not None,
            tasks=task_lines(await self._stores.tasks.listed(scope)),
            skills=await self._skill_lines(),
        )

    async def sizes(self, scope: str) -> dict[Component, int]:
        """Return the characters of each part with a limit (P-048) that can be shortened in this scope.

        A ranked memory has no limit (P-052); skills and global tasks are the owner's.
        """
        tasks = await self._stores.tasks.listed(scope)
        sizes: dict[Component, int] = {}
        if not self._stores.memories.ranked:
            sizes["memories"] = len(flat_lines(await self._stores.memories.text(scope)))
        if self._stores.tasks.owner.owns(scope):
            sizes["skills"] = len(await self._skill_lines())
        else:
            tasks = tuple(task for task in tasks if task.scope == scope)
        return {**sizes, "tasks": len(task_lines(tasks))}

    async def _memory_lines(self, scope: str, query: MemoryQuery | None) -> str:
        memories = self._stores.memories
        if query is None or query.query is None or not memories.ranked:
            return flat_lines(await memories.text(scope))
        if query.cast_id is not None and query.begun:
            return await self._recorded_hits(query, scope)
        try:
            ranked = await memories.search(scope, query.query, self._top_k, awake=True)
        except MemoryUnavailable as error:  # no memories rather than wrong ones (P-014)
            log.warning("memory search failed scope=%s reason=%s", scope, error)
            await self._stores.health.failed("memory search")
            return ""
        hits = fitting(ranked, query.window)
        if query.cast_id is not None:
            await self._stores.recalls.recall(query.cast_id, hits)
        return ranked_lines([hit.fact.text for hit in hits_to_show(hits, query)])

    async def _checked(
        self, scope: str, parts: ChangingParts, in_view: Collection[str]
    ) -> ChangingParts:
        """Add which memories in view still hold; marks of left-out memories never match (M-088)."""
        shown = parts.lines.get(MEMORIES, ())
        lines = {line: texts_of(line) for line in in_view if line not in shown}
        asked = {text for texts in lines.values() for text in texts}
        facts = await self._stores.recalls.successors_of(scope, asked)
        known = {
            line: [facts[text] for text in texts if text in facts] for line, texts in lines.items()
        }
        over = {line: later[0] for line, later in known.items() if later and None not in later}
        untrue = ((line, one) for line, one in over.items() if one is not None)
        return replace(
            parts,
            untrue=tuple(untrue) if self._stores.memories.ranked else (),
            true=frozenset(line for line, later in known.items() if None in later),
        )

    async def _recorded_hits(self, query: MemoryQuery, scope: str) -> str:
        """Return the hits of the cast's beginning that still hold."""
        hits = await self._stores.recalls.recalled(query.cast_id or "", scope)
        return ranked_lines([hit.fact.text for hit in hits_to_show(hits, query)])

    async def _skill_lines(self) -> str:
        return skill_lines(await self._stores.skills.listed())


def texts_of(line: str) -> tuple[str, ...]:
    """Return the facts that a line in view may show, from a list or a search."""
    text = line.removeprefix("- ")
    return (text, *entries(text.removeprefix("\\").replace("&lt;", "<")))


def hits_to_show(hits: Sequence[Hit], query: MemoryQuery) -> list[Hit]:
    """Return the hits to show: all that fit, but few more if much is in view already."""
    most = min(MOST_IN_VIEW, query.window // 8) if query.window else MOST_IN_VIEW
    used = sum(map(estimate, query.in_view))
    shown: list[Hit] = []
    for place, hit in enumerate(hits):
        line = f"- {hit.fact.text}"
        if line not in query.in_view:
            used += estimate(line)
            if used > most and place >= BEST:
                continue
        shown.append(hit)
    return shown


class Oversize:
    """Remembers the sizes that were reported, so that nobody is nagged (P-051)."""

    def __init__(
        self,
        stores: Stores,
        gather: ContextBuilder,
        limits: ComponentSizeLimits,
        clock: Clock,
        kept: Mapping[str, str] = NOTHING_KEPT,
    ) -> None:
        self._gather = gather
        self._limits: Mapping[Component, int] = {
            "memories": limits.memories,
            "tasks": limits.tasks,
            "skills": limits.skills_total,
        }
        self._texts = {part: Template(stores.prompts, name, kept) for part, name in FILES.items()}
        self._places = stores.places
        self._health = stores.health
        self._clock = clock
        self._fits: set[str] = set()  # lists known to fit in this process

    async def sizes(self, scope: str) -> Mapping[Component, int]:
        """Return the sizes of this scope's parts, in characters."""
        return await self._gather.sizes(scope)

    async def notices(
        self, tx: Transaction, scope: str, sizes: Mapping[Component, int]
    ) -> list[str]:
        """Return the texts of the events to queue now, in order; record that they were sent."""
        notified = await self._notified(tx, scope)
        for component in notified.keys() & sizes:
            # It can be reported again when it grows.
            if sizes[component] <= self._limits[component]:
                del notified[component]
                await tx.execute(
                    "DELETE FROM oversize WHERE scope = ? AND component = ?", (scope, component)
                )
        due = components_to_report(sizes, self._limits, notified, self._clock.now())
        for component in due:
            await tx.execute(
                "INSERT INTO oversize (scope, component, size, notified_at) VALUES (?, ?, ?, ?)"
                " ON CONFLICT (scope, component) DO UPDATE SET size = excluded.size,"
                " notified_at = excluded.notified_at",
                (scope, component, sizes[component], stamp(self._clock.now())),
            )
        return [self._text(component, sizes[component], scope) for component in due]

    async def note(self, scope: str, left_out: int) -> None:
        """Record how many memories of a list did not fit, for a status and for `/why` (M-092)."""
        name = self._places.shown_memories(scope)
        if left_out:
            self._fits.discard(name)
            await self._health.note(name, "warn", LIST_TOO_LONG.format(n=left_out))
        elif name not in self._fits:
            self._fits.add(name)
            if await self._health.part(name):
                await self._health.note(name, "ok")

    def _text(self, component: Component, size: int, scope: str) -> str:
        values = {"size": str(size), "limit": str(self._limits[component])}
        if component == "memories":
            values["file"] = self._places.shown_memories(scope)
        return fill(self._texts[component].text(), values)

    async def _notified(self, tx: Transaction, scope: str) -> dict[Component, SizeNotice]:
        query = "SELECT component, size, notified_at FROM oversize WHERE scope = ?"
        rows = await tx.rows(query, (scope,))
        return {
            row["component"]: SizeNotice(row["size"], moment(row["notified_at"])) for row in rows
        }


@dataclass(frozen=True, slots=True)
class PromptTexts:
    """All prompt texts; no seed if it is disabled. `small`: the instructions for small models."""

    instructions: Instructions
    small: Instructions
    seed: Template | None
    compaction: Template
    worker: Template
    small_worker: Template
    task_run: Template
    harvest: Template
    split: Template
    reconstruction: Template
    core_update: Template
    dream_memories: Template
    dream_dedup: Template
    dream_contradiction: Template
    dream_tasks: Template
    dream_skills: Template
    runtime: Template
    consolidation: Template
    kept: Mapping[str, str]
    """Last valid texts by name."""

    def outdated(self, layout: Layout, sizes: Collection[Size]) -> str | None:
        """Return the advice if the instructions for these sizes do not explain blocks; or None."""
        read = {"full": self.instructions, "small": self.small}
        advice = (read[size].outdated(layout) for size in sorted(sizes))
        return next(filter(None, advice), None)


def read_texts(
    folder: Path, seed: Seed, kept: Mapping[str, str] = NOTHING_KEPT, wiki: Wiki | None = None
) -> PromptTexts:
    """Read all prompt files. `kept`: last valid texts by name, for broken files (F-031).

    `wiki`: may name other files for its own two. Raises: ConfigurationError for a file that cannot
    be used (P-030, P-059, P-066).
    """
    for name in shipped_prompts():
        if not name.startswith("SEED_"):
            Template(folder, name, kept)
    language = seed_template(folder, seed.language, kept)
    wiki = wiki or Wiki()
    return PromptTexts(
        instructions=Instructions(folder, kept),
        small=Instructions(folder, kept, FILE_SMALL),
        seed=language if seed.enabled else None,
        compaction=Template(folder, "COMPACTION_PROMPT.txt", kept),
        worker=Template(folder, "WORKER_MINIMAL.txt", kept),
        small_worker=Template(folder, "WORKER_MINIMAL.small.txt", kept),
        task_run=Template(folder, "TASK_RUN.txt", kept),
        harvest=Template(folder, "MEMORY_HARVEST_PROMPT.txt", kept),
        split=Template(folder, "SPLIT_PROMPT.txt", kept),
        reconstruction=Template(folder, "RECONSTRUCTION_PROMPT.txt", kept),
        core_update=Template(folder, "CORE_UPDATE_PROMPT.txt", kept),
        dream_memories=Template(folder, "DREAM_MEMORIES_PROMPT.txt", kept),
        dream_dedup=Template(folder, "DREAM_DEDUP_PROMPT.txt", kept),
        dream_contradiction=Template(folder, "DREAM_CONTRADICTION_PROMPT.txt", kept),
        dream_tasks=Template(folder, "DREAM_TASK_PROMPT.txt", kept),
        dream_skills=Template(folder, DREAM_SKILLS, kept),
        runtime=Template(folder, _name(folder, wiki.runtime_prompt, RUNTIME), kept),
        consolidation=Template(
            folder, _name(folder, wiki.consolidation_prompt, CONSOLIDATION), kept
        ),
        kept=kept,
    )


def _name(folder: Path, named: Path | None, shipped: str) -> str:
    """Return a template's name in the folder, or the whole path of one outside."""
    if named is None:
        return shipped
    return named.relative_to(folder).as_posix() if named.is_relative_to(folder) else str(named)
