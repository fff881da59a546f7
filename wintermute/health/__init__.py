"""What works and what does not, kept so that another process can ask."""
