"""Long-term memory: atomic facts, each belonging to one person or one room."""
