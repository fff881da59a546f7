"""Sub-sessions: work that a cast hands out, waited for or not, alone or as a workflow."""
