//! Slurm's compact lists of node names: `n[1-3,07-09],other[1-2]x`.
//!
//! A malformed list is rejected as a whole. Its size is checked before it is expanded, because it
//! comes from outside.

use std::collections::HashSet;

/// Longest list that is accepted.
pub(super) const MAX_LIST_BYTES: usize = 1 << 20;
/// Maximum number of names in a list.
pub(super) const MAX_NAMES: usize = super::MAX_RANKS as usize;
/// Longest name: the limit of host names.
pub(super) const MAX_NAME_BYTES: usize = 253;
/// Maximum number of digits in brackets.
const MAX_DIGITS: usize = 18;

/// Why a list of nodes is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum HostlistError {
    /// It is too long.
    #[error("at most {MAX_LIST_BYTES} bytes, not {bytes}")]
    TooLong { bytes: usize },
    /// It names more nodes than a job can have.
    #[error("at most {MAX_NAMES} nodes")]
    TooMany,
    /// A name would be longer than a host name may be.
    #[error("names of at most {MAX_NAME_BYTES} bytes (at byte {})", .at + 1)]
    NameTooLong { at: usize },
    /// Neither a name nor a range.
    #[error("{expected} at byte {}", .at + 1)]
    Unexpected { at: usize, expected: &'static str },
    /// A name occurs twice.
    #[error("every node once, not `{name}` again")]
    Twice { name: String },
}

/// Expands a list, in its order.
pub(super) fn expand(list: &str) -> Result<Vec<String>, HostlistError> {
    if list.len() > MAX_LIST_BYTES {
        return Err(HostlistError::TooLong { bytes: list.len() });
    }
    let mut names: Vec<String> = Vec::new();
    let mut at = 0;
    loop {
        let (mut item, next) = expand_item(list, at, MAX_NAMES - names.len())?;
        names.append(&mut item);
        if next == list.len() {
            break;
        }
        // Items are separated by commas.
        at = next + 1;
    }
    let mut seen = HashSet::new();
    match names.iter().find(|name| !seen.insert(name.as_str())) {
        Some(name) => Err(HostlistError::Twice { name: name.clone() }),
        None => Ok(names),
    }
}

/// Expands the item that begins at `start` to at most `max` names; also returns its end.
fn expand_item(
    list: &str,
    start: usize,
    max: usize,
) -> Result<(Vec<String>, usize), HostlistError> {
    let unexpected = |at, expected| HostlistError::Unexpected { at, expected };
    let mut names = vec![String::new()];
    let mut at = start;
    loop {
        let rest = &list[at..];
        match rest.bytes().next() {
            None | Some(b',') if at == start => return Err(unexpected(at, "a node's name")),
            None | Some(b',') if names.len() > max => return Err(HostlistError::TooMany),
            None | Some(b',') => return Ok((names, at)),
            Some(b'[') => {
                let close = rest.find(']');
                let close = close.ok_or_else(|| unexpected(list.len(), "`]`"))?;
                let numbers = expand_ranges(&rest[1..close], at + 1, max / names.len())?;
                let numbered = |name: String| numbers.iter().map(move |one| name.clone() + one);
                names = names.into_iter().flat_map(numbered).collect();
                at += close + 1;
            }
            Some(byte) if is_name_byte(byte) => {
                let length = rest.bytes().take_while(|byte| is_name_byte(*byte)).count();
                if length > MAX_NAME_BYTES {
                    return Err(HostlistError::NameTooLong { at: start });
                }
                for name in &mut names {
                    name.push_str(&rest[..length]);
                }
                at += length;
            }
            Some(_) => {
                return Err(unexpected(
                    at,
                    "letters, digits, `.`, `-`, `_`, a comma or numbers in brackets",
                ));
            }
        }
        if names.iter().any(|name| name.len() > MAX_NAME_BYTES) {
            return Err(HostlistError::NameTooLong { at: start });
        }
    }
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_')
}

/// Expands numbers in brackets, at most `max`: `1-3,07-09,12`.
fn expand_ranges(text: &str, start: usize, max: usize) -> Result<Vec<String>, HostlistError> {
    let mut numbers = Vec::new();
    let mut at = start;
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (lowest, highest) = parse_number(first)
            .zip(parse_number(last))
            .filter(|(lowest, highest)| lowest <= highest && first.len() <= last.len())
            .ok_or(HostlistError::Unexpected {
                at,
                expected: "a number or a range such as 1-3",
            })?;
        if highest - lowest >= (max - numbers.len()) as u64 {
            return Err(HostlistError::TooMany);
        }
        let width = first.len();
        numbers.extend((lowest..=highest).map(|number| format!("{number:0width$}")));
        at += part.len() + 1;
    }
    Ok(numbers)
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
            assert_eq!(expand(list).unwrap().join(" "), names, "{list}");
        }
    }

    #[test]
    fn an_invalid_list_is_refused_with_the_position() {
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
            let error = expand(list).unwrap_err().to_string();
            assert!(error.contains(wanted), "{list}: {error}");
        }
        let name = "n".repeat(MAX_NAME_BYTES + 1);
        assert_eq!(expand(&name), Err(HostlistError::NameTooLong { at: 0 }));
        let long = "n,".repeat(MAX_LIST_BYTES);
        assert!(matches!(expand(&long), Err(HostlistError::TooLong { .. })));
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
        fn folded_names_unfold_to_the_same_names(
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
            let found = expand(&list.join(","));
            if unique.len() == names.len() {
                prop_assert_eq!(found, Ok(names));
            } else {
                prop_assert!(matches!(found, Err(HostlistError::Twice { .. })), "{:?}", found);
            }
        }

        #[test]
        fn no_text_makes_it_panic_or_grow_beyond_its_bounds(
            text in prop_oneof!["[n0-9,\\[\\]\\-x. é]{0,60}", any::<String>()]
        ) {
            if let Ok(names) = expand(&text) {
                prop_assert!(!names.is_empty() && names.len() <= MAX_NAMES);
                for name in names {
                    prop_assert!(!name.is_empty() && name.len() <= MAX_NAME_BYTES);
                    prop_assert!(name.bytes().all(is_name_byte));
                }
            }
        }
    }
}
