"""Tools by name, installed or not, in sets by who may have them.

A new one belongs to one of these.
"""

WORKING = frozenset({"read_file", "write_file", "execute_shell", "search_web", "fetch_url", "done"})
PERSONAL = frozenset(
    {"append_memory", "task", "add_skill", "recall", "search_memory", "send_message", "send_file"}
)
DELEGATING = frozenset({"spawn_sub_session", "call_agent", "call_agent_batch"})
TOOLS = WORKING | PERSONAL | DELEGATING
"""Every tool of ours that a section of the instructions may name (L-003)."""
ATTENDED = frozenset({"night"})
"""Tools that need a person's word: never for sub-sessions."""
LOOKING = frozenset({"read_file", "recall", "search_memory", "search_web", "fetch_url", "done"})
"""Tools that change nothing."""
