"""Local language models inside your notebook: `%load_ext llm_magic`, or `llm_magic.load()`."""

__version__ = "0.1.0"
