"""Agent `builtin`: a model plans the pages for a conversation, then writes each of them.

    conversation ─ parts ─▶ plan (JSON) ─▶ for each page: its current text, and the part ─▶ the page
                                 │ cut off, wrong shape, wrong path: one more try, then refused

A model's answer is data: its form is checked here, and its effect on the wiki by the verdict. The line that
cites the conversation is added by us (W-078).
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, cast

from wintermute.errors import AnswerUnusable, FileUnusable
from wintermute.files import run_uncancelled
from wintermute.llm.background import BackgroundModels
from wintermute.llm.calls import QuestionSources
from wintermute.llm.json_answer import InvalidAnswer, require_keys
from wintermute.llm.tokens import estimate
from wintermute.messages import Json, Reply
from wintermute.pages.agents import CONVERSATION, PageTask, PageWork
from wintermute.pages.page_lines import LineOrigins, find_origins, strip_marks, with_new_lines
from wintermute.pages.sources import Consolidations
from wintermute.secret_shapes import without_secrets
from wintermute.templates import Template, fill
from wintermute.text import clean, one_line, shortened, untagged
from wintermute.wiki.folder import FileChange
from wintermute.wiki.links import (
    ENDING,
    INDEX,
    RAW,
    Names,
    Unresolved,
    alike,
    is_open_fence,
    is_page,
    links_in,
    name_of,
    resolve,
    unlinked,
)
from wintermute.wiki.page_jobs import text_at
from wintermute.wiki.pages import (
    MOST_INDEX_LINES,
    MOST_TOKENS,
    examined,
    text_of,
    tokens,
    without_matter,
)
from wintermute.wiki.verdict import UNLINKABLE, StoreView, path_problem, shortest_link
from wintermute.wiki.withheld_lines import with_withheld, withheld_lines, without_withheld

ROLE = "dreaming"
MOST_PAGES = 20
"""Pages of one plan."""
MOST_PIECE = 16_000
SHARE = 0.4
"""Limits of a conversation's part: tokens, and part of the model's window."""
INDEX_SHARE = 0.1
NAMES_SHARE = 0.1
"""Parts of the window for the index and for the names of pages."""
ALL_NAMES = 100
"""Names up to which all are shown; of more, only those that fit the conversation."""
SOURCE = re.compile(rf"^Source: \[\[{RAW}/[^\[\]|#\n]+\]\]$", re.MULTILINE)
FENCE = re.compile(r"\A```[a-zA-Z]*[ \t]*\n(.*?)\n?```\Z", re.DOTALL)
SECOND = re.compile(r"^---[ \t]*\n(?:created|updated):", re.MULTILINE)
WORDS = re.compile(r"\w+")
MOST_REASON = 300
AGAIN = (
    "That cannot be used: {error}. Answer once more, with the whole page alone, beginning with its"
    " line of three dashes."
)
OF_FILES = "\n## How to change the files\n"
"""Heading in the instructions of the section for programs that work on a copy."""
NOTHING = "(none)"
NEW = "(there is none yet)"


@dataclass(frozen=True, slots=True)
class PlannedPage:
    """Page of a plan."""

    path: str
    action: Literal["create", "update"]
    reason: str


@dataclass(frozen=True, slots=True)
class WriterPrompts:
    """Prompts: general instructions, for a plan, and for a page."""

    instructions: Template
    plan: Template
    page: Template


def split_parts(blocks: Sequence[str], room: int) -> list[dict[int, str]]:
    """Split a conversation into parts of at most `room` tokens, or one message; keys are message numbers."""
    parts: list[dict[int, str]] = []
    left = 0
    for n, block in enumerate(blocks, 1):
        cost = estimate(block)
        if not parts or cost > left:
            parts.append({})
            left = room
        parts[-1][n] = block
        left -= cost
    return parts


def parse_plan(answer: Json, view: StoreView) -> tuple[PlannedPage, ...]:
    """Read the pages of a plan, each once (W-078). Raises: Unfit."""
    require_keys(answer, "pages")
    pages = answer["pages"]
    if not isinstance(pages, list) or not all(isinstance(each, dict) for each in pages):
        raise InvalidAnswer('"pages" must be a list of objects')
    if len(pages) > MOST_PAGES:
        raise InvalidAnswer(f"it names {len(pages)} pages: at most {MOST_PAGES} are allowed")
    named = [_planned(each, view) for each in pages]
    return tuple({page.path: page for page in reversed(named) if page.path != INDEX}.values())[::-1]


def _planned(page: Json, view: StoreView) -> PlannedPage:
    require_keys(page, "path", "action", "reason")
    if not all(isinstance(value, str) for value in page.values()):
        raise InvalidAnswer('"path", "action" and "reason" must be texts')
    if page["action"] not in ("create", "update"):
        raise InvalidAnswer('"action" must be "create" or "update"')
    path = _path(page["path"].strip(), view.names)
    if problem := path_problem(path):
        raise InvalidAnswer(f"{path[:80]!r} {problem}", "one of its paths is not a page's")
    action = "update" if path in view.names.paths else "create"
    reason = shortened(one_line(page["reason"]), MOST_REASON)
    return PlannedPage(path, cast("Literal['create', 'update']", action), reason)


def _path(given: str, names: Names) -> str:
    """Return the path of a planned page; an existing page with the same name is used."""
    path = given if given.endswith(ENDING) else given + ENDING
    if path in names.paths or path == INDEX:
        return path
    if "/" in path and path_problem(path):
        return path
    name = alike(name_of(path))
    same = [each for each in names.paths if is_page(each) and alike(name_of(each)) == name]
    return min(same) if len(same) == 1 else path


def parse_page(reply: Reply, title: str) -> str:
    """Read exactly one page from an answer (W-078). Raises: Unfit."""
    if not reply.is_whole:
        raise InvalidAnswer("it was cut off before its end: make it shorter")
    text = clean(reply.text).strip()
    if fenced := FENCE.match(text):
        text = fenced[1].strip()
    problems, body = examined(f"{text}\n")
    if problems:
        raise InvalidAnswer(f"its beginning is wrong: {problems[0]}", "its frontmatter is wrong")
    if SECOND.search(body):
        raise InvalidAnswer("it holds more than one page")
    if is_open_fence(body):
        raise InvalidAnswer("a block of code in it does not end")
    head, content = f"{text}\n".removesuffix(body).rstrip(), without_sources(body)
    text = "\n\n".join(
        [head, content] if content.startswith("# ") else [head, f"# {title}", content]
    )
    if tokens(len(text)) > MOST_TOKENS:
        raise InvalidAnswer(f"it is too long: at most {MOST_TOKENS} tokens")
    return text


def with_citation(text: str, raw: str, citation: str, before: str = "") -> str:
    """Return a page with its source line, and those it had before."""
    sources = [f"Source: [[{citation}]]"]
    if any(link.startswith(f"{raw}/") for link in links_in(text)):
        sources = []
    known = {f"Source: [[{link}]]" for link in links_in(text)}
    lines = [line for line in (*SOURCE.findall(before), *sources) if line not in known]
    end = "\n".join(dict.fromkeys(lines))
    return f"{text.rstrip()}\n\n{end}\n" if end else text


def without_sources(text: str) -> str:
    """Return a page without its source lines, as a model is shown it."""
    return re.sub(r"\n{3,}", "\n\n", SOURCE.sub("", text)).strip()


class KnownNames:
    """Index of page names by their words."""

    def __init__(self, names: Names) -> None:
        pages = filter(is_page, names.paths)
        self._words = {shortest_link(names, path): _words(name_of(path)) for path in pages}
        self._of_word: dict[str, list[str]] = {}
        for name, words in self._words.items():
            for word in words:
                self._of_word.setdefault(word, []).append(name)

    def about(self, text: str, room: int) -> list[str]:
        """Return names of pages that fit a text, best first, within a number of tokens."""
        known: Iterable[str] = sorted(self._words)
        if len(self._words) > ALL_NAMES:
            said = _words(text)
            near = {name for word in said for name in self._of_word.get(word, ())}
            known = sorted(near, key=lambda name: (-_share_said(self._words[name], said), name))
        names: list[str] = []
        for name in known:
            room -= estimate(name) + 1
            if room < 0:
                break
            names.append(name)
        return names


def _words(text: str) -> frozenset[str]:
    return frozenset(word for word in WORDS.findall(text.casefold()) if len(word) > 1)


def _share_said(words: Collection[str], said: Collection[str]) -> float:
    """Return the part of a name's letters that are in the text."""
    return sum(len(word) for word in words if word in said) / sum(map(len, words))


def _no_progress(_step: str) -> None:
    """Ignore progress."""


class PageWriter:
    """Agent that asks a model for a plan, then for each page."""

    def __init__(
        self,
        models: BackgroundModels,
        prompts: WriterPrompts,
        kept: Consolidations | None = None,
        progress: Callable[[str], None] = _no_progress,
        backend: str | None = None,
    ) -> None:
        """`kept`: checks that the messages are unchanged. `progress`: called for each step.

        `backend`: model server used instead of the models of the role.
        """
        self._models = models
        self._backend = backend
        self._prompts = prompts
        self._records = kept
        self._progress = progress

    async def pages(self, task: PageTask) -> PageWork:
        """Plan and write pages. Raises: ModelError; AnswerUnusable; QuestionWithdrawn."""
        texts: dict[str, FileChange] = {}
        lines: dict[str, LineOrigins] = {}
        plan: list[PlannedPage] = []
        failed: dict[str, AnswerUnusable] = {}
        base_view = task.view.after((), [f"{task.raw}/{name}" for name, _ in task.transcript.files])
        window = self._models.window(ROLE, self._backend)
        known_names = KnownNames(task.view.names)
        parts = split_parts(task.transcript.blocks, min(MOST_PIECE, int(SHARE * window)))
        for n, part in enumerate(parts, 1):
            text = "\n".join(part.values())
            self._progress(f"part {n} of {len(parts)}: which pages it is about")
            view = base_view.after(texts.values())
            names = known_names.about(text, int(NAMES_SHARE * window))
            names += [shortest_link(view.names, path) for path in texts]
            pages = await self._plan(task, view, text, list(dict.fromkeys(names)), window)
            plan += pages
            names += [shortest_link(view.names, page.path) for page in pages]
            shown = _Shown(part, tuple(names), view)
            for k, page in enumerate(pages, 1):
                self._progress(f"part {n} of {len(parts)}: {page.path} ({k} of {len(pages)})")
                known, told = texts.get(page.path), lines.get(page.path, {})
                try:
                    done = await self._page(task, page, shown, known, told)
                except AnswerUnusable as problem:  # one bad page does not cost the others
                    failed[page.path] = problem
                else:
                    texts[page.path], lines[page.path] = done
        if failed and not texts:
            raise next(iter(failed.values()))
        view = base_view.after(texts.values())
        for path, change in texts.items():
            left = _dead(change.after or "", change.before or "", view)
            after = unlinked(change.after or "", left)
            texts[path] = replace(change, after=after)
            lines[path] = with_new_lines(lines[path], change.after, after)
        planned_pages = [{"path": p.path, "action": p.action, "reason": p.reason} for p in plan]
        reasons = [f"- {page.path}: {page.reason}" for page in plan] or ["Nothing is worth a page."]
        reasons += [f"- {path} was not written: {problem}" for path, problem in failed.items()]
        return PageWork(
            tuple(texts.values()),
            frozenset(page.path for page in plan),
            stdout=json.dumps({"pages": planned_pages}, indent=1, ensure_ascii=False) + "\n",
            report="\n".join(reasons) + "\n",
            lines=lines,
        )

    async def _plan(
        self, task: PageTask, view: StoreView, transcript: str, names: Sequence[str], window: int
    ) -> tuple[PlannedPage, ...]:
        index = await run_uncancelled(partial(text_at, task.store.files, INDEX))
        index = task.store.shown(index or "")
        shown = "\n".join(without_matter(index).splitlines()[:MOST_INDEX_LINES])
        values = {
            "instructions": self._instructions(task),
            "entries": _listed(names),
            "index": shortened(shown, int(INDEX_SHARE * window) * 3),
            "transcript": transcript,
        }
        template = self._prompts.plan.text()
        return await self._models.answer_in_json(
            *(ROLE, template, values, lambda found: parse_plan(found, view)),
            sources=self._sources(task),
            backend=self._backend,
        )

    async def _page(
        self,
        task: PageTask,
        page: PlannedPage,
        shown: "_Shown",
        known: FileChange | None,
        told: LineOrigins,
    ) -> tuple[FileChange, LineOrigins]:
        """Write one page; return it and the origins of its new lines. `told`: origins from the part before."""
        if known is None:
            known = await run_uncancelled(partial(_current, task, page.path))
        whole, asked = (
            known.after or "",
            await run_uncancelled(partial(withheld_lines, task.store.files)),
        )
        now, title = without_withheld(whole, asked), name_of(page.path)
        names = dict.fromkeys((*shown.names, *_page_links(now, shown.view)))
        values = {
            "path": page.path,
            "action": page.action,
            "reason": page.reason,
            "title": title,
            "page": without_sources(now) or NEW,
            "entries": _listed(
                [name for name in names if name not in (title, page.path.removesuffix(ENDING))]
            ),
            "transcript": "\n".join(f"[{n}]\n{block}" for n, block in shown.part.items()),
        }
        question = fill(
            self._prompts.page.text(),
            {name: untagged(value) for name, value in values.items()}
            | {"instructions": self._instructions(task), "today": task.today.isoformat()},
        )
        answers: list[str] = []

        def read(reply: Reply) -> str:
            answers.append(parse_page(reply, title))
            if len(answers) == 1 and (dead := _dead(answers[0], now, shown.view, names)):
                told = "link only to pages of the list, and write other names without brackets"
                raise InvalidAnswer(
                    f"[[{dead[0]}]] leads nowhere: {told}", "a link in it leads nowhere"
                )
            return answers[-1]

        text = await self._models.checked_answer(
            *(ROLE, question, read, AGAIN), sources=self._sources(task), backend=self._backend
        )
        # Secrets are removed here as before storing (M-083), so that digests of lines match.
        text, marks = strip_marks(without_secrets(text, whole), now, shown.part)
        events = dict(enumerate(task.transcript.sources, 1))
        said = {n: (block, events.get(n, ())) for n, block in shown.part.items()}
        text = with_withheld(with_citation(text, task.raw, _citation(task), now), whole, asked)
        return replace(known, after=text), find_origins(text, whole, marks, said, told)

    def _instructions(self, task: PageTask) -> str:
        """Return the instructions without the section for programs."""
        instructions = self._prompts.instructions.text().partition(OF_FILES)[0]
        return instructions.strip().replace(CONVERSATION, task.raw)

    def _sources(self, task: PageTask) -> QuestionSources | None:
        events = tuple(dict.fromkeys(event for event, _ in task.transcript.events))
        if self._records is None or not events:
            return None
        return QuestionSources(events, partial(self._records.is_unchanged, task.transcript.part))


@dataclass(frozen=True, slots=True)
class _Shown:
    """Input shared by the pages of a plan: a part of the conversation, and names to link to."""

    part: Mapping[int, str]
    names: tuple[str, ...]
    view: StoreView


def _current(task: PageTask, path: str) -> FileChange:
    """Return a page as a change from its bytes to its current text. Raises: FileUnusable."""
    content = task.store.files.content(path)
    if content is None:
        return FileChange(path, None, None)
    try:
        exact = content.decode()
    except UnicodeDecodeError as error:
        raise FileUnusable(f"{path} is not UTF-8: it cannot be changed") from error
    return FileChange(path, exact, text_of(content))


def _citation(task: PageTask) -> str:
    """Return the link that cites the whole conversation: its first message that was said."""
    names = [name for name, _ in task.transcript.files if not UNLINKABLE & {*name}]
    said = [name for name in names if not name.endswith("system.md")]
    return f"{task.raw}/{(said or names or [''])[0].removesuffix(ENDING)}"


def _page_links(text: str, view: StoreView) -> Iterator[str]:
    for link in links_in(text):
        path = resolve(link, view.names, view.look, near=False)
        if isinstance(path, str) and is_page(path):
            yield link


def _dead(text: str, before: str, view: StoreView, names: Collection[str] = ()) -> tuple[str, ...]:
    """Return a text's links that lead nowhere, without those it had `before` (M-094).

    `names`: pages that will exist.
    """
    return tuple(
        link
        for link in links_in(text)
        if link not in names
        and isinstance(resolve(link, view.names, view.look, near=False), Unresolved)
        and link not in links_in(before)
    )


def _listed(names: Sequence[str]) -> str:
    return "\n".join(f"- {name}" for name in names) or NOTHING
