//! What strangers send to an agent ends it not, and sends nobody more than came.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| dipole_agent::receive_anything(bytes));
