"""Forgetting: erases a text everywhere, in rows, facts, pages and files."""
