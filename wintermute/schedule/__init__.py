"""The door of time: due tasks are claimed, and a reminder is sent or a run is started."""
