"""What is done unattended at night: its phases, their answers, and the report of the morning."""
