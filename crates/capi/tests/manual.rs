//! Every function of the header has a manual page, and the pages are well-formed.

mod harness;

use std::path::PathBuf;
use std::process::Command;

use harness::{crate_dir, include_dir};

fn manual_dir() -> PathBuf {
    crate_dir().join("../../docs/man")
}

/// Names and contents of the pages.
fn pages() -> Vec<(String, String)> {
    std::fs::read_dir(manual_dir())
        .expect("the manual is there")
        .map(|entry| {
            let path = entry.expect("an entry").path();
            let name = path.file_name().expect("a name").to_string_lossy();
            let text = std::fs::read_to_string(&path).expect("pages are text");
            (name.into_owned(), text)
        })
        .collect()
}

#[test]
fn every_function_has_a_page_with_its_prototype() {
    let pages = pages();
    let header = std::fs::read_to_string(include_dir().join("dipole.h")).expect("the header");
    let mut functions = 0;
    for line in header
        .lines()
        .filter(|line| !line.starts_with([' ', '#', '/']) && !line.starts_with("typedef"))
    {
        let Some((before, _)) = line.split_once('(') else {
            continue;
        };
        let name = before.rsplit([' ', '*']).next().expect("a name");
        functions += 1;
        let page = format!("{name}.3");
        let found = pages.iter().find(|(file, _)| *file == page);
        let (_, text) = found.unwrap_or_else(|| panic!("{page} is missing"));
        let text = match text.strip_prefix(".so man3/") {
            None => text,
            Some(other) => {
                let other = other.trim();
                let found = pages.iter().find(|(file, _)| file == other);
                &found
                    .unwrap_or_else(|| panic!("{page} refers to {other}"))
                    .1
            }
        };
        assert!(
            text.contains(&format!("\n.Fn {name} ")),
            "{page}: no prototype"
        );
        let listed = text.contains(&format!("\n.Nm {name}\n"))
            || text.contains(&format!("\n.Nm {name} ,\n"));
        assert!(listed, "{page}: not in NAME");
    }
    assert!(functions > 25, "{functions} functions in the header");
}

#[test]
fn pages_of_programs_have_the_required_sections() {
    for (name, text) in pages() {
        if !name.ends_with(".1") || text.starts_with(".so ") {
            continue;
        }
        for section in ["ENVIRONMENT", "EXIT STATUS", "EXAMPLES", "SEE ALSO"] {
            let has = text.contains(&format!("\n.Sh {section}\n"));
            assert!(has, "{name}: no section {section}");
        }
    }
}

#[test]
fn mandoc_reports_no_faults() {
    if Command::new("mandoc")
        .arg("-T")
        .arg("ascii")
        .arg("/dev/null")
        .output()
        .is_err()
    {
        eprintln!("SKIPPED: mandoc is not installed (package mandoc)");
        return;
    }
    for (name, text) in pages() {
        if text.starts_with(".so ") {
            continue;
        }
        let lint = Command::new("mandoc")
            .args(["-T", "lint", "-W", "style"])
            .arg(manual_dir().join(&name))
            .output()
            .expect("mandoc runs");
        let report = String::from_utf8_lossy(&lint.stdout).into_owned();
        // Missing manuals on this machine are not a fault of the page.
        let faults: Vec<&str> = report
            .lines()
            .filter(|line| !line.contains("referenced manual not found"))
            .filter(|line| !line.contains("outdated mandoc.db"))
            .collect();
        assert!(faults.is_empty(), "{name}: {faults:#?}");
    }
}
