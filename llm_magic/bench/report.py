"""The report of a benchmark: numbers, machine, versions; as a table and as JSON."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ..columns import aligned
from ..errors import LLMError

OURS = "llm_magic"
VERSION = 1
LESS_IS_BETTER = frozenset({"s", "ms", "MB"})


@dataclass(frozen=True, slots=True)
class Result:
    """One task of one subject. values: one per round, in `unit` ("tok/s", "s", "ms" or "MB")."""

    task: str
    subject: str
    unit: str
    values: tuple[float, ...]

    @property
    def best(self) -> float:
        """The least disturbed round."""
        return min(self.values) if self.unit in LESS_IS_BETTER else max(self.values)


@dataclass(frozen=True, slots=True, repr=False)
class Report:
    """Everything of one run.

    file_bytes: of the model's file. token_bytes: weights that one token reads. kv_bytes: cache that
    was filled when the memory was measured. bandwidth: bytes a second that `threads` threads read.
    failures: subject -> why it has no numbers. settings: what was equal for all subjects. notes:
    what was not.
    """

    model: str
    file_bytes: int
    token_bytes: int
    kv_bytes: int
    threads: int
    machine: Mapping[str, str]
    versions: Mapping[str, str]
    settings: Mapping[str, str]
    results: tuple[Result, ...]
    bandwidth: float
    failures: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """The kind of machine, in a line: "AMD EPYC, 2 cores, avx512_vnni".

        Numbers of two kinds cannot be compared, so runs are kept by it.
        """
        features = self.machine.get("features", "").split(" ")[0]
        parts = (self.machine.get("cpu", ""), self.machine.get("cores", ""), features)
        return ", ".join(part for part in parts if part) or "unknown machine"

    @property
    def kind_slug(self) -> str:
        """`kind` as a name of a folder: "amd-epyc-2-cores-avx512-vnni"."""
        return re.sub(r"[^a-z0-9]+", "-", self.kind.lower()).strip("-")

    @property
    def subjects(self) -> list[str]:
        return list(dict.fromkeys(r.subject for r in self.results))

    @property
    def tasks(self) -> list[str]:
        return list(dict.fromkeys(r.task for r in self.results))

    def get(self, task: str, subject: str = OURS) -> Result | None:
        return next((r for r in self.results if (r.task, r.subject) == (task, subject)), None)

    def best(self, task: str, subject: str = OURS) -> float | None:
        result = self.get(task, subject)
        return None if result is None else result.best

    def ratio(self, task: str, peer: str) -> float | None:
        """How many times faster we are than a peer (of seconds and megabytes: how much less)."""
        ours, theirs = self.get(task), self.get(task, peer)
        if ours is None or theirs is None or not ours.best or not theirs.best:
            return None
        less = ours.unit in LESS_IS_BETTER
        return theirs.best / ours.best if less else ours.best / theirs.best

    def share(self, task: str, of: str) -> float | None:
        """One of our tasks against another one of ours."""
        part, whole = self.best(task), self.best(of)
        return part / whole if part and whole else None

    @property
    def facts(self) -> dict[str, float]:
        """Ratios within our own results, those that could be measured."""
        decode, memory = self.best("decode at 0"), self.best("memory taken by the model")
        found = {
            "share of the bandwidth": decode
            and self.bandwidth
            and decode * self.token_bytes / self.bandwidth,
            "speed kept with 5 logprobs": self.share("decode with 5 logprobs", "decode at 0"),
            "speed kept beside a Python loop": self.share(
                "decode beside a Python loop", "decode at 0"
            ),
            "guesses at repeated text": self.share(
                "decode of repeated text, guessed", "decode of repeated text"
            ),
            "4 streams against 1": self.share("4 streams", "1 stream"),
            "cell against llm.stream": self.share("%%llm in a kernel", "llm.stream in a kernel"),
            "memory against file and cache": memory
            and memory * 1e6 / (self.file_bytes + self.kv_bytes),
        }
        return {name: value for name, value in found.items() if value}

    def to_dict(self) -> dict[str, Any]:
        """As JSON knows it, with the ratios that follow from the numbers."""
        out = {"version": VERSION, **asdict(self)}
        out["results"] = [asdict(r) | {"best": r.best} for r in self.results]
        out["ratios"] = {
            peer: {t: r for t in self.tasks if (r := self.ratio(t, peer)) is not None}
            for peer in self.subjects
            if peer != OURS
        }
        out["facts"] = self.facts
        return out

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Report":
        """The report that `to_dict` wrote. LLMError if it is none."""
        try:
            if data["version"] != VERSION:
                raise LLMError(f"a benchmark of version {data['version']}, not {VERSION}")
            results = tuple(
                Result(r["task"], r["subject"], r["unit"], tuple(map(float, r["values"])))
                for r in data["results"]
            )
            names = ("model", "file_bytes", "token_bytes", "kv_bytes", "threads", "machine",
                     "versions", "settings", "bandwidth", "failures")  # fmt: skip
            given = {name: data[name] for name in names}
            return cls(results=results, notes=tuple(data["notes"]), **given)
        except (KeyError, TypeError, ValueError) as e:
            raise LLMError(f"this is not a benchmark's report: {type(e).__name__}: {e}") from e

    def __repr__(self) -> str:
        return table(self)


# ----------------------------------------------------------------------------- as text


def head(report: Report) -> list[str]:
    """Column titles of `rows`."""
    peers = [s for s in report.subjects if s != OURS]
    return ["task", OURS, *(c for peer in peers for c in (peer, "ratio"))]


def rows(report: Report) -> list[list[str]]:
    """One row per task: our number, then each peer's and how many times better ours is."""
    peers = [s for s in report.subjects if s != OURS]
    out = []
    for task in report.tasks:
        row = [task, _number(report.get(task))]
        for peer in peers:
            ratio = report.ratio(task, peer)
            row += [_number(report.get(task, peer)), f"{ratio:.2f}x" if ratio else ""]
        out.append(row)
    return out


def _number(result: Result | None) -> str:
    if result is None:
        return ""
    digits = 0 if result.best >= 100 else 1 if result.best >= 10 else 2
    return f"{result.best:,.{digits}f} {result.unit}"


def remarks(report: Report) -> list[tuple[str, str]]:
    """(name, what) of everything that is not in the table."""
    say = [
        ("model", f"{report.model}, {report.file_bytes / 1e6:.0f} MB"),
        ("machine", ", ".join(report.machine.values())),
        ("versions", ", ".join(f"{name} {v}" for name, v in report.versions.items())),
        ("equal", ", ".join(f"{name} {value}" for name, value in report.settings.items())),
    ]
    if report.bandwidth:
        say.append(("memory", f"read at {report.bandwidth / 1e9:.1f} GB/s"))
    for name, value in report.facts.items():
        small = value < 1.5 and "against 1" not in name
        say.append((name, f"{value:.0%}" if small else f"{value:.2f}x"))
    say += [(f"{name} failed", why) for name, why in report.failures.items()]
    return [*say, *(("note", text) for text in report.notes)]


def table(report: Report) -> str:
    """The report as aligned text, headed by the kind of machine."""
    titles = head(report)
    lines = [f"{report.model} on {report.kind}", ""]
    lines += aligned([titles, *rows(report)], range(1, len(titles)), rule=True)
    pairs = remarks(report)
    width = max(len(name) for name, _ in pairs)
    return "\n".join([*lines, "", *(f"{name:<{width}}  {what}" for name, what in pairs)])
