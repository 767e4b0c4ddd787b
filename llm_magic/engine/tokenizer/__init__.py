"""Text <-> token ids, from the metadata of a GGUF file."""
