//! Tests of the protocol's machine: conversations on virtual wires, parsers, the vectors of the
//! specification. They are one program, because many programs take longer to link than to run.

#![allow(
    missing_docs,
    unreachable_pub,
    clippy::cast_possible_truncation,
    reason = "tests"
)]

mod addresses;
mod crowd;
mod delivery;
mod hostile;
mod hostile_wire;
mod membership;
mod operations;
mod pair;
mod paths;
mod pipes;
mod prediction;
mod recovery;
mod samples;
mod sizes;
mod vectors;
mod wire;
