"""What is done unattended."""
