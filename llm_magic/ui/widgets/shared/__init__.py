"""What the chat and the explorer share: threads, the page protocol, tokens, settings."""
