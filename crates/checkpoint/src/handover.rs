//! Data for a restored process.

#![allow(
    clippy::cast_possible_truncation,
    reason = "addresses and lengths have 64 bits on the processor that this is for"
)]

/// Data for the restored process, at the address that it gets.
#[repr(C)]
pub(crate) struct Handover {
    /// The memory of the code, which the restored process removes.
    pub(crate) start: u64,
    pub(crate) length: u64,
    /// The environment: names and values, each ended by NUL.
    pub(crate) environment: u64,
    pub(crate) environment_bytes: u64,
}

impl Handover {
    /// Takes the environment, and removes the memory.
    ///
    /// # Safety
    /// `address` must be that of a handover that nothing else refers to.
    pub(crate) unsafe fn take(address: u64) -> Vec<(String, String)> {
        let at = std::ptr::with_exposed_provenance::<Handover>(address as usize);
        // SAFETY: the caller guarantees that it is a handover, and `Steps` has written its fields.
        let environment = unsafe {
            let handover = at.read();
            let start = std::ptr::with_exposed_provenance::<u8>(handover.environment as usize);
            let length = handover.environment_bytes as usize;
            let bytes = std::slice::from_raw_parts(start, length).to_vec();
            let memory = std::ptr::with_exposed_provenance_mut(handover.start as usize);
            libc::munmap(memory, handover.length as usize);
            bytes
        };
        let mut words = environment
            .split(|byte| *byte == 0)
            .map(|word| String::from_utf8_lossy(word).into_owned());
        let mut pairs = Vec::new();
        while let (Some(name), Some(value)) = (words.next(), words.next()) {
            pairs.push((name, value));
        }
        pairs
    }
}
