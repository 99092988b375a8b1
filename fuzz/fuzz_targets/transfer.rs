//! Messages of `dipole send`: each is refused or read back as it was, and records that were accepted name
//! no place outside the receiver's directory.

#![cfg_attr(fuzzing, no_main)]

use dipole_fuzz::fuzz_target;

#[path = "../../crates/tools/src/pipe/frame.rs"]
#[allow(dead_code, reason = "not all of it is used here")]
mod frame;
#[path = "../../crates/tools/src/pipe/record.rs"]
#[allow(dead_code, reason = "not all of it is used here")]
mod record;

use frame::{Frame, Kind};
use record::{MAX_DEPTH, Order, Record};

fn follow(mut batch: &[u8]) {
    let (mut order, mut depth) = (Order::default(), 0);
    while !batch.is_empty() {
        let before = batch.len();
        let Ok(record) = Record::take(&mut batch) else {
            return;
        };
        assert!(batch.len() < before);
        let mut written = Vec::new();
        record.append(&mut written);
        assert_eq!(Record::take(&mut written.as_slice()), Ok(record));
        if order.check(&record).is_err() {
            return;
        }
        match record {
            Record::Enter { .. } => depth += 1,
            Record::Leave { .. } => depth -= 1,
            _ => {}
        }
        assert!((0..=MAX_DEPTH.cast_signed()).contains(&depth));
        if let Record::Enter { name }
        | Record::File { name, .. }
        | Record::Symlink { name, .. }
        | Record::HardLink { name, .. }
        | Record::Kept { name, .. }
        | Record::Offer { name, .. } = record
        {
            assert!(!name.is_empty() && !name.contains(&b'/') && !name.contains(&0));
            assert!(name != b"." && name != b"..");
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    follow(bytes);
    let Ok(frame) = Frame::parse(bytes) else {
        return;
    };
    let mut written = Vec::new();
    frame.write(&mut written);
    assert_eq!(Frame::parse(&written), Ok(frame));
    if let Kind::Batch { records, .. } = frame.kind {
        follow(records);
    }
});
