"""Implementations of `llm_magic.provider.Provider`."""
