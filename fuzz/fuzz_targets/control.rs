//! Any control packet is refused, or its message is decoded as it was encoded.

#![cfg_attr(fuzzing, no_main)]

use dipole_fuzz::fuzz_target;
use dipole_naming::envelope::{Authenticator, Message, Opened};
use dipole_naming::registry::{Announcement, Query, Response};

fuzz_target!(|bytes: &[u8]| {
    let authenticator = Authenticator::new(None);
    // Unchanged, and with correct length and checksum, which a fuzzer does not find.
    let mut right = bytes.to_vec();
    if let (Some(end), Ok(length)) = (right.len().checked_sub(4), u32::try_from(right.len()))
        && end >= 8
    {
        right[4..8].copy_from_slice(&length.to_le_bytes());
        let sum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &right[..end]);
        right[end..].copy_from_slice(&sum.to_le_bytes()[..4]);
    }
    for bytes in [bytes, &right] {
        if let Ok(opened) = authenticator.open(bytes) {
            reads_back::<Query>(&authenticator, &opened);
            reads_back::<Response>(&authenticator, &opened);
            reads_back::<Announcement>(&authenticator, &opened);
        }
        let _ = authenticator.refuse(bytes, Query::KIND, dipole_naming::address::NodeId(1));
        let _ = authenticator.refused(bytes, 1);
    }
});

fn reads_back<M: Message + PartialEq>(authenticator: &Authenticator, opened: &Opened<'_>) {
    if let Ok(message) = opened.read::<M>() {
        let packet = authenticator.seal(opened.header, &message);
        let again = authenticator.open(&packet).expect("just sealed");
        assert!(again.read::<M>().is_ok_and(|read| read == message));
    }
}
