"""axe-core from npm, fetched once into the user's cache: accessibility rules for a page."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import platformdirs
import pytest
from playwright.sync_api import Locator

VERSION = "4.14.1"


def found() -> Path:
    """The script; where it cannot be had, the test is skipped."""
    script = _find()
    if script is None:
        pytest.skip("axe-core not found: npm, or LLM_MAGIC_AXE with the path of axe.min.js")
    return script


def _find() -> Path | None:
    """The script, installed if npm is here; None where it cannot be had."""
    if given := os.environ.get("LLM_MAGIC_AXE"):
        return Path(given)
    home = Path(platformdirs.user_cache_dir("llm_magic-tests")) / f"axe-{VERSION}"
    script = home / "node_modules" / "axe-core" / "axe.min.js"
    if not script.exists() and (npm := shutil.which("npm")):
        home.mkdir(parents=True, exist_ok=True)
        command = [
            npm,
            "install",
            "--no-audit",
            "--no-fund",
            "--ignore-scripts",
            "--prefix",
            str(home),
        ]
        try:
            subprocess.run([*command, f"axe-core@{VERSION}"], capture_output=True, timeout=120)
        except (OSError, subprocess.TimeoutExpired):
            return None
    return script if script.exists() else None


def faults(root: Locator, script: Path) -> list[str]:
    """Serious and critical faults of one element and all in it, one line each."""
    page = root.page
    if not page.evaluate("typeof window.axe !== 'undefined'"):
        # A plain script element would meet JupyterLab's AMD loader, which hides the global.
        wrapped = "(() => { const define = undefined, module = undefined;%s})()"
        page.evaluate("(source) => (0, eval)(source)", wrapped % script.read_text("utf-8"))
    found: list[dict[str, Any]] = root.evaluate(
        "async (el) => (await window.axe.run(el, {resultTypes: ['violations']})).violations"
    )
    return [
        f"{fault['id']} ({fault['impact']}): {fault['help']}: "
        + "; ".join(f"{n['html'][:160]} {n['failureSummary'][:200]}" for n in fault["nodes"][:3])
        for fault in found
        if fault["impact"] in ("serious", "critical")
    ]
