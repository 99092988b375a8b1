//! Message lengths at which a node changes its method, as calibrated.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::file::{self, ProfileError};

/// Calibrated crossover lengths. Absent values keep their built-in defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Choices {
    /// Longest message sent through shared memory in one piece.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eager_bytes: Option<usize>,
    /// Length of the pieces of longer messages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub piece_bytes: Option<usize>,
    /// Limit for the packets of a message that share one datagram on the port of short messages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_packets: Option<usize>,
    /// Longest message of an MPI program that is sent whole. Longer ones are offered, and the
    /// receiver gets them into its buffer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub whole_bytes: Option<usize>,
    /// Shortest write of a TCP program that goes through shared memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket_bytes: Option<usize>,
}

impl Choices {
    /// Default of `eager_bytes`.
    pub const BUILT_IN_EAGER_BYTES: usize = 16 << 10;
    /// Default of `whole_bytes` between nodes. An offer takes two more messages, each of which waits
    /// until a process polls: long where there are more ranks than cores.
    pub const BUILT_IN_WHOLE_BYTES: usize = 64 << 10;
    /// Default of `whole_bytes` within a node.
    pub const BUILT_IN_LOCAL_WHOLE_BYTES: usize = 8 << 10;
    /// Default of `socket_bytes`.
    pub const BUILT_IN_SOCKET_BYTES: usize = 32 << 10;
    /// Limits of `whole_bytes`, whatever a profile contains: unexpected messages take the receiver's
    /// memory.
    pub const LEAST_WHOLE_BYTES: usize = 1 << 10;
    const MOST_WHOLE_BYTES: usize = 256 << 10;

    /// Returns the longest message of an MPI program that is sent whole, within a node or between
    /// nodes.
    #[must_use]
    pub fn whole_bytes(&self, is_local: bool) -> usize {
        let built_in = match is_local {
            true => Choices::BUILT_IN_LOCAL_WHOLE_BYTES,
            false => Choices::BUILT_IN_WHOLE_BYTES,
        };
        self.whole_bytes.map_or(built_in, |bytes| {
            bytes.clamp(Choices::LEAST_WHOLE_BYTES, Choices::MOST_WHOLE_BYTES)
        })
    }

    /// Loads the choices for a kind of link. All are absent if it was never calibrated.
    ///
    /// # Errors
    /// [`ProfileError`].
    pub fn load(directory: &Path, link: &str) -> Result<Choices, ProfileError> {
        #[derive(Deserialize)]
        struct Part {
            #[serde(default)]
            choices: Choices,
        }
        let part: Option<Part> = file::read(directory, link)?;
        Ok(part.map(|part| part.choices).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::write;

    #[test]
    fn choices_are_read_from_a_profile_with_other_contents() {
        let directory = tempfile::tempdir().expect("a directory");
        let of = |link| Choices::load(directory.path(), link).expect("readable");
        assert_eq!(of("shm"), Choices::default());
        let text = r#"{"version": 1, "link": "shm", "cost": [{"p": 2}],
            "choices": {"eager_bytes": 4096, "later": true}}"#;
        std::fs::write(directory.path().join("shm.json"), text).expect("it can be written");
        let expected = Choices {
            eager_bytes: Some(4096),
            ..Choices::default()
        };
        assert_eq!(of("shm"), expected);
        assert_eq!(of("udp"), Choices::default());
        let text = r#"{"version": 1, "link": "udp"}"#;
        std::fs::write(directory.path().join("udp.json"), text).expect("it can be written");
        assert_eq!(of("udp"), Choices::default());
    }

    #[test]
    fn the_longest_whole_message_is_built_in_measured_or_clamped() {
        let of = |whole_bytes| Choices {
            whole_bytes,
            ..Choices::default()
        };
        assert_eq!(of(None).whole_bytes(true), 8 << 10);
        assert_eq!(of(None).whole_bytes(false), 64 << 10);
        assert_eq!(of(Some(20_000)).whole_bytes(true), 20_000);
        assert_eq!(of(Some(0)).whole_bytes(false), 1 << 10);
        assert_eq!(of(Some(usize::MAX)).whole_bytes(false), 256 << 10);
    }

    #[test]
    fn errors_name_the_file_and_a_remedy() {
        let directory = tempfile::tempdir().expect("a directory");
        let error = |text: &str| {
            std::fs::write(directory.path().join("udp.json"), text).expect("it can be written");
            let loaded = Choices::load(directory.path(), "udp");
            loaded.expect_err("it is wrong").to_string()
        };
        assert!(error(r#"{"version": 9, "links": []}"#).contains("has version 9"));
        let wrong = error(r#"{"version": 1, "choices": {"eager_bytes": "much"}}"#);
        assert!(
            wrong.contains("udp.json is not a link profile") && wrong.contains("calibrate again")
        );
        let missing = write(
            &directory.path().join("udp.json"),
            "udp",
            &Choices::default(),
        );
        let missing = missing.expect_err("a file is not a folder").to_string();
        assert!(missing.contains("cannot create the folder"), "{missing}");
    }
}
