"""Tools that the model may call."""
