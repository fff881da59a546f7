"""The door of time: what is due is claimed here, said, or worked on."""
