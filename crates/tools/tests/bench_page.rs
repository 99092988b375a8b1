//! The page of `dipole bench --html` in a real headless browser shows the measured values.
//!
//! Needs `chromium` or `google-chrome`; skipped with a message without one, unless
//! `DIPOLE_REQUIRE_BROWSER=1`.

mod browser;

use std::collections::BTreeMap;
use std::process::Stdio;

use browser::{Opened, browser, open};
use serde_json::Value;

const SUBJECTS: &str = "dipole,bare-tcp-spin,bare-unix-spin,bare-shm";

/// The parts of `text` between `begin` and `end`.
fn between<'a>(text: &'a str, begin: &str, end: &str) -> Vec<&'a str> {
    let parts = text.split(begin).skip(1);
    parts
        .map(|part| part.split(end).next().expect("the first part"))
        .collect()
}

fn one<'a>(text: &'a str, begin: &str, end: &str) -> &'a str {
    let all = between(text, begin, end);
    all.first()
        .unwrap_or_else(|| panic!("no {begin:?} in {text}"))
}

fn attribute<'a>(tag: &'a str, name: &str) -> &'a str {
    one(tag, &format!(" {name}=\""), "\"")
}

/// The points that a figure must have, by subject.
fn expected(lines: &[Value], bench: &str, testbed: &str) -> BTreeMap<String, usize> {
    // Several tables have the same kind and size; each size is one point of the figure.
    let mut sizes: BTreeMap<String, std::collections::BTreeSet<u64>> = BTreeMap::new();
    for line in lines {
        if line["bench"] == bench && line["testbed"] == testbed {
            let subject = line["subject"].as_str().expect("a name").to_owned();
            let size = line["size_bytes"].as_u64().expect("a size");
            if [4, 64, 4096, 1 << 20].contains(&size) {
                sizes.entry(subject).or_default().insert(size);
            }
        }
    }
    sizes
        .into_iter()
        .map(|(subject, sizes)| (subject, sizes.len()))
        .collect()
}

fn drawn(figure: &str) -> BTreeMap<String, usize> {
    let curves = between(figure, "<g class=\"curve ", "</g>");
    curves
        .into_iter()
        .map(|curve| {
            let marks = curve.matches("class=\"mark\"").count();
            let told: usize = attribute(curve, "data-points").parse().expect("a number");
            assert_eq!(marks, told, "{curve}");
            assert!(!curve.contains("NaN") && !curve.contains("inf"), "{curve}");
            // Dipole's name includes its link.
            let name = attribute(curve, "data-subject");
            let subject = name.split(" (").next().expect("the first part");
            (subject.to_owned(), marks)
        })
        .collect()
}

/// Every number in a table was printed by `--json`, and is shown unchanged.
fn check_tables(dom: &str, lines: &[Value]) -> usize {
    let mut checked = 0;
    for row in between(dom, "<tr", "</tr>") {
        if !row.contains("data-bench=") {
            continue;
        }
        let size: u64 = attribute(row, "data-size").parse().expect("a number");
        let same = |line: &&Value| {
            ["bench", "subject", "link", "testbed"]
                .iter()
                .all(|name| line[*name] == attribute(row, &format!("data-{name}")))
                && line["size_bytes"] == size
        };
        let candidates: Vec<&Value> = lines.iter().filter(same).collect();
        assert!(!candidates.is_empty(), "{row}");
        for cell in between(row, "<td data-field", "</td>") {
            let cell = format!(" data-field{cell}");
            let field = attribute(&cell, "data-field");
            let value: f64 = attribute(&cell, "data-value").parse().expect("a number");
            let known = candidates
                .iter()
                .any(|line| line[field].as_f64() == Some(value));
            assert!(known, "{field} {value} of {row} was not measured");
            let factor = match field {
                "messages_per_s" => 1e-3,
                "cpu_ns_per_message" | "mbit_per_cpu_s" => 1.0,
                _ if field.ends_with("_bytes_per_s") || field == "bytes_per_s" => 1e-9,
                _ => 1e-3,
            };
            let shown = cell.rsplit('>').next().expect("the last part");
            let shown: f64 = shown.parse().expect("a number");
            // Figures have at least three digits and at most six decimals.
            let error = (shown - value * factor).abs();
            assert!(
                error <= value * factor * 6e-3 + 1e-6,
                "{field}: {value} is shown as {shown}"
            );
            checked += 1;
        }
    }
    checked
}

/// Every mark of a figure of ratios states one of two measured numbers of the same size.
fn check_ratios(figure: &str, lines: &[&Value], field: &str) {
    let marks = between(figure, "<title>", "</title>");
    assert!(marks.len() >= 3, "{figure}");
    for note in marks {
        let (subject, rest) = note.split_once(", ").expect("subject, size: ratio");
        let ratio = rest.split_once(": ").expect("a ratio").1;
        let ratio: f64 = ratio
            .split(' ')
            .next()
            .expect("a word")
            .parse()
            .expect(note);
        let of = |subject: &str| -> Vec<(&Value, f64)> {
            let same = lines.iter().filter(|line| line["subject"] == subject);
            same.filter_map(|line| Some((&line["size_bytes"], line[field].as_f64()?)))
                .collect()
        };
        let known = of(subject).iter().any(|(size, value)| {
            let mut base = of("dipole").into_iter().filter(|(own, _)| own == size);
            base.any(|(_, base)| (value / base / ratio - 1.0).abs() < 6e-3)
        });
        assert!(known, "{note}");
    }
}

/// The figures of a testbed show what was printed.
fn check_figures(figures: &BTreeMap<&str, &str>, lines: &[Value], testbed: &str) {
    for (name, bench, y) in [
        ("latency", "pingpong", "one-way latency, µs"),
        ("end-to-end", "pingpong", "end-to-end throughput, GB/s"),
        ("transmission", "stream", "transmission throughput, GB/s"),
    ] {
        let figure = figures
            .get(format!("{name}-{testbed}").as_str())
            .unwrap_or_else(|| panic!("no {name} of {testbed}"));
        let expected = expected(lines, bench, testbed);
        assert!(expected.len() >= 3, "{expected:?}");
        assert_eq!(drawn(figure), expected, "{name} of {testbed}");
        for label in ["message size, bytes", y] {
            assert!(figure.contains(&format!(">{label}</text>")), "{label}");
        }
        // End-to-end and transmission throughput never share an axis.
        assert_eq!(
            figure.matches("throughput, GB/s</text>").count(),
            usize::from(y.contains("GB/s"))
        );
    }
    for (name, bench, field) in [
        ("latency-ratio", "pingpong", "p50_ns"),
        ("transmission-ratio", "stream", "bytes_per_s"),
    ] {
        let figure = figures[format!("{name}-{testbed}").as_str()];
        let mut others = expected(lines, bench, testbed);
        others.remove("dipole");
        assert_eq!(drawn(figure), others, "{name} of {testbed}");
        let here = |line: &&Value| line["bench"] == bench && line["testbed"] == testbed;
        check_ratios(
            figure,
            &lines.iter().filter(here).collect::<Vec<_>>(),
            field,
        );
    }
    let distribution = figures[format!("distribution-{testbed}").as_str()];
    for label in ["share of messages, %", "one-way latency, µs"] {
        assert!(
            distribution.contains(&format!(">{label}</text>")),
            "{label}"
        );
    }
    assert!(distribution.contains("a label names it"));
    for (subject, points) in drawn(distribution) {
        assert!(points >= 5, "{subject} has {points} points");
    }
}

#[test]
fn the_page_shows_in_a_browser_what_was_measured() {
    let Some(browser) = browser("the_page_shows_in_a_browser_what_was_measured") else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let page = folder.path().join("page.html");
    let output = dipole_testbed::isolated_command(env!("CARGO_BIN_EXE_dipole"))
        .args(["bench", "--quick", "--json", "--on", "loopback"])
        .args(["--subjects", SUBJECTS, "--html"])
        .arg(&page)
        .stdin(Stdio::null())
        .output()
        .expect("the program starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{errors}", output.status);
    let lines: Vec<Value> = String::from_utf8(output.stdout)
        .expect("text")
        .lines()
        .map(|line| serde_json::from_str(line).expect(line))
        .collect();

    let opened = open(&browser, &page, folder.path());
    opened.check();
    let Opened { dom, .. } = opened;

    let figures: BTreeMap<&str, &str> = between(&dom, "<figure", "</figure>")
        .into_iter()
        .map(|figure| (attribute(figure, "id"), figure))
        .collect();
    for testbed in ["loopback", "node"] {
        check_figures(&figures, &lines, testbed);
    }
    assert_eq!(figures.len(), 12);
    assert!(check_tables(&dom, &lines) > 300);

    // The data in the page for programs is what was printed.
    let data = one(&dom, "id=\"data\">", "</script>");
    let data: Value = serde_json::from_str(data).expect("JSON");
    let carried = data["measurements"].as_array().expect("a list");
    assert_eq!(carried, &lines);

    // The page works without scripts: the only one is data.
    assert_eq!(dom.matches("<script").count(), 1);
    assert!(dom.contains("<script type=\"application/json\" id=\"data\">"));
}

#[test]
fn a_page_that_cannot_be_written_is_refused_before_anything_is_measured() {
    let output = dipole_testbed::isolated_command(env!("CARGO_BIN_EXE_dipole"))
        .args(["bench", "pingpong", "--html", "/nowhere/page.html"])
        .stdin(Stdio::null())
        .output()
        .expect("the program starts");
    assert_eq!(output.status.code(), Some(2));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("/nowhere/page.html"), "{errors}");
    assert!(output.stdout.is_empty(), "{errors}");
}
