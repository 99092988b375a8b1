#!/usr/bin/env python3
"""Checks a timeline of `dipole trace --perfetto` with Perfetto's own definition of its format.

    pip install perfetto
    crates/lab/scripts/timeline_check.py FILE

Refused are fields that Perfetto does not know, events of tracks that were not declared, slices that end
before they begin or overlap, and slices that never end. Prints the tracks and what they have. Where
Perfetto's trace_processor can be fetched, it checks the file, too.
"""

import collections
import subprocess
import sys

from google.protobuf import unknown_fields
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent
from perfetto.trace_processor import TraceProcessor


def check(is_right, what):
    if not is_right:
        sys.exit(f"wrong: {what}")


def known(message, path="Trace"):
    """Checks that no part of the message has a field that is not in the definition."""
    check(len(unknown_fields.UnknownFieldSet(message)) == 0, f"unknown fields in {path}")
    for field, value in message.ListFields():
        if field.message_type:
            for part in value if field.is_repeated else [value]:
                known(part, f"{path}.{field.name}")


def ask_processor(file):
    try:
        processor = TraceProcessor(trace=file)
    except (OSError, subprocess.SubprocessError) as cause:
        print(f"trace_processor is not to be had here: {cause}")
        return
    for row in processor.query("select name, count(*) as count, min(dur) as least from slice group by name"):
        check(row.least >= 0, f"slice {row.name} never ends")
        print(f"trace_processor: {row.count} slices {row.name}")
    for row in processor.query("select name, value from stats where severity != 'info' and value > 0"):
        sys.exit(f"wrong: trace_processor counts {row.value} {row.name}")


def main():
    trace = Trace()
    with open(sys.argv[1], "rb") as file:
        trace.ParseFromString(file.read())
    known(trace)
    names, parents = {}, {}
    open_slices, last, counts = collections.defaultdict(list), {}, collections.Counter()
    for packet in trace.packet:
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            names[track.uuid] = track.name or track.thread.thread_name or track.process.process_name
            parents[track.uuid] = track.parent_uuid
            check(not track.parent_uuid or track.parent_uuid in names, f"parent of {names[track.uuid]}")
            continue
        event = packet.track_event
        check(event.track_uuid in names, f"an event of track {event.track_uuid}, which is not declared")
        check(packet.timestamp >= last.get(event.track_uuid, 0), f"time runs back on {names[event.track_uuid]}")
        last[event.track_uuid] = packet.timestamp
        if event.type == TrackEvent.TYPE_SLICE_BEGIN:
            open_slices[event.track_uuid].append(event.name)
            counts[event.track_uuid, event.name] += 1
        elif event.type == TrackEvent.TYPE_SLICE_END:
            check(open_slices[event.track_uuid], f"an end without a begin on {names[event.track_uuid]}")
            open_slices[event.track_uuid].pop()
        else:
            check(event.type == TrackEvent.TYPE_COUNTER, f"event type {event.type}")
            counts[event.track_uuid, "values"] += 1
    check(not any(open_slices.values()), f"slices that never end: {dict(open_slices)}")
    print(f"{len(trace.packet)} packets, {len(names)} tracks")
    for uuid, name in names.items():
        own = ", ".join(f"{count} {what}" for (of, what), count in counts.items() if of == uuid)
        print(f"{names.get(parents[uuid], '')} / {name}: {own}".strip(" /:"))
    ask_processor(sys.argv[1])


if __name__ == "__main__":
    main()
