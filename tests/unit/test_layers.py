"""Who may import whom, and what must not be imported until it is used.

The rule holds for every import of ours, those inside functions, under TYPE_CHECKING and by name in
a string included: a type that comes from above is a dependency like any other. What is read is
source; nothing is imported here, but for the lightness tests, which look at `sys.modules` of a
fresh process.
"""

import ast
import subprocess
import sys
from collections.abc import Container, Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "llm_magic"

# In each folder: lower may not import higher, and the rooms of one level do not import each other
# where they are listed under APART.
LEVELS = {
    "": (
        {"events", "errors", "utf8", "prefix", "columns", "json_types", "sampling"}
        | {"extension_points", "interpolation", "taps"},
        {"models"},
        {"engine"},
        {"chat"},
        {"provider"},
        {"providers", "arguments", "catalogue", "asked"},
        {"embedding", "decisions", "inside", "served"},
        {"tables", "divergence"},
        {"evaluation"},
        {"llm"},
        {"hub"},
        {"branching", "bench", "verify", "server", "reply_log", "harness"},
        {"ui"},
        {"__main__", ""},  # "" is the package itself: its lazy names reach everywhere
    ),
    "engine": (
        {"gguf_fields", "lowbit", "cpu", "rope"},
        {"gguf", "compiler", "compile_cache"},
        {"quants", "device", "blocks", "arch_keys"},
        {"arch_rope"},
        {"arch_rules"},
        {"arch_config"},
        {"tokenizer", "arch", "latent", "heap", "gate", "room"},
        {"forward"},
        {"portable", "kernels", "serving"},
        {"control_vectors", "load", "needs", "encoder"},
    ),
    "chat": (
        {"parsing"},
        {"schema", "json_values", "typed_values", "saved", "view_protocols", "origin"}
        | {"interrupts", "prompts"},
        {"constraints", "tools", "reply"},
        {"fold", "record"},
        {"stream"},
        {"exchanges", "turn", "thread"},
        {"conversation"},
    ),
    "providers.http": (
        {"addresses", "alarms", "items", "dialects", "logprobs", "failures", "sse", "alternation"},
        {"lanes", "calls", "chunks", "wire"},
        {"exchange", "limits", "fleet"},
        {"sender", "scores"},
        {"discover"},
        {"stream", "text", "prompts"},
        {"vectors"},
        {"remote"},
        {"connect"},
    ),
    "ui": (
        {"views", "options"},
        {"widgets"},
        {"reply_methods", "tables", "look_inside"},
        {"magics"},
    ),
    "ui.widgets": ({"shared"}, {"chat", "explorer", "inside"}),
}
APART = {
    "engine": {"tokenizer", "portable", "kernels", "serving"},
    "chat": {"prompts", "constraints", "tools"},
    "ui.widgets": {"chat", "explorer", "inside"},
}

# A heavy dependency belongs to one part; nobody else imports it. `__main__` may run notebooks.
ONLY = {
    "tinygrad": {"engine"},
    "tokenizers": {"engine"},
    "gguf": {"engine"},
    "jinja2": {"chat"},
    "llguidance": {"chat"},
    "jsonschema": {"chat"},
    "httpx": {"providers.http"},
    "httpx_sse": {"providers.http"},
    "starlette": {"server"},
    "uvicorn": {"server"},
    "huggingface_hub": {"models"},
    "lm_eval": {"harness"},
    "platformdirs": {"models"},
    "xllamacpp": {"bench"},
    "llama_cpp": {"bench"},
    "transformers": {"bench"},
    "torch": {"bench"},
    "IPython": {"ui"},
    "ipykernel": {"ui"},
    "ipywidgets": {"ui"},
    "anywidget": {"ui"},
    "matplotlib": {"ui"},
    "pandas": {"tables", "ui"},
    "polars": {"tables"},
    "markdown_it": {"ui"},
    "nh3": {"ui"},
    "pygments": {"ui"},
    "nbclient": {"__main__"},
    "nbformat": {"__main__"},
}

HEAVY = (
    *("tinygrad", "numpy", "tokenizers", "gguf", "jinja2", "llguidance"),
    *("httpx", "matplotlib", "anywidget", "ipywidgets"),
)


def _modules() -> dict[str, Path]:
    """Dotted name below the package ("" for the package itself) -> file."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = _modules()


def _imports(
    name: str, source: str, is_package: bool, modules: Container[str] = MODULES
) -> Iterator[tuple[int, str]]:
    """(line, absolute dotted name) of each import, `from . import x` as x where x is a module.

    A string that is the full name of a module of ours counts as an import of it.
    """
    here = ["llm_magic", *filter(None, name.split("."))]
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=aliases):
                yield from ((node.lineno, alias.name) for alias in aliases)
            case ast.ImportFrom(module=module, names=aliases, level=level):
                up = len(here) - level + is_package if level else 0
                base = [*here[:up], *filter(None, (module or "").split("."))]
                for alias in aliases:
                    if alias.name == "__version__":  # a constant: reaches nothing
                        continue
                    full = ".".join([*base, alias.name])
                    inner = full.removeprefix("llm_magic.")
                    yield node.lineno, full if inner in modules else ".".join(base)
            case ast.Call(func=func, args=[ast.Constant(value=str(target)), *rest]) if getattr(
                func, "id", getattr(func, "attr", "")
            ) in ("import_module", "__import__"):
                if target.startswith("."):
                    target = (
                        "llm_magic" + target
                        if not rest
                        else ".".join(here[: is_package or -1]) + target
                    )
                if target.removeprefix("llm_magic.") not in modules:  # else seen as a string
                    yield node.lineno, target
            case ast.Constant(value=str(text)) if (
                text.startswith("llm_magic.") and text.removeprefix("llm_magic.") in modules
            ):
                yield node.lineno, text


def _edges() -> Iterator[tuple[str, int, str]]:
    for name, path in MODULES.items():
        source = path.read_text(encoding="utf-8")
        for line, target in _imports(name, source, path.name == "__init__.py"):
            yield name, line, target


EDGES = tuple(_edges())
INNER = tuple(
    (name, line, target.removeprefix("llm_magic").removeprefix("."))
    for name, line, target in EDGES
    if target.split(".")[0] == "llm_magic"
)


def _room(name: str, folder: str) -> str | None:
    """The part of `folder` in which a module lies: a file or a folder in it; None if outside."""
    if not folder:
        return name.split(".")[0]
    inside = name.removeprefix(folder + ".")
    return None if inside == name else inside.split(".")[0]


def _level(room: str, folder: str) -> int:
    return next(i for i, rooms in enumerate(LEVELS[folder]) if room in rooms)


def _level_faults(edges: Iterable[tuple[str, int, str]]) -> list[str]:
    wrong = []
    for name, line, target in edges:
        if target == "" and name.split(".")[0] != "__main__":
            wrong.append(f"{name}:{line} imports the package itself, which reaches everywhere")
            continue
        for folder in LEVELS:
            here, there = _room(name, folder), _room(target, folder)
            if here is None or there is None or here == there:
                continue
            if _level(there, folder) > _level(here, folder):
                wrong.append(f"{name}:{line} imports {target}, which is above it")
            elif {here, there} <= APART.get(folder, set()):
                wrong.append(f"{name}:{line} imports {target}, which is a room beside it")
    return wrong


def _cycle(edges: Iterable[tuple[str, int, str]]) -> list[str]:
    graph: dict[str, set[str]] = {}
    for name, _, target in edges:
        if name != target:
            graph.setdefault(name, set()).add(target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def test_every_room_has_a_level():
    for folder, levels in LEVELS.items():
        rooms = {_room(name, folder) for name in MODULES} - {None}
        assert rooms <= set().union(*levels), folder


def test_no_part_imports_a_higher_one():
    assert not _level_faults(INNER)


def test_no_import_cycle():
    assert not _cycle((n, i, t) for n, i, t in INNER if n not in ("", "__main__"))


def test_no_import_cycle_between_rooms():
    for folder in LEVELS:
        pairs = ((_room(n, folder), i, _room(t, folder)) for n, i, t in INNER if n and t)
        assert not _cycle((n, i, t) for n, i, t in pairs if n and t)


def _type_lines(name: str) -> set[int]:
    """The lines of a module under `if TYPE_CHECKING`: what is imported there is never loaded."""
    found: set[int] = set()
    for node in ast.walk(ast.parse(MODULES[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            found.update(range(node.lineno, node.body[-1].lineno + 1))
    return found


def test_heavy_dependencies_have_one_owner():
    """A type of another package may be named by all: `Reply.plot` returns matplotlib's Axes."""
    wrong = []
    for name, line, target in EDGES:
        owners = ONLY.get(target.split(".")[0])
        if owners and line in _type_lines(name):
            continue
        if owners and not any(f"{name}.".startswith(f"{owner}.") for owner in owners):
            wrong.append(f"{name}:{line} imports {target}, which belongs to {', '.join(owners)}")
    assert not wrong, "\n".join(wrong)


# The rules above would pass on an empty graph; these show that they can fail.


@pytest.mark.parametrize(
    ("name", "source", "package", "found"),
    [
        ("chat.reply", "def f():\n    from ..ui import html", False, ["llm_magic.ui.html"]),
        ("chat.reply", "from . import router", False, ["llm_magic.chat.router"]),
        ("engine", "from .gate import X", True, ["llm_magic.engine.gate"]),
        ("models", "if TYPE_CHECKING:\n    from .events import Token", False, ["llm_magic.events"]),
        (
            "llm",
            "import importlib\nimportlib.import_module('llm_magic.ui')",
            False,
            ["importlib", "llm_magic.ui"],
        ),
        ("", "import_module('.hub', __name__)", True, ["llm_magic.hub"]),
        ("chat.reply", "NAMES = {'x': 'llm_magic.ui.html'}", False, ["llm_magic.ui.html"]),
        ("chat.reply", "load('llm_magic.ui.html', 'llm_magic')", False, ["llm_magic.ui.html"]),
        ("chat.reply", "import_module('llm_magic.ui.html')", False, ["llm_magic.ui.html"]),
        ("chat.reply", "x = 'llm_magic.ui.html is a module'", False, []),
        ("events", "import tinygrad.dtype as d", False, ["tinygrad.dtype"]),
    ],
)
def test_imports_are_seen(name, source, package, found):
    modules = {"ui.html", "chat.router", "engine.gate"}
    assert [target for _, target in _imports(name, source, package, modules)] == found


def test_an_upward_import_is_a_fault():
    assert _level_faults((("events", 1, "provider"),))
    assert _level_faults((("chat.reply", 1, "llm"),))
    assert _level_faults((("engine.portable.forward", 1, ""),))
    assert _level_faults((("ui.views.html", 1, "ui.widgets.chat.widget"),))
    assert _level_faults((("engine.kernels.forward", 1, "engine.serving.slots"),))
    assert not _level_faults((("ui.magics.cell", 1, "events"), ("hub", 2, "llm")))


def test_a_cycle_through_a_helper_is_a_fault():
    around = (("engine.gguf", 1, "engine.names"), ("engine.names", 1, "engine.gguf"))
    assert _cycle(around)
    assert not _cycle(around[:1])


# ----------------------------------------------------------------------------- lightness


def _loaded_by(setup: str, act: str) -> list[str]:
    """Heavy packages that `act` adds to sys.modules in a fresh process, after `setup`."""
    code = (
        f"import sys\n{setup}\nbefore = set(sys.modules)\n{act}\n"
        f"print([m for m in {HEAVY!r} if m in set(sys.modules) - before])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    return ast.literal_eval(ran.stdout.strip().splitlines()[-1])


SHELL = "from IPython.core.interactiveshell import InteractiveShell as S\nshell = S.instance()"


def test_import_is_light():
    assert _loaded_by("", "import llm_magic") == []


def test_load_ext_is_light():
    act = "shell.run_line_magic('load_ext', 'llm_magic')\nassert shell.find_cell_magic('llm')"
    assert _loaded_by(SHELL, act) == []


def test_help_is_light():
    act = "shell.run_line_magic('load_ext', 'llm_magic')\nshell.run_line_magic('pinfo', '%%llm')"
    assert _loaded_by(SHELL, act) == []


def test_lightness_can_fail():
    assert _loaded_by("", "import jinja2") == ["jinja2"]


def test_a_reply_finds_its_views_without_the_extension_and_loads_them_on_use():
    act = (
        "from llm_magic.chat.reply import Reply\n"
        "assert 'llm_magic.ui' not in sys.modules\n"
        "assert Reply('x').prompt_view().plain\n"
        "assert 'llm_magic.ui.reply_methods' in sys.modules"
    )
    assert "matplotlib" not in _loaded_by("", act)
