"""What a night does, put together: each phase by its name, and what its items do."""

from collections.abc import Sequence

from wintermute.config.schema import Dreaming
from wintermute.conversation.asking import Folding
from wintermute.forgetting.deeds import Deed, Deeds, ListDeed
from wintermute.forgetting.forget_jobs import ForgetLines
from wintermute.jobs import FORGET
from wintermute.memory.likeness import Likeness
from wintermute.night.catching_up import CatchUp
from wintermute.night.contradictions import Contradictions
from wintermute.night.dedup import Dedup
from wintermute.night.fact_deeds import EndFact, MergeFacts
from wintermute.night.housekeeping import Housekeeping
from wintermute.night.idle import FoldIdle, Pages
from wintermute.night.resting import RestFacts, Stale
from wintermute.night.rewriting import Export, ListRewriting, RemoveLines, RewriteList
from wintermute.night.skill_review import SkillReview
from wintermute.night.task_review import ChangeTask, TaskReview
from wintermute.night.tidying import Chore, NightPhase, PhaseWork, Programme, Tidying
from wintermute.pages.page_writer import WriterPrompts
from wintermute.stores import Stores
from wintermute.templates import Template
from wintermute.work.data_folder import DataFolder


def _of_facts(own: DataFolder) -> Sequence[NightPhase]:
    """What looks at facts; a list is rewritten whole instead (M-055, M-062)."""
    stores, texts, wanted = own.stores, own.texts, own.config.dreaming
    if not stores.memories.ranked:
        return (ListRewriting(stores, texts.dream_memories),)
    same, least = wanted.dedup_similarity, wanted.contradiction_similarity
    likeness = Likeness(stores.database, stores.facts, stores.meaning, least, same)
    return (
        Dedup(stores, likeness, texts.dream_dedup, same),
        Contradictions(stores, likeness, texts.dream_contradiction, same),
        Stale(stores, wanted),
    )


def _of_chats(own: DataFolder) -> Sequence[Chore]:
    """What is done with conversations in which nobody speaks any more."""
    stores, texts, clock = own.stores, own.texts, own.clock
    plan, page = (
        Template(stores.prompts, f"consolidation/{name}.md", texts.kept)
        for name in ("plan", "page")
    )
    prompts, backend = WriterPrompts(texts.consolidation, plan, page), own.config.wiki.model
    context, hidden = own.config.context, own.config.tools.ephemeral

    def folding(work: PhaseWork) -> Folding:
        return Folding(stores, work.models, texts.compaction, context, hidden, work.night.id)

    return (
        Pages(stores, prompts, backend, own.redact, clock),
        FoldIdle(stores, folding, clock),
    )


def deeds(stores: Stores, dreaming: Dreaming) -> Deeds:
    """Build what is done for items of a night: by the night itself, or by a person's yes."""
    by_word: dict[str, Deed] = {
        "merge": MergeFacts(stores),
        "end": EndFact(stores),
        "rest": RestFacts(stores, dreaming),
        "task": ChangeTask(stores),
        FORGET: ForgetLines(stores),
    }
    lists: dict[str, ListDeed] = {"list": RewriteList(stores), "lines": RemoveLines(stores)}
    return Deeds(stores, by_word, lists, stores.undo.files)


def tidying(own: DataFolder) -> Tidying:
    """The night of a configuration, built on what is open."""
    stores = own.stores
    programme = Programme(
        first=[CatchUp(stores, own.config, own.texts, own.clock)],
        facts=_of_facts(own),
        export=[Export(stores)],
        more=[
            TaskReview(stores, own.texts.dream_tasks),
            SkillReview(stores, own.texts.dream_skills, own.config.dreaming.dedup_similarity),
        ],
        last=_of_chats(own),
        closing=[Housekeeping(stores, own.clock)],
    )
    budget = own.config.dreaming.budget_tokens
    return Tidying(stores, programme, deeds(stores, own.config.dreaming), own.models, budget)
