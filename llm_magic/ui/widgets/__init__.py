"""Live notebook widgets: the chat and the reply explorer."""
