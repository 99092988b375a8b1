#!/usr/bin/env python3
"""Cost of a message, stage by stage: instructions and cache lines.

    crates/lab/scripts/message_cost.py [--bytes 64] shm|udp [PROGRAM...]

Runs the example `message_cost` (or the given builds of it, to compare them) under valgrind's tool
`lackey`, which prints every instruction and every access to memory, and prints a table in Markdown.
Needs valgrind and binutils. The kernel's part is not seen. valgrind has no AVX-512, so checksums
take the way of older processors.

An instruction belongs to the innermost function of ours that it was compiled from (functions that
were inlined included); one of a library to whoever called it. Each figure is the median over the
messages, of what their thread does. Programs need line numbers:
CARGO_PROFILE_RELEASE_DEBUG=line-tables-only.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict

LINE_BYTES = 64
# The first match counts, by the path below `crates/`.
STAGES = [(name, re.compile(pattern)) for name, pattern in [
    ("checksum", r"engine/src/trailer|link/src/crc32c|crc-fast"),
    ("clock", r"clock\.rs"),
    ("API, lock, waiting", r"(node|driver)/src/|link/src/fork"),
    ("frames, packing", r"engine/src/(frames|packer|batch)\.rs"),
    ("delivery, inbox", r"engine/src/(arrivals|dispatch|endpoints|inbox(es)?)\.rs|arena\.rs"),
    ("engine", r"(engine|record)/src/"),
    ("ring", r"link/src/(shm|segment|word|any_hub)\b"),
    ("sockets", r"link/src/"),
    ("wire format", r"proto/src/wire/"),
    ("protocol", r"proto/src/"),
]]


def output(*command, text=None):
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def build():
    command = "cargo build --release --quiet --package dipole-node --example message_cost"
    environment = {**os.environ, "CARGO_PROFILE_RELEASE_DEBUG": "line-tables-only"}
    subprocess.run(command.split(), check=True, env=environment)
    return "target/release/examples/message_cost"


def symbols(program):
    names = {}
    for line in output("nm", "--demangle", program).splitlines():
        address, _, name = line.split(maxsplit=2) if line[0] != " " else (0, 0, "")
        name = re.sub(r"::h[0-9a-f]{16}$", "", name)
        if name.startswith("message_cost::"):
            names[name.removeprefix("message_cost::")] = int(address, 16)
    return names


def stacks(process):
    """Ranges of the stacks of other threads, each behind a guard page."""
    ranges, before = [], ("", 0)
    with open(f"/proc/{process}/maps") as maps:
        for line in maps:
            place, rights = line.split()[:2]
            start, end = (int(part, 16) for part in place.split("-"))
            if before == ("---p", start) and rights == "rw-p":
                ranges.append((start, end))
            before = rights, end
    return ranges


def trace(program, link, length):
    """Accesses of the main thread for each counted message: (phase, kind, address, bytes)."""
    names = symbols(program)
    with tempfile.TemporaryFile("w+") as said:
        run = subprocess.Popen(
            ["valgrind", "--tool=lackey", "--trace-mem=yes", program, link, str(length)],
            stdout=said, stderr=subprocess.PIPE, text=True)
        messages, current, phase, marks, base = [], [], "", {}, 0
        own, others, unsure = None, [], []
        for line in run.stderr:
            kind = line[:3]
            if kind not in ("I  ", " L ", " S ", " M "):
                continue
            if not marks:
                said.seek(0)
                shown = said.readline()
                if not shown.endswith("\n"):
                    continue
                base = int(shown, 16) - names["between"]
                marks = {f"{names[name] + base:08x}": name for name in ("send", "receive", "between")}
                others = stacks(run.pid)
            address, _, size = line[3:].partition(",")
            mark = marks.get(address) if kind == "I  " else None
            if mark == "between":
                messages.append(current)
            if mark:
                phase = mark
                if mark != "receive":
                    current, unsure = [], []
            address = int(address, 16)
            unsure.append((phase, kind[:2].strip(), address, int(size)))
            # lackey does not print the thread; an access to a stack reveals it for those before.
            if own is None and phase == "send" and kind == " S ":
                own = range(address - (1 << 20), address + (1 << 20))
            if own and kind != "I  ":
                if address in own:
                    current += unsure
                    unsure = []
                elif any(start <= address < end for start, end in others):
                    unsure = []
        if run.wait():
            sys.exit(f"{program} failed")
    return base, messages


def stages(program, base, messages):
    """Returns the stage of each instruction of the program."""
    inside = sorted({address for message in messages for _, kind, address, _ in message if kind == "I"})
    listed = output("addr2line", "-a", "-i", "-e", program,
                    text="".join(f"{address - base:#x}\n" for address in inside if address >= base))
    of, address = {}, None
    for line in listed.splitlines():
        if re.fullmatch(r"0x[0-9a-f]+", line):
            address = int(line, 16) + base
        elif address not in of:
            # Files of the standard library are inlined in ours, which come next.
            path = line.partition("crates/")[2] or (line if "crc-fast" in line else "")
            found = (name for name, pattern in STAGES if path and pattern.search(path))
            if stage := next(found, None):
                of[address] = stage
    return of


def cost(program, link, length):
    """{(phase, stage): (instructions, lines of code, lines of data)}"""
    base, messages = trace(program, link, length)
    of = stages(program, base, messages)
    each = defaultdict(lambda: ([], [], []))
    for message in messages:
        counts, lines = defaultdict(int), (defaultdict(set), defaultdict(set))
        stage = "API, lock, waiting"
        for phase, kind, address, size in message:
            if kind == "I":
                stage = of.get(address, stage)
            touched = range(address // LINE_BYTES, (address + size - 1) // LINE_BYTES + 1)
            for key in (phase, stage), (phase, "all"), ("both", "all"):
                counts[key] += kind == "I"
                lines[kind != "I"][key].update(touched)
        for key in counts:
            for figures, found in zip(each[key], (counts[key], len(lines[0][key]), len(lines[1][key]))):
                figures.append(found)
    # A stage that half of the messages skip is not a cost of every message.
    return {key: tuple(round(statistics.median(figures)) for figures in found)
            for key, found in each.items() if len(found[0]) * 2 > len(messages)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=int, default=64)
    parser.add_argument("link", choices=("shm", "udp"))
    parser.add_argument("program", nargs="*")
    arguments = parser.parse_args()
    programs = arguments.program or [build()]
    costs = [cost(program, arguments.link, arguments.bytes) for program in programs]
    order = [name for name, _ in STAGES]
    rows = [(phase, stage) for phase in ("send", "receive") for stage in [*order, "all"]] + [("both", "all")]
    print(f"| {arguments.link}, {arguments.bytes} B | instructions | lines of code | lines of data |")
    print("|---|---|---|---|")
    for row in rows:
        if any(row in cost for cost in costs):
            figures = [cost.get(row, (0, 0, 0)) for cost in costs]
            cells = [" -> ".join(str(figure[column]) for figure in figures) for column in range(3)]
            print(f"| {row[0]}: {row[1]} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
