//! `dipole calibrate supersteps` as users run it, in its tiny mode, between real ranks.

#![allow(missing_docs, reason = "tests")]

use std::process::{Output, Stdio};

use serde_json::Value;

fn probe(arguments: &str) -> Output {
    let mut command = dipole_testbed::isolated_command(env!("CARGO_BIN_EXE_dipole"));
    command
        .args(["calibrate", "supersteps"])
        .stdin(Stdio::null());
    command.args(arguments.split_whitespace());
    command.output().expect("the program starts")
}

fn succeeded(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{errors}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Short enough for a test.
const TINY: &str = "--quick --seconds 0.0002 --on loopback";

#[test]
fn every_number_of_ranks_and_every_link_has_a_row_with_s_l_and_g() {
    let text = succeeded(&probe(&format!(
        "{TINY} --ranks 1,2,3 --link shm,udp --json"
    )));
    let rows: Vec<Value> = (text.lines())
        .map(|line| serde_json::from_str(line).expect(line))
        .collect();
    let which: Vec<(u64, &str)> = (rows.iter())
        .map(|row| {
            (
                row["p"].as_u64().expect("p"),
                row["link"].as_str().expect("link"),
            )
        })
        .collect();
    let expected = [(1, "shm"), (2, "shm"), (2, "udp"), (3, "shm"), (3, "udp")];
    assert_eq!(which, expected);
    for row in &rows {
        for field in ["s_mflops", "l_ns"] {
            assert!(
                row[field].as_f64().is_some_and(|value| value > 0.0),
                "{field}: {row}"
            );
        }
        // On shared cores a stall may hide the cost per byte.
        for field in ["l_ci_ns", "g_ns_per_byte", "g_sd"] {
            assert!(
                row[field].as_f64().is_some_and(|value| value >= 0.0),
                "{field}: {row}"
            );
        }
        assert_eq!(
            (&row["subject"], &row["nodes"]),
            (&"dipole".into(), &1.into())
        );
        let patterns: Vec<&str> = (row["relations"].as_array().expect("relations").iter())
            .map(|relation| relation["pattern"].as_str().expect("a pattern"))
            .collect();
        for pattern in ["gather", "scatter", "random"] {
            assert_eq!(
                patterns.contains(&pattern),
                row["p"] != 1,
                "{pattern}: {row}"
            );
        }
        // Only network links have this value, and a reference measurement.
        let is_udp = row["link"] == "udp";
        assert_eq!(
            row["packets"]["sent"].as_u64().is_some_and(|sent| sent > 0),
            is_udp
        );
        assert_eq!(row["one_way_ns"].is_number(), is_udp);
        // With three or more ranks the orders differ.
        let orders = row["orders"].as_array().expect("orders");
        assert_eq!(!orders.is_empty(), is_udp && row["p"] == 3, "{row}");
        assert!(row["copy_ns_per_byte"].is_number());
    }
}

#[test]
fn the_tables_and_the_page_show_what_was_measured() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("page.html");
    let links = "--ranks 2,3 --link shm,udp";
    let arguments = format!("{TINY} {links} --page {}", file.display());
    let text = succeeded(&probe(&arguments));
    for heading in [
        "parameters",
        "h-relations",
        "spray latency",
        "Latin square",
        "only acks",
    ] {
        assert!(text.contains(heading), "{heading}: {text}");
    }
    let page = std::fs::read_to_string(&file).expect("the page");
    for part in [
        "id=\"l\"",
        "id=\"g\"",
        "without the Latin square",
        "id=\"exchange-2\"",
        "id=\"spray-2-1400\"",
        "data-subject=\"dipole, shm\"",
    ] {
        assert!(page.contains(part), "{part}");
    }
    let (_, data) = page.split_once("id=\"data\">").expect("the data");
    let (data, _) = data.split_once("</script>").expect("its end");
    let data: Value = serde_json::from_str(data).expect("JSON");
    assert_eq!(data["measurements"][0]["subject"], "dipole");
}

#[test]
fn ranks_on_separate_nodes_are_measured_over_every_link() {
    if let Some(why) = dipole_testbed::Testbed::why_not() {
        eprintln!("SKIPPED: {why}");
        return;
    }
    let text = succeeded(&probe(
        "--quick --seconds 0.0002 --ranks 2 --link udp,tcp --on veth --json",
    ));
    for (line, link) in text.lines().zip(["udp", "tcp"]) {
        let row: Value = serde_json::from_str(line).expect(line);
        assert_eq!((&row["link"], &row["nodes"]), (&link.into(), &2.into()));
    }
    assert_eq!(text.lines().count(), 2, "{text}");
}

#[test]
fn impossible_measurements_are_refused_with_advice() {
    for (arguments, words) in [
        ("--seconds 0", "give more than 0"),
        ("--ranks 0", "1..=64"),
        ("--link wire", "shm, udp, tcp, bpf"),
        ("--link bpf --on loopback", "leave it out"),
        ("--page /nowhere/page.html", "name a file in a folder"),
    ] {
        let output = probe(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments}");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(errors.contains(words), "{arguments}: {errors}");
    }
}
