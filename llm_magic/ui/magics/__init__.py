"""`%llm` and `%%llm`."""
