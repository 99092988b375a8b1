//! Whatever a lender or a borrower says is refused, or means the same when it is written
//! and read again.

#![no_main]

use dipole_bpf::loan::wire::{Answer, Question};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(question) = Question::decode(bytes) {
        assert_eq!(Question::decode(&question.encode()), Ok(question));
    }
    if let Ok(answer) = Answer::decode(bytes) {
        assert_eq!(Answer::decode(&answer.encode()), Ok(answer));
    }
});
