//! Slurm's short form of many node names: `n[1-3,07-09],other[1-2]x`.
//!
//! A list is either wholly right or refused. It comes from outside, so what it may
//! unfold to is bounded before anything is unfolded.

use std::collections::HashSet;

/// Longest list that is read.
pub(super) const MAX_LIST_BYTES: usize = 1 << 20;
/// Most names a list may unfold to.
pub(super) const MAX_NAMES: usize = super::MAX_RANKS as usize;
/// Longest name: as long as a host's can be.
pub(super) const MAX_NAME_BYTES: usize = 253;
/// Most digits of a number in brackets.
const MAX_DIGITS: usize = 18;

/// Why a list of nodes is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum HostlistError {
    /// It has no business to be so long.
    #[error("at most {MAX_LIST_BYTES} bytes, not {bytes}")]
    TooLong { bytes: usize },
    /// It names more nodes than a job can have.
    #[error("at most {MAX_NAMES} nodes")]
    TooMany,
    /// A name would be longer than any host's.
    #[error("names of at most {MAX_NAME_BYTES} bytes (at byte {})", .at + 1)]
    NameTooLong { at: usize },
    /// Something else than a name or a range.
    #[error("{expected} at byte {}", .at + 1)]
    Unexpected { at: usize, expected: &'static str },
    /// A name stands there twice.
    #[error("every node once, not `{name}` again")]
    Twice { name: String },
}

/// One part of a name: itself, or what stands in brackets.
enum Part<'a> {
    Text(&'a str),
    Ranges(Vec<Range>),
}

/// Numbers from `first` to `last`, written with at least `width` digits.
struct Range {
    first: u64,
    last: u64,
    width: usize,
}

impl Part<'_> {
    fn count(&self) -> usize {
        match self {
            Part::Text(_) => 1,
            Part::Ranges(ranges) => ranges.iter().fold(0, |sum: usize, range| {
                let count = usize::try_from(range.last - range.first).unwrap_or(usize::MAX);
                sum.saturating_add(count).saturating_add(1)
            }),
        }
    }

    fn longest(&self) -> usize {
        match self {
            Part::Text(text) => text.len(),
            Part::Ranges(_) => MAX_DIGITS,
        }
    }

    fn append_to(&self, names: &[String]) -> Vec<String> {
        match self {
            Part::Text(text) => names.iter().map(|name| format!("{name}{text}")).collect(),
            Part::Ranges(ranges) => names
                .iter()
                .flat_map(|name| {
                    ranges.iter().flat_map(move |range| {
                        let width = range.width;
                        (range.first..=range.last)
                            .map(move |number| format!("{name}{number:0width$}"))
                    })
                })
                .collect(),
        }
    }
}

/// All names of a list, in its order.
pub(super) fn unfold(list: &str) -> Result<Vec<String>, HostlistError> {
    if list.len() > MAX_LIST_BYTES {
        return Err(HostlistError::TooLong { bytes: list.len() });
    }
    let mut names: Vec<String> = Vec::new();
    let mut at = 0;
    loop {
        let (parts, next) = parse_item(list, at)?;
        let count = parts.iter().fold(1, |product: usize, part| {
            product.saturating_mul(part.count())
        });
        if count > MAX_NAMES - names.len() {
            return Err(HostlistError::TooMany);
        }
        if parts.iter().map(Part::longest).sum::<usize>() > MAX_NAME_BYTES {
            return Err(HostlistError::NameTooLong { at });
        }
        let mut item = vec![String::new()];
        for part in &parts {
            item = part.append_to(&item);
        }
        names.append(&mut item);
        if next == list.len() {
            break;
        }
        // What ends an item is a comma.
        at = next + 1;
    }
    let mut seen = HashSet::new();
    match names.iter().find(|name| !seen.insert(name.as_str())) {
        Some(name) => Err(HostlistError::Twice { name: name.clone() }),
        None => Ok(names),
    }
}

/// The parts of the name that begins at `start`, and where it ends.
fn parse_item(list: &str, start: usize) -> Result<(Vec<Part<'_>>, usize), HostlistError> {
    let unexpected = |at, expected| HostlistError::Unexpected { at, expected };
    let bytes = list.as_bytes();
    let mut parts = Vec::new();
    let mut at = start;
    loop {
        match bytes.get(at) {
            None | Some(b',') if at == start => return Err(unexpected(at, "a node's name")),
            None | Some(b',') => return Ok((parts, at)),
            Some(b'[') => {
                let close = list[at..]
                    .find(']')
                    .ok_or_else(|| unexpected(list.len(), "`]`"))?;
                let ranges = parse_ranges(&list[at + 1..at + close], at + 1)?;
                parts.push(Part::Ranges(ranges));
                at += close + 1;
            }
            Some(byte) if is_of_name(*byte) => {
                let length = bytes[at..].iter().take_while(|byte| is_of_name(**byte));
                let end = at + length.count();
                parts.push(Part::Text(&list[at..end]));
                at = end;
            }
            Some(_) => {
                return Err(unexpected(
                    at,
                    "letters, digits, `.`, `-`, `_`, a comma or numbers in brackets",
                ));
            }
        }
    }
}

fn is_of_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_')
}

/// What stands in brackets: `1-3,07-09,12`.
fn parse_ranges(text: &str, start: usize) -> Result<Vec<Range>, HostlistError> {
    let mut ranges = Vec::new();
    let mut at = start;
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let range = parse_number(first)
            .zip(parse_number(last))
            .filter(|(lowest, highest)| lowest <= highest && first.len() <= last.len())
            .map(|(lowest, highest)| Range {
                first: lowest,
                last: highest,
                width: first.len(),
            });
        ranges.push(range.ok_or(HostlistError::Unexpected {
            at,
            expected: "a number or a range such as 1-3",
        })?);
        at += part.len() + 1;
    }
    Ok(ranges)
}

fn parse_number(text: &str) -> Option<u64> {
    let is_number = text.len() <= MAX_DIGITS && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_list_unfolds_in_its_order_with_zeros_kept() {
        for (list, names) in [
            ("n1", "n1"),
            (
                "n[1-3,07-09],other[1-2]x",
                "n1 n2 n3 n07 n08 n09 other1x other2x",
            ),
            ("a-b.c_d,e", "a-b.c_d e"),
            ("r[1-2]n[08-10]", "r1n08 r1n09 r1n10 r2n08 r2n09 r2n10"),
            ("[3-4]", "3 4"),
            ("n[9-11]", "n9 n10 n11"),
        ] {
            assert_eq!(unfold(list).unwrap().join(" "), names, "{list}");
        }
    }

    #[test]
    fn what_is_no_list_is_refused_with_the_place() {
        for (list, wanted) in [
            ("", "a node's name at byte 1"),
            ("n1,", "a node's name at byte 4"),
            (",n1", "a node's name at byte 1"),
            ("n[1-3", "`]` at byte 6"),
            ("n]", "letters, digits"),
            ("n 1", "at byte 2"),
            ("n[]", "a number or a range such as 1-3 at byte 3"),
            ("n[1,,2]", "at byte 5"),
            ("n[3-1]", "a number or a range"),
            ("n[001-2]", "a number or a range"),
            ("n[-1]", "a number or a range"),
            ("n[+1]", "a number or a range"),
            ("n[1[2]]", "a number or a range"),
            ("n[1-2-3]", "a number or a range"),
            ("n[1234567890123456789]", "a number or a range"),
            ("n1,n[1-2]", "not `n1` again"),
            ("n[0-65536]", "at most 65536 nodes"),
            ("n[0-999999999999999999]", "at most 65536 nodes"),
            ("n[0-65535],m", "at most 65536 nodes"),
            (
                "a[1-999]b[1-999]c[1-999]d[1-999]e[1-999]f[1-999]g[1-999]",
                "at most",
            ),
            ("n\u{e9}", "at byte 2"),
        ] {
            let said = unfold(list).unwrap_err().to_string();
            assert!(said.contains(wanted), "{list}: {said}");
        }
        let name = "n".repeat(MAX_NAME_BYTES + 1);
        assert_eq!(unfold(&name), Err(HostlistError::NameTooLong { at: 0 }));
        let long = "n,".repeat(MAX_LIST_BYTES);
        assert!(matches!(unfold(&long), Err(HostlistError::TooLong { .. })));
    }

    fn ranges() -> impl Strategy<Value = (String, Vec<String>)> {
        let range = (0_u64..2000, 0_u64..12, 1_usize..6).prop_map(|(first, more, width)| {
            let numbers: Vec<String> = (first..=first + more)
                .map(|number| format!("{number:0width$}"))
                .collect();
            let text = match more {
                0 => numbers[0].clone(),
                _ => format!("{}-{}", numbers[0], numbers[numbers.len() - 1]),
            };
            (text, numbers)
        });
        prop::collection::vec(range, 1..4).prop_map(|ranges| {
            let (texts, numbers): (Vec<_>, Vec<_>) = ranges.into_iter().unzip();
            (texts.join(","), numbers.concat())
        })
    }

    proptest! {
        #[test]
        fn whatever_is_folded_unfolds_to_the_same_names(
            items in prop::collection::vec(("[a-z]{1,4}", ranges(), "[a-z.]{0,3}"), 1..5)
        ) {
            let mut list = Vec::new();
            let mut names = Vec::new();
            for (index, (before, (text, numbers), after)) in items.iter().enumerate() {
                list.push(format!("{before}{index}-[{text}]{after}"));
                names.extend(
                    numbers.iter().map(|number| format!("{before}{index}-{number}{after}")),
                );
            }
            let unique: HashSet<&String> = names.iter().collect();
            let found = unfold(&list.join(","));
            if unique.len() == names.len() {
                prop_assert_eq!(found, Ok(names));
            } else {
                prop_assert!(matches!(found, Err(HostlistError::Twice { .. })), "{:?}", found);
            }
        }

        #[test]
        fn no_text_makes_it_panic_or_grow_beyond_its_bounds(
            text in "[n0-9,\\[\\]\\-x. é]{0,60}"
        ) {
            if let Ok(names) = unfold(&text) {
                prop_assert!(!names.is_empty() && names.len() <= MAX_NAMES);
                for name in names {
                    prop_assert!(!name.is_empty() && name.len() <= MAX_NAME_BYTES);
                    prop_assert!(name.bytes().all(is_of_name));
                }
            }
        }

        #[test]
        fn arbitrary_bytes_are_read_or_refused(text in any::<String>()) {
            let _ = unfold(&text);
        }
    }
}
