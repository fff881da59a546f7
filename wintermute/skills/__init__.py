"""Procedures the assistant has learnt: one Markdown file each, its first line the summary."""
