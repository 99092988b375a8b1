"""Results of `dipole bench`, `predict`, `trace` and `report` as Python objects.

The program measures and computes; its JSON becomes lists and dictionaries here, which notebooks show as
tables and pages.
"""

import csv
import html
import json
import os
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from typing import Any

from . import _program
from ._errors import Error

# Height of a page in a notebook.
_PIXELS = 700


class Rows(list[dict[str, Any]]):
    """A table: a list with a dictionary for each row. Notebooks show it, or the page that belongs to it.

    `notes` has what the program wrote to standard error, such as a comparison that was lost.
    """

    def __init__(self, rows: Iterable[dict[str, Any]], notes: str = "", page: str = "") -> None:
        super().__init__(rows)
        self.notes = notes
        self.page = page

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(dict.fromkeys(name for row in self for name in row))

    def column(self, name: str) -> Any:
        """A column as a NumPy array. Numbers that a row lacks are NaN. Raises KeyError if no row has
        this column."""
        import numpy

        if not any(name in row for row in self):
            raise KeyError(name)
        values = [row.get(name) for row in self]
        if any(value is None for value in values) and all(
            value is None or isinstance(value, (int, float)) for value in values
        ):
            values = [float("nan") if value is None else value for value in values]
        return numpy.array(values)

    def to_pandas(self) -> Any:
        """The table as a `pandas.DataFrame`, if pandas is installed."""
        import pandas  # type: ignore[import-untyped, import-not-found, unused-ignore]

        return pandas.DataFrame(list(self), columns=self.columns)

    def _repr_html_(self) -> str:
        if self.page:
            return _frame(self.page)
        columns = [name for name in self.columns if all(_is_plain(row.get(name)) for row in self)]
        rows = [[_text(row.get(name)) for name in columns] for row in self]
        head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
        lines = ("".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in rows)
        body = "".join(f"<tr>{line}</tr>" for line in lines)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


class Result(dict[str, Any]):
    """A result in named parts. Notebooks show its page, which has figures and needs no network.

    `page` is the page as HTML, or empty. `tables` has tables by name.
    """

    def __init__(self, parts: dict[str, Any], page: str, tables: dict[str, Rows]) -> None:
        super().__init__(parts)
        self.page = page
        self.tables = tables

    def _repr_html_(self) -> str:
        if self.page:
            return _frame(self.page)
        return "".join(f"<h4>{name}</h4>{rows._repr_html_()}" for name, rows in self.tables.items())

    def _repr_svg_(self) -> str | None:
        """The first figure of the page."""
        start, end = self.page.find("<svg"), self.page.find("</svg>")
        return self.page[start : end + len("</svg>")] if 0 <= start < end else None


def bench(
    kind: str | None = None,
    *,
    size: int | None = None,
    link: str | None = None,
    on: str | None = None,
    seconds: float | None = None,
    rounds: int | None = None,
    quick: bool = False,
    subjects: Sequence[str] | None = None,
    figures: bool = False,
    options: Sequence[str] = (),
) -> Rows:
    """Measures Dipole next to plain sockets and memory, by `dipole bench`; takes a second or more for
    each subject and round.

    `kind` is "pingpong", "stream", "bidir", "rate", "mixed", "port", "put", "get" or "atomic"; without
    it, the usual sizes of several kinds are measured. Times of the rows are in ns, `bytes_per_s` in
    bytes per second; `p50_ns` of "pingpong" is one way. `size` is in bytes, `seconds` that of each
    round. With `figures=True` the rows have a page with figures over all sizes, which takes about a
    minute. `options` are passed on to the program.

    Raises `dipole.Error` with the program's message if nothing could be measured.
    """
    flags = _flags(
        size=size,
        link=link,
        on=on,
        seconds=seconds,
        rounds=rounds,
        quick=quick,
        subjects=subjects,
    )
    words = ["bench", *([kind] if kind else []), *flags]
    with tempfile.TemporaryDirectory() as folder:
        page = os.path.join(folder, "page.html")
        words += ["--html", page] if figures else []
        # A failed subject or a lost comparison leaves the other rows valid.
        rows, notes = _run([*words, *options], accepted=(0, 1))
        if not rows:
            raise Error(notes)
        return Rows(rows, notes, _read(page))


def predict(
    *,
    bytes: int | Sequence[int] | None = None,
    link: str | Sequence[str] | None = None,
    ranks: int | Sequence[int] | None = None,
    h: int | None = None,
    volume: int | None = None,
    supersteps: int | None = None,
    flops: float | None = None,
    work_seconds: float | None = None,
    cores: int | None = None,
    one_node: bool = False,
    trace: str | os.PathLike[str] | None = None,
    steps: tuple[int, int] | None = None,
) -> Rows:
    """Predicts times from what `dipole calibrate` has measured, by `dipole predict`: a row for each
    message length and link, or with `ranks` for each number of ranks.

    `bytes` are message lengths. For supersteps, `h` is the most bytes that a rank sends or receives in
    each, `volume` the bytes of all ranks, `work_seconds` the computation of a single rank in s, and
    `flops` the same as a number of operations. With `trace`, the program that left its traces in this
    folder is predicted and compared with what it took; `steps` are its first and last superstep to
    consider. Times are in ns.

    Raises `dipole.Error` with the program's message, for instance if nothing has been calibrated.
    """
    flags = _flags(
        bytes=bytes,
        link=link,
        ranks=ranks,
        h=h,
        volume=volume,
        supersteps=supersteps,
        flops=flops,
        work_seconds=work_seconds,
        cores=cores,
        one_node=one_node,
        trace=trace,
        steps=None if steps is None else f"{steps[0]}..{steps[1]}",
    )
    return Rows(*_run(["predict", *flags]))


def trace(directory: str | os.PathLike[str], *, steps: tuple[int, int] | None = None) -> Result:
    """Finds out where the time of a traced program went, by `dipole trace`: the folder is that in
    DIPOLE_TRACE during the run, for instance `dipole.cluster(4, ["--env", "DIPOLE_TRACE=t"])`.

    The dictionary has totals, `calls`, `predictions` and the `tree` of calls; times are in ns.
    `tables["calls"]` lists the calls that end supersteps, with the program's files and lines. The page
    shows the supersteps. `steps` are the first and the last superstep to consider.

    Raises `dipole.Error` with the program's message, for instance if there are no traces.
    """
    flags = _flags(steps=None if steps is None else f"{steps[0]}..{steps[1]}")
    words = ["trace", os.fspath(directory), *flags]
    [parts], _ = _run(words)
    page = ""
    # Waits of programs without supersteps have no page.
    if "supersteps" in parts:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "page.html")
            _run([*words, "--html", path])
            page = _read(path)
    tables = {name: Rows(part) for name, part in parts.items() if _is_table(part)}
    return Result(parts, page, tables)


def report(
    directory: str | os.PathLike[str] | None = None,
    *,
    trace: str | os.PathLike[str] | None = None,
) -> Result:
    """Collects what was measured on this machine, and with `trace` a traced run, by `dipole report`.

    The dictionary has the `profiles` of links. `tables` has messages, gaps, copies and costs as far as
    they were measured, with times in ns. The page, the JSON and the tables are kept in `directory` if it
    is given.

    Raises `dipole.Error` with the program's message if nothing was measured.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = temporary if directory is None else os.fspath(directory)
        [written], _ = _run(["report", folder, *_flags(trace=trace)])
        tables: dict[str, Rows] = {}
        for path in written["written"]:
            name, kind = os.path.splitext(os.path.basename(path))
            if kind == ".csv":
                tables[name] = _table(path)
        parts = json.loads(_read(os.path.join(folder, "report.json")))
        return Result(parts, _read(os.path.join(folder, "report.html")), tables)


def _run(words: Sequence[str], accepted: Sequence[int] = (0,)) -> tuple[list[dict[str, Any]], str]:
    """The JSON objects that the program prints, and its other messages."""
    command = [_program.path(), "--json", *words]
    ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    notes = ran.stderr.strip()
    if ran.returncode not in accepted:
        raise Error(notes or f"`{' '.join(command)}` ended with status {ran.returncode}")
    return [json.loads(line) for line in ran.stdout.splitlines()], notes


def _flags(**options: Any) -> list[str]:
    """Options of the program from keyword arguments."""
    flags: list[str] = []
    for name, value in options.items():
        if value is None or value is False:
            continue
        flags.append("--" + name.replace("_", "-"))
        if value is not True:
            several = not isinstance(value, str) and isinstance(value, Sequence)
            flags.append(",".join(map(str, value)) if several else str(value))
    return flags


def _read(path: str) -> str:
    """The text of a file; empty if it does not exist."""
    if not os.path.exists(path):
        return ""
    with open(path, encoding="utf-8") as file:
        return file.read()


def _table(path: str) -> Rows:
    def value(text: str) -> Any:
        try:
            return json.loads(text)
        except ValueError:
            return text

    with open(path, encoding="utf-8", newline="") as file:
        return Rows({name: value(text) for name, text in row.items()} for row in csv.DictReader(file))


def _is_table(part: Any) -> bool:
    return isinstance(part, list) and bool(part) and all(isinstance(row, dict) for row in part)


def _is_plain(value: Any) -> bool:
    return not isinstance(value, (dict, list))


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _frame(page: str) -> str:
    """A page inside of a notebook's."""
    source = html.escape(page, quote=True)
    return f'<iframe srcdoc="{source}" width="100%" height="{_PIXELS}" frameborder="0"></iframe>'
