"""Assembly of the night: its phases in order, and the executors of their decisions."""

from collections.abc import Mapping, Sequence

from wintermute.changes.decisions import Decision
from wintermute.forgetting.executors import DecisionKind, Executors
from wintermute.night.archiving import Stale
from wintermute.night.catch_up import CatchUp
from wintermute.night.contradictions import Contradictions
from wintermute.night.dedup import Dedup
from wintermute.night.housekeeping import Housekeeping
from wintermute.night.idle_chats import FoldIdle, PagesPhase
from wintermute.night.pipeline import NightPhase, NightPipeline
from wintermute.night.rewriting import Export, ListRewriting
from wintermute.night.skill_review import SkillReview
from wintermute.night.task_review import TaskReview
from wintermute.stores import Stores
from wintermute.work.data_folder import DataFolder

Phases = Sequence[type[NightPhase]]
OF_FACTS: Phases = (Dedup, Contradictions, Stale)
OF_A_LIST: Phases = (ListRewriting,)
"""Phases for short lists: a list is rewritten whole instead of fact by fact (M-055, M-062)."""
IN_A_SCOPE: Sequence[Phases] = (
    (CatchUp,),
    OF_FACTS,
    OF_A_LIST,
    (Export,),
    (TaskReview,),
    (SkillReview,),
    (PagesPhase,),
    (FoldIdle,),
)
"""Phases of each scope, in order; phases in one group share a loss limit."""
ONCE: Phases = (Housekeeping,)
"""Phases that run once, after all scopes."""

PHASES = [phase for group in (*IN_A_SCOPE, ONCE) for phase in group]
USES: Mapping[str, str] = {phase.name: phase.use for phase in PHASES}
KINDS = {kind.name: kind for phase in PHASES for kind in phase.kinds}


def kind_of(item: Decision) -> DecisionKind:
    """Return the kind of a decision, with its texts."""
    name = item.kind
    other = (name, f"change of kind {name}", f"changes of kind {name}", f"{name}?", name)
    return KINDS.get(name) or DecisionKind(*other)


def night_executors(stores: Stores) -> Executors:
    """Build the executors of night decisions, for the night itself and for a person's yes."""
    return Executors(stores, {kind.name: kind.executor for kind in KINDS.values() if kind.executor})


def night_pipeline(own: DataFolder) -> NightPipeline:
    """Build the pipeline of a night from the configuration."""
    left_out = OF_A_LIST if own.stores.memories.ranked else OF_FACTS
    groups = [[phase(own) for phase in group] for group in IN_A_SCOPE if group is not left_out]
    budget, once = own.config.dreaming.budget_tokens, [phase(own) for phase in ONCE]
    return NightPipeline(own, groups, once, night_executors(own.stores), budget)
