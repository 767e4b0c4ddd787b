"""What a notebook costs: `%%llm` in a real kernel against `llm.stream` in the same kernel.

Both are tokens a second over the whole call, so a cell pays for its display, its updates and its
last, full state.
"""

import json
import sys
from typing import Any

from ..errors import RequestError

PROMPT = "Once upon a time, in a village by the sea, there lived"
SECONDS = 300.0

SETUP = """
import json, time, llm_magic
from llm_magic.hub import hub
from llm_magic.providers.local import Local
from llm_magic.llm import LLM
from llm_magic.events import Finish
local = Local("bench", __import__("pathlib").Path({path!r}), threads={threads}, gate=hub.gate)
local.wait(lambda progress: None)
hub.add("bench", LLM(local))
get_ipython().run_line_magic("load_ext", "llm_magic")
"""
CELL = """
start = time.perf_counter()
get_ipython().run_cell_magic("llm", "-m bench --complete -t 0 -n {n}", {prompt!r})
seconds = time.perf_counter() - start
print("\\n" + json.dumps([_llm.usage.completion, seconds]))
"""
STREAM = """
start = time.perf_counter()
for event in hub.get("bench").stream({prompt!r}, temperature=0, max_tokens={n}):
    if isinstance(event, Finish):
        tokens = event.usage.completion
seconds = time.perf_counter() - start
print("\\n" + json.dumps([tokens, seconds]))
"""


class Notebook:
    """A kernel with the model loaded, and a client that reads all that it shows."""

    def __init__(self, path: str, threads: int) -> None:
        from jupyter_client.manager import KernelManager

        manager: Any = KernelManager(kernel_name="python3")
        manager.kernel_spec.argv[0] = sys.executable
        self._manager = manager
        self._manager.start_kernel(extra_arguments=["--log-level=ERROR"])
        self._client: Any = self._manager.blocking_client()
        self._client.start_channels()
        try:
            self._client.wait_for_ready(timeout=SECONDS)
            self._run(SETUP.format(path=path, threads=threads))
        except BaseException:
            self.close()
            raise

    def cell(self, n: int) -> float:
        """Tokens a second of a cell of n tokens."""
        return self._rate(CELL.format(n=n, prompt=PROMPT))

    def stream(self, n: int) -> float:
        """Tokens a second of a loop over the events of `llm.stream`."""
        return self._rate(STREAM.format(n=n, prompt=PROMPT))

    def _rate(self, code: str) -> float:
        text = self._run(code)
        tokens, seconds = json.loads(text.strip().splitlines()[-1])
        if not tokens:
            raise RequestError("the model ended at once")
        return float(tokens) / float(seconds)

    def _run(self, code: str) -> str:
        """What the code printed. RequestError with its exception if it failed."""
        said: list[str] = []

        def hear(message: dict[str, Any]) -> None:
            if message["msg_type"] == "stream":
                said.append(message["content"]["text"])

        answer = self._client.execute_interactive(
            code, allow_stdin=False, output_hook=hear, timeout=SECONDS
        )
        content = answer["content"]
        if content["status"] != "ok":
            raise RequestError(f"{content.get('ename')}: {content.get('evalue')}"[:300])
        return "".join(said)

    def close(self) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)

    def __enter__(self) -> "Notebook":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
