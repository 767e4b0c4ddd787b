"""The provider over servers that speak OpenAI's protocol: llama-server, vLLM, Ollama and others.

Importing this imports neither httpx nor anything else: whether a name is an address is a question
for every load.
"""

import re
from urllib.parse import urlsplit

_REMOTE = re.compile(r"https?://", re.I)


def is_address(name: str) -> bool:
    """Whether a model's name is the address of a server, and not of a file.

    >>> is_address("http://localhost:8080"), is_address("https://host/model.gguf")
    (True, False)
    """
    if not _REMOTE.match(name):
        return False
    try:
        return not urlsplit(name).path.lower().endswith(".gguf")
    except ValueError:
        return True  # it is no address of anything; connecting says so
