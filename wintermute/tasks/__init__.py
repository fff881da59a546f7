"""Tasks: goals, reminders and autonomous runs, with their schedules and due moments."""
