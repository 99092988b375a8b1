//! Images of processes: whatever the bytes are, reading them neither panics nor accepts chunks
//! outside of the mappings.

#![cfg_attr(fuzzing, no_main)]

use dipole_fuzz::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = dipole_checkpoint::is_intact(bytes);
});
