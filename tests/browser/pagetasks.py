"""How long the tasks of a page's main thread take, in milliseconds of CPU, from Chromium's trace.

CPU time is measured, not wall time: on two cores the browser, the server and the kernel wait for
each other. (Warm code takes 9.5-10.6 ms by this clock beside four busy processes, and 9.3-10.7
without.) Tasks that answer the test's own questions to the page do not count. So `work` should ask
nothing that makes the page lay itself out, such as the height of an element; keys, clicks and
`Notebook.quiet` are fine.

What a task does, it does every time; what falls into it by chance (the browser collects its
garbage, a neighbour empties the processor's caches) it does not: a task of 39 ms was once seen with
65. So `hold` looks again before it calls a task too long.
"""

import json
from collections.abc import Callable
from typing import Any

from playwright.sync_api import Browser, Page

LIMIT = 50.0  # ms: from here on a person feels it
ATTEMPTS = 3
CATEGORIES = ["toplevel", "devtools.timeline", "disabled-by-default-devtools.timeline"]


def milliseconds(browser: Browser, page: Page, work: Callable[[], None]) -> list[float]:
    """CPU time of each task of the page's main thread while `work` runs, longest first."""
    browser.start_tracing(page=page, categories=CATEGORIES)
    try:
        work()
    finally:
        trace = browser.stop_tracing()
    found = _tasks(json.loads(trace)["traceEvents"])
    assert len(found) > 50, f"an empty trace: {len(found)} tasks"
    return found


def hold(attempt: Callable[[], dict[str, list[float]]]) -> None:
    """Each part of `attempt`, {name: tasks}, stays under `LIMIT` in one of its runs."""
    runs: list[dict[str, float]] = []
    for _ in range(ATTEMPTS):
        runs.append({name: round(tasks[0], 1) for name, tasks in attempt().items()})
        best = {name: min(run[name] for run in runs) for name in runs[0]}
        if max(best.values()) <= LIMIT:
            break
    print("longest tasks of the page, ms of CPU:", *runs)
    assert max(best.values()) <= LIMIT, runs


def _tasks(events: list[dict[str, Any]]) -> list[float]:
    named = [e for e in events if e.get("name") == "thread_name"]
    main = {(e["pid"], e["tid"]) for e in named if e["args"]["name"] == "CrRendererMain"}
    ours = [e for e in events if (e["pid"], e["tid"]) in main]
    asked = [e["ts"] for e in ours if "DevToolsSession" in json.dumps(e.get("args", {}))]
    counted = [
        e["tdur"] / 1000
        for e in ours
        if e["name"] == "RunTask"
        and "tdur" in e
        and not any(e["ts"] <= ts <= e["ts"] + e["dur"] for ts in asked)
    ]
    return sorted(counted, reverse=True)
