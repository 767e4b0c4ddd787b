"""Device set-up, tried in fresh processes: what tinygrad has done there before cannot be undone."""

import os
import platform
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from llm_magic.engine import compiler, cpu

LINUX = platform.system() == "Linux"
ZIG = pytest.mark.skipif(compiler._zig_command() is None, reason=compiler.INSTALL_COMPILER)


def run(code: str, *, fails: bool = False, **env: str | None) -> str:
    """Run code in a new interpreter and return what it prints. env: None removes a variable."""
    here = {**os.environ, **{k: v for k, v in env.items() if v is not None}}
    for name in [k for k, v in env.items() if v is None]:
        here.pop(name, None)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        env=here, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert (done.returncode != 0) is fails, done.stdout + done.stderr
    return (done.stderr if fails else done.stdout).strip()


@pytest.fixture
def fresh(tmp_path):
    """Environment of a user who has nothing: no compiler in sight, empty caches."""
    empty = tmp_path / "empty"
    empty.mkdir()
    return {
        "PATH": str(empty),
        "CC": None,
        "CACHEDB": None,
        "DEV": None,
        "PARALLEL": None,
        "LLM_MAGIC_CACHE": str(tmp_path / "cache"),
        "XDG_CACHE_HOME": str(tmp_path / "home"),
    }


ENGINE = """
def engine(i):
    from llm_magic.engine import device
    device.prepare()
    from tinygrad import Tensor
    return (Tensor([1.0 * i, 2.0], device="CPU") * (i + 3)).tolist()
"""
USER = """
def user(i):
    from tinygrad import Tensor
    return (Tensor([1.0 * i, 2.0], device="CPU") + (i + 7)).tolist()
"""
IN_THREAD = """
import threading
def in_thread(f, *args):
    out = []
    def call():
        try: out.append(f(*args))
        except BaseException as e: out.append(e)
    t = threading.Thread(target=call)
    t.start()
    return t, out
"""
SETUP = ENGINE + USER + IN_THREAD
E0, E1 = [0.0, 6.0], [4.0, 8.0]
U0, U1 = [7.0, 9.0], [9.0, 10.0]


# ---------------------------------------------------------------------- threads


@ZIG
def test_user_first_then_the_engines_thread(fresh):
    """A cell has compiled with tinygrad on the main thread; then the engine does on its own."""
    found = compiler.find_compiler()
    fresh |= {"CC": found}  # without a compiler the user's own tinygrad could not have worked
    out = run(
        SETUP
        + """
from tinygrad import helpers
a = user(0)
theirs = helpers._db_connection
assert theirs is not None
t, b = in_thread(engine, 0); t.join()
c = user(1)
t, d = in_thread(engine, 1); t.join()
print(a, *b, c, *d)
helpers.diskcache_put("llm_magic_test", "key", 1)
""",
        **fresh,
    )
    assert out == f"{U0} {E0} {U1} {E1}"


@ZIG
def test_engines_thread_first_then_the_user(fresh):
    out = run(
        SETUP
        + """
t, a = in_thread(engine, 0); t.join()
b = user(0)
t, c = in_thread(engine, 1); t.join()
print(*a, b, *c, user(1))
""",
        **fresh,
    )
    assert out == f"{E0} {U0} {E1} {U1}"


@ZIG
def test_a_cell_and_the_engine_use_tinygrad_at_once(fresh):
    """A cell reads and writes the cache while the set-up exchanges it; then four threads do.

    So many rounds and no more: on a slow disk each write takes long.
    """
    out = run(
        IN_THREAD
        + """
import sys
sys.setswitchinterval(1e-5)
from tinygrad import helpers
from llm_magic.engine import device
def use(who, n):
    for i in range(n):
        key = {"who": who, "n": i}
        helpers.diskcache_put(f"table{i % 7}", key, i)
        assert helpers.diskcache_get(f"table{i % 7}", key) in (i, None)  # None: exchanged meanwhile
    return who
def exchange(inside):
    inside.wait()
    device.prepare()
    return helpers.db_connection is not theirs
theirs, tables, said = helpers.db_connection, helpers._db_tables, set()
for _ in range(8):
    helpers.db_connection, helpers._db_tables = theirs, tables  # as before the engine was there
    inside = threading.Event()
    t, out = in_thread(exchange, inside)
    use("cell", 2)
    inside.set()
    use("cell", 8)
    t.join()
    said |= {*out, use("cell", 1)}
print(len(said), *said)
t, out = in_thread(use, "engine", 7); t.join()
threads = [in_thread(use, str(n), 35) for n in range(4)]
for t, _ in threads: t.join()
print(*out, *(out[0] for _, out in threads))
print([helpers.diskcache_get("table6", {"who": str(n), "n": 34}) for n in range(4)])
""",
        **fresh,
    )
    assert set(out.splitlines()[0].split()) == {"2", "True", "cell"}
    assert out.splitlines()[1:] == ["engine 0 1 2 3", "[34, 34, 34, 34]"]


@ZIG
def test_two_threads_prepare_at_once(fresh):
    out = run(
        SETUP
        + """
from llm_magic.engine import device
pairs = [in_thread(device.prepare) for _ in range(3)]
for t, _ in pairs: t.join()
print(len({out[0] for _, out in pairs}), engine(0), user(0))
""",
        **fresh,
    )
    assert out == f"1 {E0} {U0}"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@ZIG
def test_a_forked_child_has_its_own_connection(fresh):
    out = run(
        """
import os, warnings
warnings.simplefilter("ignore")
from llm_magic.engine import device
device.prepare()
from tinygrad import helpers
helpers.diskcache_put("t", "parent", 1)
mine = helpers.db_connection()
pid = os.fork()
if pid == 0:
    good = helpers.db_connection() is not mine and helpers.diskcache_get("t", "parent") == 1
    helpers.diskcache_put("t", "child", 2)
    os._exit(0 if good else 1)
status = os.waitpid(pid, 0)[1]
print(status, helpers.diskcache_get("t", "child"), helpers.db_connection() is mine)
""",
        **fresh,
    )
    assert out == "0 2 True"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@ZIG
def test_a_fork_while_other_threads_load_and_generate_copies_no_held_lock(fresh):
    out = run(
        """
import os, signal, sys, threading, warnings
warnings.simplefilter("ignore")
from llm_magic.engine import device
from llm_magic.engine.serving import switch_interval
before = sys.getswitchinterval()
with switch_interval._lock, device._locks.setdefault(os.getpid(), threading.Lock()):
    switch_interval._working, switch_interval._before = 1, before  # as another thread would have it
    sys.setswitchinterval(switch_interval.SECONDS)
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        device.prepare()
        switch_interval.begin()
        short = sys.getswitchinterval()
        switch_interval.end()
        good = abs(short - switch_interval.SECONDS) < 1e-6
        good = good and abs(sys.getswitchinterval() - before) < 1e-6
        os._exit(0 if good else 1)
    print(os.waitpid(pid, 0)[1])
""",
        **fresh,
    )
    assert out == "0"


# ---------------------------------------------------------------------- the compile cache


@ZIG
def test_the_compile_cache_names_the_cpu(fresh, tmp_path):
    """-march=native code must not meet another CPU: a moved home folder compiles again."""
    out = run("from llm_magic.engine import device; print(device.prepare().cache)", **fresh)
    assert Path(out) == tmp_path / "cache" / "tinygrad" / f"{cpu.cpu_hash()}.db"
    assert Path(out).exists()
    assert not (tmp_path / "home").exists()  # tinygrad's own place is not used


@ZIG
def test_a_cache_that_the_user_names_stays_there_with_the_cpu_in_its_name(fresh, tmp_path):
    fresh["CACHEDB"] = str(tmp_path / "mine" / "cache.db")
    out = run("from llm_magic.engine import device; print(device.prepare().cache)", **fresh)
    assert Path(out) == tmp_path / "mine" / f"cache-{cpu.cpu_hash()}.db"
    assert Path(out).exists()


@ZIG
def test_a_second_process_compiles_nothing(fresh):
    compute = SETUP + "print(engine(1))"
    assert run(compute, **fresh) == str(E1)
    assert run(compute, ASSERT_COMPILE="1", **fresh) == str(E1)


@ZIG
@pytest.mark.skipif(os.name != "posix", reason="a folder in place of the file")
def test_a_cache_that_cannot_be_written_costs_time_only(fresh, tmp_path):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "tinygrad").write_text("in the way")
    assert run(SETUP + "print(engine(1), user(0))", **fresh) == f"{E1} {U0}"


@ZIG
def test_a_filled_cache_in_a_folder_for_reading_only_is_used(fresh, tmp_path):
    """As a course fills it for all: nothing is compiled, nothing is written."""
    assert run(SETUP + "print(engine(1))", **fresh) == str(E1)
    folder = tmp_path / "cache" / "tinygrad"
    before = {p.name: p.stat().st_mtime_ns for p in folder.iterdir()}
    barred = (
        "import os; may = os.access; os.access = lambda path, mode, **how: "
        "mode != os.W_OK and may(path, mode, **how)\n"  # root may write anywhere
    )
    again = barred + SETUP + "print(engine(1))"
    assert run(again, ASSERT_COMPILE="1", **fresh) == str(E1)
    new = barred + SETUP + "print(engine(1), user(0))"
    assert run(new, **fresh) == f"{E1} {U0}"
    assert {p.name: p.stat().st_mtime_ns for p in folder.iterdir()} == before


@ZIG
@pytest.mark.parametrize("trouble", ["max_page_count=1", "query_only=1"])
def test_a_cache_that_is_full_or_becomes_read_only_costs_time_only(fresh, trouble):
    """sqlite's own words for both: "database or disk is full", "attempt to write a readonly"."""
    use = "from tinygrad import helpers; from llm_magic.engine import device; device.prepare()\n"
    before = "helpers.diskcache_put('t', 'before', b'1'); helpers.diskcache_put('u', 'u', b'u')\n"
    break_it = f"helpers.db_connection().execute('PRAGMA {trouble}')\n"
    put = "print(len(helpers.diskcache_put('t', 'after', b'x' * 10**6)), end=' ')\n"
    get = "print(helpers.diskcache_get('t', 'before'), helpers.diskcache_get('t', 'after'))"
    assert run(use + before + break_it + put + get, **fresh) == "1000000 b'1' None"


@ZIG
def test_a_damaged_cache_costs_time_only(fresh, tmp_path):
    file = tmp_path / "cache" / "tinygrad" / f"{cpu.cpu_hash()}.db"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"no database at all " * 1000)
    assert run(SETUP + "print(engine(1), user(0))", **fresh) == f"{E1} {U0}"


def test_a_value_that_the_disk_has_changed_is_not_there(fresh):
    """sqlite sees damage between values only; these are programs that would be run."""
    out = run(
        """
from tinygrad import helpers
from llm_magic.engine import device
device.prepare()
program = bytes(range(256)) * 40
rows = helpers.db_connection().cursor()
table = f"'t_{helpers.VERSION}'"
damages = (
    lambda v: v[: len(v) // 2], lambda v: b"", lambda v: None, lambda v: 3, lambda v: "text",
    lambda v: bytes(len(v)), lambda v: v[:5000] + bytes(4096) + v[9096:],
    lambda v: v[:99] + bytes([v[99] ^ 1]) + v[100:], lambda v: v + b"x", lambda v: v[:-16],
)
for i, damage in enumerate(damages):
    helpers.diskcache_put("t", {"key": "k", "number": i}, program)
    (value,) = rows.execute(f"SELECT val FROM {table} WHERE number={i}").fetchall()[0]
    rows.execute(f"UPDATE {table} SET val=? WHERE number=?", (damage(value), i))
    assert helpers.diskcache_get("t", {"key": "k", "number": i}) is None, i
    helpers.diskcache_put("t", {"key": "k", "number": i}, program)
    assert helpers.diskcache_get("t", {"key": "k", "number": i}) == program
rows.execute(f"UPDATE {table} SET number = number + 100")  # a value belongs to its key
assert helpers.diskcache_get("t", {"key": "k", "number": 103}) is None
print("whole")
""",
        **fresh,
    )
    assert out == "whole"


@pytest.mark.parametrize("changed", ["flags", "model", "vendor_id"])
def test_another_cpu_has_another_hash(monkeypatch, changed):
    info = {"flags": "sse2 avx2", "model": "85", "vendor_id": "A", "cpu MHz": "2000"}
    monkeypatch.setattr(cpu, "SYSTEM", "Linux")
    monkeypatch.setattr(cpu, "_cpuinfo", lambda: info)

    def name():
        cpu.cpu_features.cache_clear()
        return cpu.cpu_hash()

    try:
        first = name()
        info["cpu MHz"] = "1800"
        assert name() == first
        info["flags"] = "avx2 sse2"
        assert name() == first
        info[changed] += " avx512f"
        assert name() != first
    finally:
        cpu.cpu_features.cache_clear()


# ---------------------------------------------------------------------- CPU features


def test_cpu_features_of_this_machine():
    found = cpu.cpu_features()
    if LINUX and platform.machine() in ("x86_64", "AMD64"):
        assert {"sse2", "fxsr"} <= found
    if LINUX and platform.machine() == "aarch64":
        assert "asimd" in found


@pytest.mark.parametrize("granted", [True, False])
def test_tile_registers_count_only_where_the_system_grants_them(monkeypatch, granted):
    monkeypatch.setattr(cpu, "SYSTEM", "Linux")
    monkeypatch.setattr(cpu, "_cpuinfo", lambda: {"flags": "avx2 amx_bf16 amx_tile amx_int8"})
    monkeypatch.setattr(cpu, "_tiles_granted", lambda: granted)
    cpu.cpu_features.cache_clear()
    try:
        amx = {"amx_bf16", "amx_tile", "amx_int8"} if granted else set()
        assert cpu.cpu_features() == {"avx2"} | amx
    finally:
        cpu.cpu_features.cache_clear()


@pytest.mark.skipif(not LINUX or platform.machine() != "x86_64", reason="a request of Linux on x86")
def test_the_system_is_asked_for_tile_registers():
    """It grants them exactly where it has them: its own list of what the CPU can do says so."""
    assert cpu._tiles_granted() == ("amx_tile" in cpu._cpuinfo()["flags"].split())


def test_cpu_features_of_other_systems(monkeypatch):
    arm = "hw.optional.arm.FEAT_DotProd: 1\nhw.optional.arm.FEAT_SME: 0\nhw.ncpu: 8\n"
    assert cpu._sysctl_features(arm) == {"asimddp"}
    intel = "machdep.cpu.features: FPU AVX1.0\nmachdep.cpu.leaf7_features: AVX2 BMI2\n"
    assert cpu._sysctl_features(intel) == {"fpu", "avx1.0", "avx2", "bmi2"}
    monkeypatch.setattr(cpu, "SYSTEM", "Windows")
    cpu.cpu_features.cache_clear()
    try:
        assert cpu.cpu_features() == frozenset()
    finally:
        cpu.cpu_features.cache_clear()


# ---------------------------------------------------------------------- the compiler

HIDE_ZIG = "import sys; sys.modules['ziglang'] = None\n"
FIND = "from llm_magic.engine import compiler; print(compiler.find_compiler())"


def test_no_compiler_says_what_to_install(fresh):
    """Not even with tinygrad's own search: the error comes before it."""
    out = run(
        HIDE_ZIG + "from llm_magic.engine import device; device.prepare()", fails=True, **fresh
    )
    last = out.splitlines()[-1]
    assert "CompilerError" in last
    assert "pip install 'llm-magic[cpu]'" in last
    assert "$CC: not set" in last
    assert "clang not found" in last


@ZIG
def test_ziglang_is_enough(fresh, tmp_path):
    out = run(SETUP + "print(engine(1), user(0))", **fresh)
    assert out == f"{E1} {U0}"
    (script,) = (tmp_path / "cache" / "bin").iterdir()  # nothing half written beside it
    assert script.name.startswith("clang-")


@ZIG
def test_a_clang_on_the_path_wins_over_ziglang(fresh, tmp_path):
    real = compiler._wrapper(compiler._zig_command())
    clang = tmp_path / "empty" / "clang"
    clang.symlink_to(real)
    assert run(FIND, **fresh) == str(clang)
    assert run(FIND, **{**fresh, "CC": str(real)}) == str(real)


@ZIG
@pytest.mark.skipif(os.name != "posix", reason="shell scripts")
@pytest.mark.parametrize("what", ["missing", "other compiler", "hangs up"])
def test_a_cc_that_is_no_clang_is_passed_over(fresh, tmp_path, what):
    cc = tmp_path / "cc"
    if what != "missing":
        body = "echo unrecognized --target >&2; exit 1" if what == "other compiler" else "exit 0"
        cc.write_text(f"#!/bin/sh\n{body}\n")
        cc.chmod(0o755)
    out = run(SETUP + "import os; print(engine(1), os.environ['CC'])", **{**fresh, "CC": str(cc)})
    assert out == f"{E1} {cc}"  # and the user's environment is as it was


@ZIG
def test_the_environment_of_the_user_stays_clean(fresh):
    out = run(
        """
import os
before = dict(os.environ)
from llm_magic.engine import device
device.prepare()
print({k: v for k, v in os.environ.items() if before.get(k) != v}, set(before) - set(os.environ))
""",
        **fresh,
    )
    assert out == "{} set()"


@ZIG
def test_a_user_who_failed_before_us_works_after_us(fresh):
    """tinygrad keeps what it read from the environment: its wrong answer must not stay."""
    out = run(
        SETUP
        + """
try: user(0)
except Exception: print("failed")
engine(0)
print(user(0))
""",
        **fresh,
    )
    assert out.splitlines() == ["failed", str(U0)]


@ZIG
@pytest.mark.skipif(os.name != "posix", reason="permissions")
def test_the_wrapper_moves_when_the_cache_folder_is_no_place_for_it(fresh, tmp_path):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "bin").write_text("in the way")
    out = run(SETUP + "print(engine(1)); from llm_magic.engine import device as d; "
              "print(d.prepare().compiler)", **fresh)  # fmt: skip
    result, compiler = out.splitlines()
    assert result == str(E1)
    assert not Path(compiler).exists()  # gone with its process


def test_wrapper_scripts_quote_their_paths():
    zig, include = Path("/a b/it's/zig"), Path("/a b/include")
    unix = compiler._wrapper_text(zig, include, windows=False)
    assert unix.splitlines()[0] == "#!/bin/sh"
    assert "'/a b/it'\"'\"'s/zig' clang -isystem '/a b/include' \"$@\"" in unix
    windows = compiler._wrapper_text(Path("C:/x y/zig.exe"), Path("C:/x y/include"), windows=True)
    assert windows == '@"C:/x y/zig.exe" clang -isystem "C:/x y/include" %*\r\n'


# ---------------------------------------------------------------------- names of devices


@ZIG
def test_nothing_forks_unless_the_user_wants_it(fresh):
    code = """
from tinygrad.helpers import PARALLEL
from llm_magic.engine import device
device.prepare()
print(PARALLEL.value)
"""
    assert run(code, **fresh) == "0"
    assert run(code, **{**fresh, "PARALLEL": "2"}) == "2"


# LAI-20
@ZIG
def test_the_environment_chooses_the_device(fresh):
    code = "from llm_magic.engine import device; print(device.prepare().name)"
    assert run(code, **fresh) == "CPU"
    assert run(code, **{**fresh, "DEV": "CPU"}) == "CPU"
    out = run(code, fails=True, **{**fresh, "DEV": "CUDA"})
    assert "DeviceError: device 'CUDA' does not work here" in out
    assert "usable: CPU" in out
    # tinygrad writes DEV itself once it has chosen a default: that is nobody's wish
    chosen = SETUP + "import os; engine(1); os.environ['DEV'] = 'CUDA'; print(engine(1))"
    assert run(chosen, **fresh) == str(E1)


# LAI-20
@ZIG
def test_device_names_are_checked_and_listed(fresh):
    out = run(
        """
from llm_magic.engine import device
from llm_magic.errors import CompilerError, DeviceError
print(device.prepare().name, device.prepare("cpu").name, device.prepare("CPU:0").name)
print(device.prepare("cpu:1").name, device.prepare().is_cpu, device.prepare("cpu:1").is_cpu)
for name in ("abacus", "DISK", "", "cuda:99", "cpu:x:y"):
    try: print(device.prepare(name).name)
    except CompilerError: raise
    except DeviceError as e: print(e)
""",
        **fresh,
    )
    first, second, abacus, disk, none, cuda, *_ = out.splitlines()
    assert first == "CPU CPU CPU"
    assert second == "CPU:1 True False"
    assert abacus == "no device 'abacus'; usable here: CPU"
    assert disk == "no device 'DISK'; usable here: CPU"
    assert none == "CPU"
    assert cuda.startswith("device 'cuda:99' does not work here")
    assert cuda.endswith("usable: CPU")


@ZIG
def test_code_can_be_generated_for_another_cpu(fresh):
    code = SETUP + "from llm_magic.engine import device as d; print(engine(1), d.prepare().target)"
    if platform.machine() in ("x86_64", "AMD64"):
        out = run(code, **{**fresh, "DEV": "CPU:CLANG:x86_64,haswell"})
        assert out == f"{E1} x86_64,haswell"


def test_importing_the_module_imports_nothing_heavy(fresh):
    code = """
import sys
import llm_magic.engine.device
from llm_magic.engine import cpu
cpu.cpu_features(), cpu.cpu_hash()
print(sorted({"tinygrad", "numpy", "platformdirs", "gguf"} & set(sys.modules)))
"""
    assert run(code, **fresh) == "[]"
