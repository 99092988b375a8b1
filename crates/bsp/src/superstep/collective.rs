//! Collective calls: what all ranks must do alike in a superstep, and the areas each registers.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How a superstep was ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ending {
    /// The superstep ends with `bsp_sync`.
    #[default]
    Sync,
    /// The superstep ends with `bsp_end`.
    End,
}

/// A rank's part of a registered area.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Start address; 0 if this rank holds no part.
    pub address: u64,
    /// Size of the area in bytes.
    pub bytes: u64,
    /// Key with which ranks of other nodes write there directly; 0 if they cannot.
    pub key: u64,
}

impl Part {
    /// True if the rank registered NULL.
    #[must_use]
    pub fn is_null(self) -> bool {
        self.address == 0
    }
}

/// The collective calls of one rank in a superstep. Most supersteps have none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CollectiveCalls {
    /// How the superstep was ended.
    pub ending: Ending,
    /// Number of calls of `bsp_set_tagsize`.
    pub tag_calls: u32,
    /// The tag size set last, if there were calls.
    pub tag_bytes: u64,
    /// The areas that were popped, by number, in order.
    pub pops: Vec<u32>,
    /// This rank's parts of new areas, in order.
    pub pushes: Vec<Part>,
}

/// How the collective calls of two ranks differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Difference {
    /// One rank called `bsp_sync`, the other `bsp_end`.
    Ending,
    /// They pushed different numbers of registrations.
    Pushes,
    /// They popped different numbers of registrations.
    Pops,
    /// They popped different registrations.
    PoppedAreas,
    /// They called `bsp_set_tagsize` a different number of times.
    TagCalls,
    /// They set different tag sizes.
    TagBytes,
}

impl CollectiveCalls {
    /// True if there were no calls but `bsp_sync`.
    #[must_use]
    pub fn is_default(&self) -> bool {
        self.ending == Ending::Sync
            && self.tag_calls == 0
            && self.pops.is_empty()
            && self.pushes.is_empty()
    }

    /// Removes all calls but keeps the memory.
    pub fn clear(&mut self) {
        self.ending = Ending::Sync;
        self.tag_calls = 0;
        self.tag_bytes = 0;
        self.pops.clear();
        self.pushes.clear();
    }

    /// The first difference from the calls of another rank.
    #[must_use]
    pub fn difference(&self, other: &CollectiveCalls) -> Option<Difference> {
        let differs = [
            (self.ending != other.ending, Difference::Ending),
            (self.pushes.len() != other.pushes.len(), Difference::Pushes),
            (self.pops.len() != other.pops.len(), Difference::Pops),
            (self.pops != other.pops, Difference::PoppedAreas),
            (self.tag_calls != other.tag_calls, Difference::TagCalls),
            (self.tag_bytes != other.tag_bytes, Difference::TagBytes),
        ];
        let found = differs.into_iter().find(|(differs, _)| *differs);
        found.map(|(_, difference)| difference)
    }

    /// Describes a difference from the side of rank `rank`, which made these calls.
    #[must_use]
    pub fn describe(&self, difference: &Difference, rank: u32) -> String {
        let calls = |count: usize, call: &str| match count {
            1 => format!("rank {rank} has called {call} once"),
            _ => format!("rank {rank} has called {call} {count} times"),
        };
        match difference {
            Difference::Ending => format!("rank {rank} is in {}", self.ending),
            Difference::Pushes => calls(self.pushes.len(), "bsp_push_reg"),
            Difference::Pops => calls(self.pops.len(), "bsp_pop_reg"),
            Difference::PoppedAreas => {
                let areas: Vec<_> = self.pops.iter().map(|area| format!("{area}")).collect();
                format!(
                    "rank {rank} has popped registration {} (counted from 0)",
                    areas.join(", ")
                )
            }
            Difference::TagCalls => calls(self.tag_calls as usize, "bsp_set_tagsize"),
            Difference::TagBytes => {
                format!("rank {rank} has set a tag size of {} bytes", self.tag_bytes)
            }
        }
    }

    /// Appends the encoded calls.
    pub fn encode(&self, into: &mut Vec<u8>) {
        // Encoding into memory cannot fail.
        into.extend(postcard::to_stdvec(self).unwrap_or_default());
    }

    /// Decodes the front of `bytes`, and removes it.
    pub fn decode(bytes: &mut &[u8]) -> Option<CollectiveCalls> {
        let (calls, rest) = postcard::take_from_bytes(bytes).ok()?;
        *bytes = rest;
        Some(calls)
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Ending::Sync => "bsp_sync",
            Ending::End => "bsp_end",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_decoded_as_they_were_encoded_and_truncated_ones_are_not() {
        let collectives = CollectiveCalls {
            ending: Ending::End,
            tag_calls: 2,
            tag_bytes: 12,
            pops: vec![3, 1],
            pushes: vec![Part {
                address: 8,
                bytes: 9,
                key: 10,
            }],
        };
        let mut bytes = Vec::new();
        collectives.encode(&mut bytes);
        assert_eq!(CollectiveCalls::decode(&mut &bytes[..]), Some(collectives));
        for short in 0..bytes.len() {
            assert_eq!(
                CollectiveCalls::decode(&mut &bytes[..short]),
                None,
                "{short}"
            );
        }
    }

    #[test]
    fn the_first_difference_is_described_for_both_ranks() {
        let one = CollectiveCalls {
            pops: vec![0, 1],
            ..CollectiveCalls::default()
        };
        let other = CollectiveCalls {
            pops: vec![1, 0],
            ..CollectiveCalls::default()
        };
        let difference = one.difference(&other).expect("one");
        assert_eq!(difference, Difference::PoppedAreas);
        assert!(one.describe(&difference, 4).contains("registration 0, 1"));
        assert_eq!(one.difference(&one), None);
    }
}
