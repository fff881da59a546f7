"""Lines that start with `/`: the same at every door, and none needs a model."""
