//! Phrasings that readers stumble over, counted per rule in comments, documents, help and messages.
//!
//! The counts may only fall. A pattern knows words, not meaning: a place that it finds is one to
//! read again, and a text without a hit can still be a riddle.

#![allow(missing_docs, reason = "tests")]

#[path = "common/sources.rs"]
mod sources;

use std::path::Path;

use regex::Regex;
use sources::{read, with_extensions};

/// A phrasing, what to write instead, and how many places still have it.
struct Rule {
    name: &'static str,
    pattern: &'static str,
    better: &'static str,
    /// True for first lines of doc comments only.
    is_opening: bool,
    places: usize,
}

const RULES: &[Rule] = &[
    Rule {
        name: "headless",
        pattern: r"^(Who|Whoever|Whose|Whom|To whom|Of whom|By whom|By whose|For whom|What|Whatever|Which)\b[^?]*$",
        better: "begin with a noun or a verb: 'Ranks that ...', 'Returns ...'",
        is_opening: true,
        places: 0,
    },
    Rule {
        name: "medium",
        pattern: r"\b[Bb]y (udp|UDP|bpf|tcp|TCP|shm|shared memory|libfabric|packets|the wire|Ethernet|sockets|the agent|IPv[46])\b",
        better: "over UDP, through shared memory, via the agent",
        is_opening: false,
        places: 0,
    },
    Rule {
        name: "actor",
        pattern: r"\b([Ww]hoever|[Ww]homever|[Ss]omebody|[Nn]obody|[Aa]nybody|[Ee]verybody)\b",
        better: "name the actor: the peer, another thread, the application",
        is_opening: false,
        places: 0,
    },
    Rule {
        name: "negation",
        pattern: r"\b(is|are|was|were) none\b|\b(can|may|could) (not )?be had\b|\b(is|are|was|were) no (a|an|of|file|name|key|node|number|part|member|text|way|address|place|error|reason|process|message)\b",
        better: "is not a, does not exist, is not available",
        is_opening: false,
        places: 0,
    },
    Rule {
        name: "beside",
        pattern: r"\b[Bb]eside\b",
        better: "compared with, next to",
        is_opening: false,
        places: 0,
    },
    Rule {
        name: "speech",
        pattern: r"\b(is|are|was|were|be|been|being) (told|asked|said|heard)\b|\b(tells?|told) (it|them|him|us)\b|\b(says|hears) (so|whether|who|to|from)\b|\bin words\b|\bspeaks? for\b|\blearns? (of|that|who|whether)\b",
        better: "is notified, reports, queries, receives, detects",
        is_opening: false,
        places: 0,
    },
    Rule {
        name: "wish",
        pattern: r"\b[Ww]ish(es)?\b|\bnews of\b|\bfound out\b|\bgives? (its|their) core away\b|\bvouch",
        better: "request, update, detect, yield, confirm",
        is_opening: false,
        places: 0,
    },
    Rule {
        name: "riddle",
        pattern: r"\bdecides, never does\b|\bneither end ever\b|\bis as it was\b|\bwhat (is|was) (not|there)\b|\bsuch a one\b|\bnone of that\b",
        better: "state the fact",
        is_opening: false,
        places: 0,
    },
];

/// Text of a line that people read, and whether it may open a doc comment.
fn prose(path: &Path, line: &str) -> Option<(String, bool)> {
    let is_document =
        path.extension().is_some_and(|end| end == "md") || path.starts_with("docs/man");
    let text = line.trim_start();
    if is_document {
        return Some((text.to_owned(), false));
    }
    for opening in ["/// ", "//! "] {
        if let Some(text) = text.strip_prefix(opening) {
            return Some((text.to_owned(), true));
        }
    }
    if text.starts_with("//")
        || text.starts_with('#')
        || text.starts_with('*')
        || text.starts_with("/*")
    {
        return Some((text.to_owned(), false));
    }
    let strings: Vec<&str> = line.split('"').skip(1).step_by(2).collect();
    (!strings.is_empty()).then(|| (strings.join(" "), false))
}

/// Places of a text that a rule finds, by line.
fn hits(path: &Path, text: &str, rule: &Rule, pattern: &Regex) -> Vec<String> {
    let mut found = Vec::new();
    let mut in_comment = false;
    for (index, line) in text.lines().enumerate() {
        let Some((words, is_doc)) = prose(path, line) else {
            in_comment = false;
            continue;
        };
        let is_checked = !rule.is_opening || (is_doc && !in_comment);
        in_comment = is_doc;
        if is_checked && pattern.is_match(&words) {
            found.push(format!("{}:{}: {}", path.display(), index + 1, line.trim()));
        }
    }
    found
}

#[test]
fn phrasings_that_readers_stumble_over_only_become_fewer() {
    let mut files = with_extensions(&["rs", "md", "c", "h", "f90", "py", "1", "3", "7"]);
    // The rules themselves name what they look for.
    files.retain(|path| !path.ends_with("xtask/tests/english.rs"));
    let texts: Vec<_> = files.iter().map(|path| (path, read(path))).collect();
    let mut report = String::new();
    for rule in RULES {
        let pattern = Regex::new(rule.pattern).expect("a valid pattern");
        let found: Vec<String> = (texts.iter())
            .flat_map(|(path, text)| hits(path, text, rule, &pattern))
            .collect();
        if found.len() != rule.places {
            report += &format!(
                "{}: {} places, {} recorded; write: {}\n",
                rule.name,
                found.len(),
                rule.places,
                rule.better
            );
            if found.len() > rule.places {
                report += &(found.join("\n") + "\n");
            }
        }
    }
    assert!(
        report.is_empty(),
        "more places than recorded must be reworded; if there are fewer, record the new count:\n{report}"
    );
}

#[test]
fn a_rule_finds_its_phrasing_in_prose_only() {
    let rust = Path::new("x.rs");
    let find = |name: &str, text: &str| {
        let rule = RULES.iter().find(|rule| rule.name == name).expect("a rule");
        hits(rust, text, rule, &Regex::new(rule.pattern).expect("valid")).len()
    };
    assert_eq!(
        find("headless", "/// Who sends.\n/// What else.\nfn f() {}\n"),
        1
    );
    assert_eq!(find("headless", "// Who sends.\n"), 0);
    assert_eq!(find("beside", "let beside = 1;\n"), 0);
    assert_eq!(find("beside", "print(\"beside TCP\"); // beside\n"), 1);
    assert_eq!(
        find(
            "negation",
            "/// It is no longer there.\n/// It is no file.\n"
        ),
        1
    );
}
