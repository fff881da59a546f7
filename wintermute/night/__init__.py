"""Nights: the phases of the nightly pipeline, answers to its questions, and the daily report."""
