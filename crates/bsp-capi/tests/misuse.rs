//! Every rule that a program can break: the job ends at once, on all ranks, and one of them says which rule, in which
//! superstep, by which call and where that stands. The cases are in `c/misuse.c`.

mod harness;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use harness::{Bench, source};

/// A function of the program.
#[derive(Debug)]
struct Case {
    name: String,
    who: String,
    call: String,
    text: String,
    /// The line of the call that is wrong, if it has one.
    line: Option<usize>,
    alone: bool,
    ended_by_the_launcher: bool,
}

fn cases() -> Vec<Case> {
    let text = std::fs::read_to_string(source("misuse.c")).expect("the program is there");
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (index, pair) in lines.windows(2).enumerate() {
        let Some(name) = pair[1].strip_prefix("static void ") else {
            continue;
        };
        let Some(said) = pair[0]
            .strip_prefix("/* ")
            .and_then(|it| it.strip_suffix(" */"))
        else {
            continue;
        };
        let (mut alone, mut ended_by_the_launcher) = (false, false);
        let mut words = said;
        if let Some(rest) = words.strip_prefix("alone: ") {
            (words, alone) = (rest, true);
        }
        if let Some(rest) = words.strip_prefix("ended by the launcher: ") {
            (words, ended_by_the_launcher) = (rest, true);
        }
        if !words.starts_with("rank ") {
            continue;
        }
        let parts: Vec<&str> = words.splitn(3, ": ").collect();
        let [who, call, text] = parts[..] else {
            panic!("line {}: {said}", index + 1);
        };
        let body = lines[index..].iter().take_while(|line| **line != "}");
        let line = body
            .zip(index + 1..)
            .find(|(line, _)| line.contains("/* here */"));
        found.push(Case {
            name: name.split('(').next().unwrap_or(name).to_owned(),
            who: who.to_owned(),
            call: call.to_owned(),
            text: text.to_owned(),
            line: line.map(|(_, number)| number),
            alone,
            ended_by_the_launcher,
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

/// Runs a case; what is wrong with what became of it.
fn judge(bench: &Bench, program: &Path, case: &Case, link: &str) -> Result<(), String> {
    let size = if case.alone { 1 } else { 3 };
    let mut job = bench
        .job(program, size)
        .argument(&case.name)
        .variable("DIPOLE_LINK", link);
    if case.ended_by_the_launcher {
        job = job.ended_by_the_launcher();
    }
    let done = job.run();
    let wrong = |what: &str| {
        Err(format!(
            "{} by {link}: {what}\n{case:?}\n{done:?}",
            case.name
        ))
    };
    let complaints = done.complaints();
    let [said] = complaints[..] else {
        return wrong("not one message");
    };
    let place = case
        .line
        .map(|line| format!(" at {}:{line}", source("misuse.c").display()));
    let place = place.unwrap_or_default();
    let is_said_of = |rank: u32| {
        let who = case.who.replacen("rank R", &format!("rank {rank}"), 1);
        said.starts_with(&format!("bsp: {who}: {}{place}", case.call))
    };
    if !(0..size).any(is_said_of) || !said.ends_with(&case.text) {
        return wrong("another message");
    }
    for rank in &done.ranks {
        if rank.status.success() {
            return wrong("a rank ends as if nothing were wrong");
        }
        if rank.was_killed && !case.ended_by_the_launcher {
            return wrong("a rank goes on");
        }
    }
    Ok(())
}

fn judge_all(group: &str) {
    let bench = Bench::new();
    let cases = cases();
    let program = compile(&bench, &cases);
    let mut wrong = Vec::new();
    let mut seen = 0;
    for case in cases.iter().filter(|case| case.name.starts_with(group)) {
        seen += 1;
        for link in ["auto", "udp"] {
            wrong.extend(judge(&bench, &program, case, link).err());
        }
    }
    assert!(seen > 4, "{seen} cases of {group}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_program_that_begins_or_ends_in_a_wrong_way_is_told_so() {
    judge_all("life_");
}

#[test]
fn a_wrong_registration_is_told() {
    judge_all("registration_");
}

#[test]
fn a_wrong_put_or_get_is_told() {
    judge_all("memory_");
}

#[test]
fn a_wrong_message_is_told() {
    judge_all("messages_");
}

#[test]
fn a_wrong_collective_is_told() {
    judge_all("collectives_");
}

#[test]
fn a_wrong_reshuffle_is_told() {
    judge_all("reshuffle_");
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
            // Whoever finds out tells the others.
            let told = "rank 1 has ended without bsp_end";
            let complaints = done.complaints();
            let is_told = complaints.iter().any(|said| said.contains(told));
            assert!(is_told, "{what}, {link}: {done:?}");
        }
    }
}

#[test]
fn a_rank_that_waits_long_says_for_whom() {
    let bench = Bench::new();
    let program = bench.compile(&source("late.c"), &["-std=gnu11"]);
    let done = bench.job(&program, 3).argument("sleeps").run();
    assert_eq!(done.output(), "");
    let complaints = done.complaints();
    assert!(!complaints.is_empty(), "{done:?}");
    for said in complaints {
        assert!(
            said.contains("bsp_sync at ") && said.contains(" s for rank 1"),
            "{said}"
        );
    }
}
