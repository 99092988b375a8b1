//! Images of processes: whatever the bytes are, reading them neither panics nor accepts chunks
//! outside of the mappings.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = dipole_checkpoint::is_intact(bytes);
});
