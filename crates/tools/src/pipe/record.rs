//! Records of a directory tree: [`Record`], their encoding with postcard, and the rules for their
//! order ([`Order`]).
//!
//! A name is always a single component. The receiver keeps a descriptor of each directory between its
//! own and the current one, so no record can name a place outside.

use serde::{Deserialize, Serialize};

/// Longest name of a file, as in Linux.
pub(super) const NAME_BYTES: usize = 255;
/// Longest target of a symbolic link.
pub(super) const TARGET_BYTES: usize = 4095;
/// Longest value of an extended attribute, as in Linux.
pub(super) const VALUE_BYTES: usize = 64 << 10;
/// Levels of directories, each with an open descriptor on both sides.
pub(super) const MAX_DEPTH: u32 = 1024;
/// Files whose further names can be sent as hard links.
pub(super) const MAX_LINKED: u32 = 1 << 20;
/// Users and groups whose names are sent.
pub(super) const MAX_OWNERS: u32 = 1 << 16;
/// Offers before the receiver answers.
pub(super) const MAX_OFFERS: usize = 1000;

/// Metadata of a file, directory or symbolic link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Facts {
    /// Permission bits, with the set-user-ID, set-group-ID and sticky bits.
    pub(super) mode: u32,
    pub(super) user: u32,
    pub(super) group: u32,
    /// Time of the last modification, in seconds since 1970 and nanoseconds.
    pub(super) modified_s: i64,
    pub(super) modified_ns: u32,
}

/// One step of a transfer of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Record<'a> {
    /// The records up to the matching `Leave` belong to this directory.
    Enter {
        #[serde(with = "serde_bytes")]
        name: &'a [u8],
    },
    /// The current directory is complete.
    Leave { facts: Facts },
    /// A file, up to `Done` or `Drop`.
    File {
        #[serde(with = "serde_bytes")]
        name: &'a [u8],
        facts: Facts,
        length_bytes: u64,
        /// The receiver has its beginning, up to this offset.
        from_bytes: u64,
        /// Its number if it has further names.
        link: Option<u32>,
    },
    /// A part of the file. The file has a hole between two parts that do not touch.
    Data {
        offset_bytes: u64,
        #[serde(with = "serde_bytes")]
        bytes: &'a [u8],
    },
    /// An extended attribute of the file, or of the current directory if no file is open.
    Attribute {
        #[serde(with = "serde_bytes")]
        name: &'a [u8],
        #[serde(with = "serde_bytes")]
        value: &'a [u8],
    },
    /// The file is complete.
    Done,
    /// The file could not be read to its end, for this reason.
    Drop { reason: &'a str },
    /// A symbolic link.
    Symlink {
        #[serde(with = "serde_bytes")]
        name: &'a [u8],
        #[serde(with = "serde_bytes")]
        target: &'a [u8],
        facts: Facts,
    },
    /// Another name of the file with this number.
    HardLink {
        #[serde(with = "serde_bytes")]
        name: &'a [u8],
        link: u32,
    },
    /// A file that the receiver has, which gets this number.
    Kept {
        #[serde(with = "serde_bytes")]
        name: &'a [u8],
        link: u32,
    },
    /// Name of a user or group.
    Owner {
        is_group: bool,
        number: u32,
        #[serde(with = "serde_bytes")]
        name: &'a [u8],
    },
    /// A file of the current directory that the receiver may have already.
    Offer {
        #[serde(with = "serde_bytes")]
        name: &'a [u8],
        facts: Facts,
        length_bytes: u64,
    },
    /// The receiver answers with one [`Present`] for each offer since the last answer.
    Answer,
}

/// The receiver's part of an offered file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Present {
    Nothing,
    /// A file of this length and modification time.
    Whole,
    /// A beginning with this CRC32C.
    Part {
        length_bytes: u64,
        crc: u32,
    },
}

/// Reasons why bytes are not the records of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum RecordError {
    #[error("a record that cannot be decoded, with {left_bytes} bytes left")]
    Malformed { left_bytes: usize },
    #[error("a name that is empty, too long, `.` or `..`, or has a slash or a zero byte")]
    Name,
    #[error("a field outside its range: {0}")]
    Range(&'static str),
    #[error("a record out of order: {0}")]
    Order(&'static str),
}

impl<'a> Record<'a> {
    /// Appends the record to a batch.
    pub(super) fn append(&self, to: &mut Vec<u8>) {
        *to = postcard::to_extend(self, std::mem::take(to)).expect("a vector takes all");
    }

    /// Removes the first record of a batch.
    pub(super) fn take(batch: &mut &'a [u8]) -> Result<Record<'a>, RecordError> {
        let malformed = RecordError::Malformed {
            left_bytes: batch.len(),
        };
        let (record, rest) = postcard::take_from_bytes(batch).map_err(|_| malformed)?;
        *batch = rest;
        Ok(record)
    }
}

/// Room that [`append_data`] needs in addition to the data.
pub(super) const DATA_HEAD_BYTES: usize = 1 + 10 + LENGTH_BYTES;
/// Length of the encoded length of data, padded so that it can be filled in later.
const LENGTH_BYTES: usize = 3;

/// Appends a `Data` record that `fill` reads in place, at most `most_bytes` (up to 2 MiB). Without data
/// it appends nothing.
pub(super) fn append_data<E>(
    batch: &mut Vec<u8>,
    offset_bytes: u64,
    most_bytes: usize,
    fill: impl FnOnce(&mut [u8]) -> Result<usize, E>,
) -> Result<usize, E> {
    let before = batch.len();
    Record::Data {
        offset_bytes,
        bytes: &[],
    }
    .append(batch);
    // The encoding ends with the length, here a single zero byte.
    let length_at = batch.len() - 1;
    let begin = length_at + LENGTH_BYTES;
    batch.resize(begin + most_bytes, 0);
    let filled = fill(&mut batch[begin..]);
    let bytes = *filled.as_ref().unwrap_or(&0);
    if bytes == 0 {
        batch.truncate(before);
        return filled;
    }
    batch.truncate(begin + bytes);
    let seven = |shift: usize| (bytes >> shift).to_le_bytes()[0] & 0x7f;
    batch[length_at..begin].copy_from_slice(&[seven(0) | 0x80, seven(7) | 0x80, seven(14)]);
    filled
}

/// Checks each record, and whether it may follow those before it.
#[derive(Debug, Default)]
pub(super) struct Order {
    depth: u32,
    /// Length of the open file, and the end of its last data.
    file: Option<(u64, u64)>,
    links: u32,
    owners: u32,
    offers: usize,
}

impl Order {
    /// Checks the next record.
    pub(super) fn check(&mut self, record: &Record<'_>) -> Result<(), RecordError> {
        let within = matches!(
            record,
            Record::Data { .. } | Record::Attribute { .. } | Record::Done | Record::Drop { .. }
        );
        if self.file.is_some() && !within {
            return Err(RecordError::Order("a file is open"));
        }
        match record {
            Record::Enter { name } => {
                check_name(name)?;
                in_range(self.depth < MAX_DEPTH, "depth of a directory")?;
                self.depth += 1;
            }
            Record::Leave { facts } => {
                check_facts(facts)?;
                let above = self.depth.checked_sub(1);
                self.depth = above.ok_or(RecordError::Order("no directory to leave"))?;
            }
            Record::File { link, .. } => {
                self.file = Some(open(record)?);
                self.number(*link)?;
            }
            Record::Kept { name, link } => {
                check_name(name)?;
                self.number(Some(*link))?;
            }
            Record::Data {
                offset_bytes,
                bytes,
            } => self.data(*offset_bytes, bytes.len() as u64)?,
            Record::Attribute { name, value } => {
                in_range(is_text(name, NAME_BYTES), "name of an attribute")?;
                in_range(value.len() <= VALUE_BYTES, "value of an attribute")?;
                if self.file.is_none() && self.depth == 0 {
                    return Err(RecordError::Order("an attribute without a file"));
                }
            }
            Record::Done | Record::Drop { .. } => {
                let file = self.file.take();
                file.ok_or(RecordError::Order("no file is open"))?;
            }
            Record::Symlink {
                name,
                target,
                facts,
            } => {
                check_name(name)?;
                check_facts(facts)?;
                in_range(is_text(target, TARGET_BYTES), "target of a link")?;
            }
            Record::HardLink { name, link } => {
                check_name(name)?;
                in_range(*link < self.links, "number of a link")?;
            }
            Record::Owner { name, .. } => {
                in_range(is_text(name, NAME_BYTES), "name of a user or group")?;
                in_range(self.owners < MAX_OWNERS, "number of users and groups")?;
                self.owners += 1;
            }
            Record::Offer { name, facts, .. } => {
                check_name(name)?;
                check_facts(facts)?;
                in_range(self.offers < MAX_OFFERS, "number of offers")?;
                self.offers += 1;
            }
            Record::Answer => self.offers = 0,
        }
        Ok(())
    }

    fn data(&mut self, offset_bytes: u64, length_bytes: u64) -> Result<(), RecordError> {
        let file = self.file.as_mut();
        let (length, position) = file.ok_or(RecordError::Order("data without a file"))?;
        let end = offset_bytes.checked_add(length_bytes);
        match end.filter(|end| *end <= *length) {
            Some(end) if offset_bytes >= *position => *position = end,
            _ => return Err(RecordError::Range("offset of data")),
        }
        Ok(())
    }

    /// A file gets the next number.
    fn number(&mut self, link: Option<u32>) -> Result<(), RecordError> {
        if let Some(link) = link {
            in_range(link == self.links && link < MAX_LINKED, "number of a link")?;
            self.links += 1;
        }
        Ok(())
    }

    /// True if everything that was begun has ended.
    pub(super) fn is_complete(&self) -> bool {
        self.depth == 0 && self.file.is_none() && self.offers == 0
    }
}

/// Length of a file that begins, and the offset of its first data.
fn open(record: &Record<'_>) -> Result<(u64, u64), RecordError> {
    let Record::File {
        name,
        facts,
        length_bytes,
        from_bytes,
        ..
    } = record
    else {
        return Err(RecordError::Order("no file begins"));
    };
    check_name(name)?;
    check_facts(facts)?;
    let is_length = i64::try_from(*length_bytes).is_ok();
    in_range(is_length && from_bytes <= length_bytes, "length of a file")?;
    Ok((*length_bytes, *from_bytes))
}

fn in_range(is_valid: bool, field: &'static str) -> Result<(), RecordError> {
    is_valid.then_some(()).ok_or(RecordError::Range(field))
}

fn is_text(text: &[u8], most_bytes: usize) -> bool {
    (1..=most_bytes).contains(&text.len()) && !text.contains(&0)
}

fn check_facts(facts: &Facts) -> Result<(), RecordError> {
    in_range(facts.mode <= 0o7777, "mode of a file")?;
    in_range(facts.modified_ns < 1_000_000_000, "time of a file")
}

fn check_name(name: &[u8]) -> Result<(), RecordError> {
    is_name(name).then_some(()).ok_or(RecordError::Name)
}

/// True for the name of a file within a directory, which leads nowhere else.
pub(super) fn is_name(name: &[u8]) -> bool {
    is_text(name, NAME_BYTES) && !matches!(name, b"." | b"..") && !name.contains(&b'/')
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const FACTS: Facts = Facts {
        mode: 0o644,
        user: 1,
        group: 2,
        modified_s: -1,
        modified_ns: 999_999_999,
    };

    fn file(name: &[u8], length_bytes: u64) -> Record<'_> {
        Record::File {
            name,
            facts: FACTS,
            length_bytes,
            from_bytes: 0,
            link: None,
        }
    }

    fn data(offset_bytes: u64, bytes: &[u8]) -> Record<'_> {
        Record::Data {
            offset_bytes,
            bytes,
        }
    }

    /// One record of each kind, in a valid order.
    fn tree() -> Vec<Record<'static>> {
        vec![
            Record::Owner {
                is_group: true,
                number: 2,
                name: b"users",
            },
            Record::Enter { name: b"a\n\xff" },
            Record::Offer {
                name: b"x",
                facts: FACTS,
                length_bytes: 9,
            },
            Record::Answer,
            Record::Kept {
                name: b"w",
                link: 0,
            },
            file(b"x", 9),
            data(0, b"ab"),
            data(7, b"cd"),
            Record::Attribute {
                name: b"user.a",
                value: b"",
            },
            Record::Done,
            file(b"y", 1),
            Record::Drop { reason: "gone" },
            Record::HardLink {
                name: b"z",
                link: 0,
            },
            Record::Symlink {
                name: b"l",
                target: b"../x",
                facts: FACTS,
            },
            Record::Leave { facts: FACTS },
        ]
    }

    fn check(records: &[Record<'_>]) -> Result<Order, RecordError> {
        let mut order = Order::default();
        for record in records {
            order.check(record)?;
        }
        Ok(order)
    }

    #[test]
    fn a_tree_reads_back_as_it_was_written_and_is_complete() {
        let records = tree();
        let mut batch = Vec::new();
        for record in &records {
            record.append(&mut batch);
        }
        let mut rest = batch.as_slice();
        let mut order = Order::default();
        for record in &records {
            assert_eq!(Record::take(&mut rest).as_ref(), Ok(record));
            assert!(!order.is_complete() || order.depth == 0);
            order.check(record).unwrap();
        }
        assert!(rest.is_empty() && order.is_complete());
        assert!(!check(&records[..records.len() - 1]).unwrap().is_complete());
    }

    #[test]
    fn data_are_read_in_place() {
        for bytes in [1, 127, 128, 16_384, 300_000] {
            let mut batch = vec![7];
            let content = vec![0x5a; bytes];
            let fill = |buffer: &mut [u8]| {
                buffer[..bytes].copy_from_slice(&content);
                Ok::<_, ()>(bytes)
            };
            append_data(&mut batch, 1 << 40, bytes + 5, fill).unwrap();
            let mut rest = &batch[1..];
            assert_eq!(Record::take(&mut rest), Ok(data(1 << 40, &content)));
            assert!(rest.is_empty() && batch.len() <= 1 + DATA_HEAD_BYTES + bytes);
        }
        for filled in [Ok(0), Err("input")] {
            let mut batch = vec![7];
            assert_eq!(append_data(&mut batch, 0, 9, |_| filled), filled);
            assert_eq!(batch, [7]);
        }
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        let long = [b'a'; 256];
        for name in [&b""[..], b".", b"..", b"/", b"../x", b"a/b", b"a\0", &long] {
            for record in [
                Record::Enter { name },
                file(name, 1),
                Record::Symlink {
                    name,
                    target: b"x",
                    facts: FACTS,
                },
                Record::Kept { name, link: 0 },
            ] {
                assert_eq!(check(&[record]).unwrap_err(), RecordError::Name);
            }
        }
    }

    #[test]
    fn records_out_of_order_or_range_are_refused() {
        let facts = FACTS;
        let mode = Facts {
            mode: 0o10_000,
            ..facts
        };
        let time = Facts {
            modified_ns: 1_000_000_000,
            ..facts
        };
        let resumed = Record::File {
            name: b"x",
            facts,
            length_bytes: 4,
            from_bytes: 5,
            link: None,
        };
        for records in [
            &[Record::Leave { facts }][..],
            &[Record::Done],
            &[data(0, b"a")],
            &[file(b"x", 4), file(b"y", 4)],
            &[file(b"x", 4), data(2, b"abc")],
            &[file(b"x", 4), data(2, b"a"), data(1, b"a")],
            &[file(b"x", 4), data(u64::MAX, b"a")],
            &[file(b"x", u64::MAX)],
            &[resumed],
            &[Record::HardLink {
                name: b"x",
                link: 0,
            }],
            &[Record::Kept {
                name: b"x",
                link: 1,
            }],
            &[Record::Attribute {
                name: b"user.a",
                value: b"",
            }],
            &[Record::Enter { name: b"x" }, Record::Leave { facts: mode }],
            &[Record::Enter { name: b"x" }, Record::Leave { facts: time }],
            &[Record::Enter { name: b"x" }; MAX_DEPTH as usize + 1],
        ] {
            assert!(check(records).is_err(), "{records:?}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_end_in_an_error_or_at_their_end(bytes in vec(any::<u8>(), 0..200)) {
            let (mut rest, mut order) = (bytes.as_slice(), Order::default());
            while let Ok(record) = Record::take(&mut rest) {
                let _is_accepted = order.check(&record);
                let mut written = Vec::new();
                record.append(&mut written);
                prop_assert_eq!(Record::take(&mut written.as_slice()), Ok(record));
            }
        }

        #[test]
        fn a_damaged_tree_is_refused_or_leads_nowhere(
            at in any::<prop::sample::Index>(),
            byte in any::<u8>(),
        ) {
            let mut batch = Vec::new();
            for record in tree() {
                record.append(&mut batch);
            }
            let at = at.index(batch.len());
            batch[at] = byte;
            let (mut rest, mut order) = (batch.as_slice(), Order::default());
            while let Ok(record) = Record::take(&mut rest) {
                if order.check(&record).is_err() {
                    break;
                }
                if let Record::Enter { name } | Record::File { name, .. } = record {
                    prop_assert!(is_name(name));
                }
            }
        }
    }
}
