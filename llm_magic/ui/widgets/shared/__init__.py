"""What the chat and the explorer both need: threads, page protocol, settings."""
