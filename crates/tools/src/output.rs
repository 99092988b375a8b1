//! How results are written.

use serde::Serialize;

/// A value as one line of JSON, without its line break.
pub(crate) fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("printed values have text keys and serialise without fail")
}
