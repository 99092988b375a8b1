//! What all ranks must have done alike in a superstep, and what each said of its registrations.

use std::fmt;

/// How a superstep was ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ending {
    /// By `bsp_sync`.
    #[default]
    Sync,
    /// By `bsp_end`.
    End,
}

/// A rank's part of an area that it has registered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// Where it begins; 0 if this rank holds none.
    pub address: u64,
    /// Its bytes.
    pub bytes: u64,
    /// By which ranks of other nodes write there without a copy on the way; 0 if they cannot.
    pub key: u64,
}

impl Part {
    /// True if the rank has registered NULL.
    #[must_use]
    pub fn is_null(self) -> bool {
        self.address == 0
    }
}

/// See the module. Of most supersteps there is nothing to say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// How it was ended.
    pub ending: Ending,
    /// Calls of `bsp_set_tagsize`.
    pub tag_calls: u32,
    /// The size set last, if there were calls.
    pub tag_bytes: u64,
    /// The areas that were taken back, by number, in this order.
    pub pops: Vec<u32>,
    /// This rank's parts of new areas, in order.
    pub pushes: Vec<Part>,
}

/// In what two ranks differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Difference {
    /// One is in `bsp_sync`, the other in `bsp_end`.
    Ending,
    /// They have pushed other numbers of registrations.
    Pushes,
    /// They have popped other numbers of registrations.
    Pops,
    /// What they popped belongs to different registrations.
    PoppedAreas,
    /// They have called `bsp_set_tagsize` differently often.
    TagCalls,
    /// They have set other sizes of tags.
    TagBytes,
}

impl Facts {
    /// True if there is nothing to say.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.ending == Ending::Sync
            && self.tag_calls == 0
            && self.pops.is_empty()
            && self.pushes.is_empty()
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.ending = Ending::Sync;
        self.tag_calls = 0;
        self.tag_bytes = 0;
        self.pops.clear();
        self.pushes.clear();
    }

    /// The first thing in which another rank differs.
    #[must_use]
    pub fn difference(&self, other: &Facts) -> Option<Difference> {
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

    /// Says which rank did what, of a difference between two.
    #[must_use]
    pub fn told(&self, of: &Difference, rank: u32) -> String {
        let calls = |count: usize, call: &str| match count {
            1 => format!("rank {rank} has called {call} once"),
            _ => format!("rank {rank} has called {call} {count} times"),
        };
        match of {
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

    /// Writes them.
    pub fn encode(&self, into: &mut Vec<u8>) {
        let ending = match self.ending {
            Ending::Sync => 0,
            Ending::End => 1,
        };
        let counts = [self.tag_calls, length(&self.pops), length(&self.pushes)];
        put(into, ending);
        for count in counts {
            put(into, count);
        }
        put_long(into, self.tag_bytes);
        for area in &self.pops {
            put(into, *area);
        }
        for part in &self.pushes {
            put_long(into, part.address);
            put_long(into, part.bytes);
            put_long(into, part.key);
        }
    }

    /// Reads them from the front of `bytes`.
    pub fn decode(bytes: &mut &[u8]) -> Option<Facts> {
        let ending = match take(bytes)? {
            0 => Ending::Sync,
            1 => Ending::End,
            _ => return None,
        };
        let (tag_calls, pops, pushes) = (take(bytes)?, take(bytes)?, take(bytes)?);
        let tag_bytes = take_long(bytes)?;
        let said = pops as usize * 4 + pushes as usize * 24;
        if said > bytes.len() {
            return None;
        }
        let pops = (0..pops).map(|_| take(bytes)).collect::<Option<_>>()?;
        let part = |bytes: &mut &[u8]| {
            Some(Part {
                address: take_long(bytes)?,
                bytes: take_long(bytes)?,
                key: take_long(bytes)?,
            })
        };
        let pushes = (0..pushes).map(|_| part(bytes)).collect::<Option<_>>()?;
        Some(Facts {
            ending,
            tag_calls,
            tag_bytes,
            pops,
            pushes,
        })
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

fn length<T>(of: &[T]) -> u32 {
    u32::try_from(of.len()).unwrap_or(u32::MAX)
}

pub(crate) fn put(into: &mut Vec<u8>, value: u32) {
    into.extend_from_slice(&value.to_le_bytes());
}

pub(crate) fn put_long(into: &mut Vec<u8>, value: u64) {
    into.extend_from_slice(&value.to_le_bytes());
}

pub(crate) fn take(bytes: &mut &[u8]) -> Option<u32> {
    let (value, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(u32::from_le_bytes(*value))
}

pub(crate) fn take_long(bytes: &mut &[u8]) -> Option<u64> {
    let (value, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(u64::from_le_bytes(*value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_come_back_as_they_were_written_and_short_ones_do_not() {
        let facts = Facts {
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
        facts.encode(&mut bytes);
        assert_eq!(Facts::decode(&mut &bytes[..]), Some(facts));
        for short in 0..bytes.len() {
            assert_eq!(Facts::decode(&mut &bytes[..short]), None, "{short}");
        }
    }

    #[test]
    fn the_first_difference_is_told_of_both() {
        let one = Facts {
            pops: vec![0, 1],
            ..Facts::default()
        };
        let other = Facts {
            pops: vec![1, 0],
            ..Facts::default()
        };
        let difference = one.difference(&other).expect("one");
        assert_eq!(difference, Difference::PoppedAreas);
        assert!(one.told(&difference, 4).contains("registration 0, 1"));
        assert_eq!(one.difference(&one), None);
    }
}
