//! Each rule that a program can break: the job ends at once on all ranks, and one of them reports the rule, the superstep,
//! the call and its position. `c/misuse.c` contains the cases.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use crate::harness::{Bench, source};

/// A case: a function of the program.
#[derive(Debug)]
struct Case {
    name: String,
    position: String,
    call: String,
    text: String,
    /// The line of the wrong call, if it has one.
    line: Option<usize>,
    alone: bool,
    killed_by_the_launcher: bool,
}

fn cases() -> Vec<Case> {
    let text = std::fs::read_to_string(source("misuse.c")).expect("the program is there");
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (index, pair) in lines.windows(2).enumerate() {
        let Some(name) = pair[1].strip_prefix("static void ") else {
            continue;
        };
        let Some(comment) = pair[0]
            .strip_prefix("/* ")
            .and_then(|it| it.strip_suffix(" */"))
        else {
            continue;
        };
        let (mut alone, mut killed_by_the_launcher) = (false, false);
        let mut words = comment;
        if let Some(rest) = words.strip_prefix("alone: ") {
            (words, alone) = (rest, true);
        }
        if let Some(rest) = words.strip_prefix("killed by the launcher: ") {
            (words, killed_by_the_launcher) = (rest, true);
        }
        if !words.starts_with("rank ") {
            continue;
        }
        let parts: Vec<&str> = words.splitn(3, ": ").collect();
        let [position, call, text] = parts[..] else {
            panic!("line {}: {comment}", index + 1);
        };
        let body = lines[index..].iter().take_while(|line| **line != "}");
        let line = body
            .zip(index + 1..)
            .find(|(line, _)| line.contains("/* here */"));
        found.push(Case {
            name: name.split('(').next().unwrap_or(name).to_owned(),
            position: position.to_owned(),
            call: call.to_owned(),
            text: text.to_owned(),
            line: line.map(|(_, number)| number),
            alone,
            killed_by_the_launcher,
        });
    }
    found
}

fn compile(bench: &Bench, cases: &[Case]) -> PathBuf {
    let mut table =
        String::from("static const struct { const char *name; void (*run)(void); } cases[] = {\n");
    for Case { name, .. } in cases {
        writeln!(table, "    {{\"{name}\", {name}}},").expect("it is a string");
    }
    table += "};\n";
    std::fs::write(bench.path().join("cases.h"), table).expect("our own folder");
    bench.compile(&source("misuse.c"), &["-std=gnu11"])
}

/// Runs a case. Fails with a description of what is wrong.
fn check(bench: &Bench, program: &Path, case: &Case, link: &str) -> Result<(), String> {
    let size = if case.alone { 1 } else { 3 };
    let mut job = bench
        .job(program, size)
        .argument(&case.name)
        .variable("DIPOLE_LINK", link);
    if case.killed_by_the_launcher {
        job = job.killed_by_the_launcher();
    }
    let done = job.run();
    let wrong = |what: &str| {
        Err(format!(
            "{} over {link}: {what}\n{case:?}\n{done:?}",
            case.name
        ))
    };
    let messages = done.messages();
    let [message] = messages[..] else {
        return wrong("there must be exactly one message");
    };
    let place = case
        .line
        .map(|line| format!(" at {}:{line}", source("misuse.c").display()));
    let place = place.unwrap_or_default();
    let matches_rank = |rank: u32| {
        let position = (case.position).replacen("rank R", &format!("rank {rank}"), 1);
        message.starts_with(&format!("bsp: {position}: {}{place}", case.call))
    };
    if !(0..size).any(matches_rank) || !message.ends_with(&case.text) {
        return wrong("the message differs");
    }
    for rank in &done.ranks {
        if rank.status.success() {
            return wrong("a rank succeeds");
        }
        if rank.was_killed && !case.killed_by_the_launcher {
            return wrong("a rank continues");
        }
    }
    Ok(())
}

fn check_all(group: &str) {
    let bench = Bench::new();
    let cases = cases();
    let program = compile(&bench, &cases);
    let mut wrong = Vec::new();
    let mut seen = 0;
    for case in cases.iter().filter(|case| case.name.starts_with(group)) {
        seen += 1;
        for link in ["auto", "udp"] {
            wrong.extend(check(&bench, &program, case, link).err());
        }
    }
    assert!(seen > 4, "{seen} cases of {group}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_wrong_beginning_or_end_is_reported() {
    check_all("life_");
}

#[test]
fn a_wrong_registration_is_reported() {
    check_all("registration_");
}

#[test]
fn a_wrong_put_or_get_is_reported() {
    check_all("memory_");
}

#[test]
fn a_wrong_message_is_reported() {
    check_all("messages_");
}

#[test]
fn a_wrong_collective_is_reported() {
    check_all("collectives_");
}

#[test]
fn a_wrong_reshuffle_is_reported() {
    check_all("reshuffle_");
}

#[test]
fn a_rank_that_dies_ends_the_others() {
    let bench = Bench::new();
    let program = bench.compile(&source("late.c"), &["-std=gnu11"]);
    for what in ["crashes", "leaves"] {
        for link in ["auto", "udp", "tcp"] {
            let job = bench.job(&program, 3).argument(what);
            let job = job.variable("DIPOLE_PEER_TIMEOUT_MS", "2000");
            let done = job.variable("DIPOLE_LINK", link).run();
            for rank in &done.ranks {
                let ended = !rank.status.success() && !rank.was_killed;
                assert!(ended, "{what}, {link}: {done:?}");
            }
            let cause = "rank 1 has ended without bsp_end";
            let messages = done.messages();
            let is_reported = messages.iter().any(|message| message.contains(cause));
            assert!(is_reported, "{what}, {link}: {done:?}");
        }
    }
}

#[test]
fn a_rank_that_waits_long_reports_which_rank_it_waits_for() {
    let bench = Bench::new();
    let program = bench.compile(&source("late.c"), &["-std=gnu11"]);
    let done = bench.job(&program, 3).argument("sleeps").run();
    assert_eq!(done.output(), "");
    let messages = done.messages();
    assert!(!messages.is_empty(), "{done:?}");
    for message in messages {
        assert!(
            message.contains("bsp_sync at ") && message.contains(" s for rank 1"),
            "{message}"
        );
    }
}
