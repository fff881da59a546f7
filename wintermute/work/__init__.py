"""Stored work: one runner for sub-sessions, autonomous runs and jobs."""
