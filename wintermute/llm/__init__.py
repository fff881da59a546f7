"""Asking models: one OpenAI-compatible client with retries, failover and a record of every call."""
