"""Actions of a person that several doors share and that take more than one step."""
