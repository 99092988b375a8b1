//! Two machines on a wire that follows a hostile script; see `crates/proto/tests/protocol/hostile`.
//!
//! The first byte decides whether the script may forge trailers. If not, everything sent must
//! arrive once and in order.

#![cfg_attr(fuzzing, no_main)]

use dipole_fuzz::fuzz_target;
use hostile::{decode, play, play_honest};

#[path = "../../crates/proto/tests/protocol/hostile/mod.rs"]
mod hostile;

fuzz_target!(|bytes: &[u8]| {
    match bytes.split_first() {
        Some((first, script)) if first & 1 == 0 => play_honest(&decode(script)),
        Some((_, script)) => play(&decode(script)),
        None => {}
    }
});
