"""Parts of the prompt that grow too long: the model is asked to shorten them, without nagging."""

import re
import shutil
from pathlib import Path

import pytest

from tests.world.house import ANN, HeldClock, House, house_at_work, open_house
from tests.world.model import (
    Calls,
    ContextTooLarge,
    Fail,
    ModelServer,
    Seen,
    Step,
    Text,
    Use,
    own_words,
)
from wintermute.changes.change_sets import Reason
from wintermute.config.schema import ComponentSizeLimits, Context
from wintermute.messages import Json
from wintermute.prompt.assemble import skill_lines, task_lines

OWNER = f"person:{ANN}"
WHY = Reason("command", OWNER)
ANY_SIZE = ComponentSizeLimits(memories=10**9, tasks=10**9, skills_total=10**9)
PROMPTS = Path(__file__).parent.parent / "data" / "prompts"


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    folder = tmp_path / "prompts"
    shutil.copytree(PROMPTS, folder)
    return folder


def oversize_events(model: ModelServer) -> list[str]:
    """The component_oversize events that the model was shown, in order."""
    return [seen.last_user for seen in model.requests if "component_oversize" in seen.last_user]


async def remember(house: House, text: str) -> None:
    async with house.database.transaction() as tx:
        await house.stores.facts.add(tx, WHY, text, "user_explicit", scope=OWNER)


async def sizes(house: House) -> dict[str, int]:
    return {str(name): size for name, size in (await house.gather.sizes(OWNER)).items()}


@pytest.mark.parametrize("component", ["memories", "tasks", "skills"])
async def test_a_part_is_told_of_one_character_above_its_limit(
    tmp_path: Path, prompts: Path, model: ModelServer, component: str
) -> None:
    """P-048, P-049: after the turn, in that room; at the limit not."""
    async with open_house(tmp_path, model.url, prompts=prompts) as house:
        await _fill(house, 3)
        size = (await sizes(house))[component]
    for room, limit in (("!a:test", size), ("!b:test", size - 1)):
        names = {"memories": "memories", "tasks": "tasks", "skills": "skills_total"}
        limits = ComponentSizeLimits(**{names[component]: limit})
        async with house_at_work(tmp_path, model.url, prompts=prompts, limits=limits) as house:
            await house.incoming("hello", room=room)
            await house.said(1, room)
            await house.settled()
            assert len(oversize_events(model)) == (1 if limit < size else 0)
            rows = await house.rows("SELECT room_id FROM inbox WHERE kind = 'event'")
            assert [row["room_id"] for row in rows] == ["!b:test"] * len(oversize_events(model))
    (text,) = oversize_events(model)
    assert component in text
    assert str(size) in text
    assert str(size - 1) in text
    wanted = {
        "memories": ("data/MEMORIES.txt", "read_file", "write_file"),
        "tasks": ("`task`",),
        "skills": ("read_file", "add_skill"),
    }
    assert all(word in text for word in wanted[component])


async def test_several_parts_are_told_of_in_order_and_not_again_for_a_day(
    tmp_path: Path, prompts: Path, model: ModelServer
) -> None:
    """P-050, P-051: unless one grew by a tenth."""
    clock = HeldClock()
    limits = ComponentSizeLimits(memories=10, tasks=10, skills_total=10)
    async with house_at_work(
        tmp_path, model.url, prompts=prompts, limits=limits, clock=clock
    ) as house:
        await _fill(house, 3)

        async def after(text: str) -> list[str]:
            before = len(oversize_events(model))
            await house.say(text)
            return [words.split("\n")[1] for words in oversize_events(model)[before:]]

        first = await after("one")
        assert len(first) == 3
        for name, line in zip(("memories", "tasks", "skills"), first, strict=True):
            assert name in line
        assert await after("two") == []
        await remember(house, "x" * len(await house.stores.memories.text(OWNER)))
        assert ["memories" in line for line in await after("three")] == [True]
        clock.advance(24 * 3600)
        assert len(await after("four")) == 3


async def test_a_part_that_was_shortened_may_be_told_of_anew(
    tmp_path: Path, prompts: Path, model: ModelServer
) -> None:
    """P-051: the day counts only while it stays too long."""
    limits = ComponentSizeLimits(memories=60)
    async with house_at_work(tmp_path, model.url, prompts=prompts, limits=limits) as house:
        await remember(house, "Ann " + "x" * 100)
        for text in ("one", "two", "three"):
            await house.say(text)
            if text == "one":
                (tmp_path / "MEMORIES.txt").write_text("Ann likes tea.\n")
            if text == "two":
                (tmp_path / "MEMORIES.txt").write_text("Ann " + "y" * 100)
    assert len(oversize_events(model)) == 2


async def test_only_what_can_be_shortened_here_is_told_of(
    tmp_path: Path, prompts: Path, model: ModelServer
) -> None:
    """P-048, P-049: skills and global tasks are the owner's, in the owner's own chat."""
    limits = ComponentSizeLimits(skills_total=10, tasks=10)
    async with house_at_work(tmp_path, model.url, prompts=prompts, limits=limits) as house:
        async with house.database.transaction() as tx:
            await house.stores.tasks.add(tx, WHY, "a task for everybody", scope="global")
        await house.incoming("hello", room="!b:test", sender="@bob:test", origin="other")
        await house.say("hello", room="!c:test", scope="room:!c:test", direct=False)
        assert oversize_events(model) == []
        await house.say("hello")
        assert len(oversize_events(model)) == 2


async def test_an_event_that_cannot_be_answered_holds_up_nobody(
    tmp_path: Path, prompts: Path, model: ModelServer
) -> None:
    """L-072, L-034: it is dropped, without a word."""
    model.keyed(lambda seen: Fail(503) if "component_oversize" in seen.last_user else None)
    limits = ComponentSizeLimits(skills_total=10)
    async with house_at_work(tmp_path, model.url, prompts=prompts, limits=limits) as house:
        await house.say("first")
        await house.say("second")
        assert await house.spoken() == ["echo: first", "echo: second"]
    assert len(oversize_events(model)) == 1


async def test_the_model_condenses_the_memories_it_was_asked_to(
    tmp_path: Path, prompts: Path, model: ModelServer
) -> None:
    """P-049, M-062: with read_file and write_file on the file of this scope; a line that goes
    missing is refused."""
    kept = "Ann drinks tea at 8 and at 17, never coffee."

    def behave(seen: Seen) -> Step | None:
        if "component_oversize" not in seen.last_user:
            return None
        done = [message for message in seen.messages if message["role"] == "tool"]
        if not done:
            return Calls((Use("read_file", {"path": "data/MEMORIES.txt"}),))
        if len(done) == 1:
            short = {"path": "data/MEMORIES.txt", "content": "Ann lives in Lyon.\n"}
            return Calls((Use("write_file", short),))
        if len(done) == 2:
            good = {"path": "data/MEMORIES.txt", "content": f"{kept}\nAnn lives in Lyon.\n"}
            return Calls((Use("write_file", good),))
        return Text(f"refused first: {done[1]['content']}")

    model.keyed(behave)
    limits = ComponentSizeLimits(memories=40)
    async with house_at_work(tmp_path, model.url, prompts=prompts, limits=limits) as house:
        for text in (
            "Ann drinks tea at 8.",
            "Ann drinks tea at 17, never coffee.",
            "Ann lives in Lyon.",
        ):
            await remember(house, text)
        await house.incoming("hello")
        said = (await house.said(2))[1]
        facts = [fact.text for fact in await house.stores.facts.live(OWNER)]
        text = await house.stores.memories.text(OWNER)
    assert "refused first: error: " in said
    assert sorted(facts) == sorted([kept, "Ann lives in Lyon."])
    assert text.splitlines() == [kept, "Ann lives in Lyon."]


def test_sizes_are_those_of_the_rendered_parts() -> None:
    """P-048: without the heading."""
    assert task_lines(()) == ""
    assert len(skill_lines(())) == 62


async def _fill(house: House, count: int) -> None:
    stores = house.stores
    for n in range(count):
        await remember(house, f"Ann has {n} cats")
        async with house.database.transaction() as tx:
            await stores.tasks.add(tx, WHY, f"feed cat {n}", scope=OWNER)
        await stores.skills.write(WHY, f"cat{n}", f"How to feed cat {n}", "With a spoon.")


WINDOW: Json = {"context_tokens": 12_000, "max_output_tokens": 1_000}


@pytest.mark.slow
async def test_memories_larger_than_the_window_go_in_as_far_as_they_fit(
    tmp_path: Path, model: ModelServer
) -> None:
    """F-023: the newest of them, marked as cut; history and question stay whole."""
    (tmp_path / "MEMORIES.txt").write_text("".join(f"fact {n} is true\n" for n in range(6_000)))
    model.keyed(lambda seen: Text(f"echo: {seen.last_user[:9]}", usage=None))
    async with house_at_work(
        tmp_path,
        model.url,
        prompts=PROMPTS,
        limits=ANY_SIZE,
        context=Context(keep_recent=1, fold_at=1.0),
        **WINDOW,
    ) as house:
        for number in ("one", "two", "three"):
            await house.incoming(f"question {number}{' word' * 300}")
        assert (await house.said(3)) == ["echo: question "] * 3
        kept = await house.rows(
            "SELECT context_block AS text FROM casts WHERE context_block LIKE '%# User Mem%'"
        )
    assert len(model.requests) == 3  # no folding for it
    prompt, others = model.requests[-1].prompt, model.requests[-1].messages[1:]
    (left,) = re.findall(r"\n\[… (\d+) memories left out to fit the model's window …\]\n", prompt)
    oldest = int(left)
    assert 4_000 < oldest < 5_900
    assert f"\nfact {oldest} is true\n" in prompt
    assert f"\nfact {oldest - 1} is true\n" not in prompt
    assert "\nfact 5999 is true\n" in prompt
    assert [own_words(m["content"]) for m in others if m["role"] == "user"] == [
        f"question {number}{' word' * 300}" for number in ("one", "two", "three")
    ]
    assert kept
    assert all("memories left out" in row["text"] for row in kept)


@pytest.mark.parametrize("refuses", [False, True])
@pytest.mark.parametrize(
    ("part", "help_with_it"), [("core memory", "`core.md`"), ("active tasks", "`/tasks cancel ID`")]
)
async def test_a_part_that_is_larger_than_the_window_is_named(
    tmp_path: Path, model: ModelServer, part: str, help_with_it: str, refuses: bool
) -> None:
    """F-023: with what helps, which `/new` does not; also when only the server knows the window."""
    model.keyed(lambda _: ContextTooLarge())
    window = {} if refuses else WINDOW
    async with house_at_work(
        tmp_path, model.url, prompts=PROMPTS, limits=ANY_SIZE, **window
    ) as house:
        if part == "core memory":
            (tmp_path / "core.md").write_text("# USER\n" + "- likes tea very much\n" * 6_000)
        else:
            async with house.database.transaction() as tx:
                for n in range(60):
                    await house.stores.tasks.add(
                        tx, WHY, f"{n} " + "many words " * 150, scope=OWNER
                    )
        await house.incoming("hello")
        (said,) = await house.said(1)
        assert f"the {part} alone" in said
        assert help_with_it in said
        assert "/new" not in said


async def test_a_room_that_no_answer_fits_hears_it_once(tmp_path: Path, model: ModelServer) -> None:
    """L-090: until one does, or the configuration is another; a status says it all the time."""
    core, large = tmp_path / "core.md", "# USER\n" + "- likes tea very much\n" * 6_000
    model.keyed(lambda seen: ContextTooLarge() if "tea very" in str(seen.messages) else Text("hi"))
    model.allow("edited core", "cutting", perhaps=True)

    async def heard(house: House, *said: str) -> list[str]:
        """Give the trouble that is told, each time after one of these."""
        before = len(await house.spoken())
        for text in said:
            await house.say(text)
        return [text.partition("alone")[0] for text in (await house.spoken())[before:]]

    async def state(house: House) -> str:
        await house.say("/status all")
        (line,) = [line for line in (await house.spoken())[-1].splitlines() if "prompt" in line]
        return line

    for window in (12_000, 12_500):
        asked: Json = {**WINDOW, "context_tokens": window, "limits": ANY_SIZE}
        core.write_text(large)
        async with house_at_work(tmp_path, model.url, prompts=PROMPTS, **asked) as house:
            (said,) = await heard(house, "hello", "hello?", "are you there")
            assert "core memory" in said
            assert "fail" in await state(house)
        async with house_at_work(tmp_path, model.url, prompts=PROMPTS, **asked) as house:
            assert await heard(house, "after a restart") == []
            core.write_text("# USER\n- likes tea\n")
            assert await heard(house, "and now?") == ["hi"]
            assert "ok" in await state(house)
            core.write_text(large)
            assert await heard(house, "hello", "hello?") == [said]
