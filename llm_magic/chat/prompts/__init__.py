"""Messages and tools -> the prompt a model was trained on."""
