"""Consolidation of conversations into pages of the wiki, which cite their sources."""
