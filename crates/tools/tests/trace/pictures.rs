//! The page, the report and the timeline of a run.

use serde_json::Value;

use crate::browser::{browser, open};
use crate::jobs::{Job, PROGRAM, text};

/// The parts of `text` between `begin` and `end`.
fn between<'a>(text: &'a str, begin: &str, end: &str) -> Vec<&'a str> {
    let parts = text.split(begin).skip(1);
    parts.filter_map(|part| part.split(end).next()).collect()
}

fn ran() -> Job {
    let job = Job::slowed();
    job.run(3, &["1", "1", "8", "5000"]);
    job
}

#[test]
fn the_page_shows_each_superstep_and_opens_in_a_browser_without_a_network() {
    let job = ran();
    let page = job.path("page.html");
    let timeline = job.path("timeline.perfetto-trace");
    let arguments = ["--html", "--perfetto"];
    let mut command = dipole_testbed::isolated_command(PROGRAM);
    command.args(["--json", "trace"]).arg(job.traces());
    command.arg(arguments[0]).arg(&page);
    command.arg(arguments[1]).arg(&timeline);
    let output = command.output().expect("it starts");
    assert!(output.status.success(), "{}", text(&output));
    let summary: Value = serde_json::from_slice(&output.stdout).expect("an object");
    let check = |dom: &str| {
        let count = summary["supersteps"].as_u64().expect("a number");
        assert_eq!(
            between(dom, "<g data-superstep", "</g>").len() as u64,
            count
        );
        // Three ranks send and three receive: each has its part of a bar on both sides of the axis.
        let bars = between(dom, "<g data-superstep", "</g>");
        let parts = bars.iter().map(|bar| bar.matches("class=\"bar ").count());
        assert_eq!(parts.max(), Some(6));
        for part in [
            "slow rank: ",
            "wait for rank 1;",
            "main &gt; exchange",
            "dipole calibrate supersteps",
            "slowed.c:",
        ] {
            assert!(dom.contains(part), "{part}");
        }
        assert!(!dom.contains("NaN"));
    };
    check(&std::fs::read_to_string(&page).expect("it was written"));
    job.trace_fits("slowed.c:");
    // The first packet of `perfetto.protos.Trace`: field 1, a message.
    let bytes = std::fs::read(timeline).expect("it was written");
    assert!(bytes.len() > 1000 && bytes[0] == 0x0a);
    let test = "the_page_shows_each_superstep_and_opens_in_a_browser_without_a_network";
    if let Some(browser) = browser(test) {
        let opened = open(&browser, &page, &job.path(""));
        opened.check();
        check(&opened.dom);
    }
}

/// Files of a calibration and a probe with few measurements.
fn profile() -> Value {
    let measured = |median: f64| serde_json::json!({ "median": median, "low": median * 0.9, "high": median * 1.1 });
    let short = |bytes: u32, ns: f64| {
        serde_json::json!({
            "bytes": bytes, "trip_ns": measured(ns), "o_s_ns": measured(ns * 0.2), "o_r_ns": measured(ns * 0.2),
            "u_r_ns": measured(ns * 0.1), "l_ns": measured(ns * 0.5), "g_s_ns": measured(ns * 0.4),
            "g_r_ns": measured(ns * 0.4),
        })
    };
    let cost = |p: u32, l_ns: f64| {
        serde_json::json!({
            "p": p, "nodes": 1, "s_mflops": 1000.0, "l_ns": l_ns, "l_ci_ns": 50.0, "g_ns_per_byte": 0.5, "g_sd": 0.1,
        })
    };
    serde_json::json!({
        "version": 1, "link": "shm", "cost": [cost(2, 1000.0), cost(4, 2500.0)],
        "point_to_point": {
            "place": "node", "rounds": 3, "fragment_bytes": 4096,
            "short": [short(1, 170.0), short(1024, 250.0), short(4096, 600.0)],
            "long": [{ "bytes": 65536, "trip_ns": measured(5000.0), "work_ns": measured(200.0),
                       "g_s_ns": measured(290.0), "g_r_ns": measured(290.0) }],
        },
        "copies": [{ "level": "L1", "bytes": 8192, "ns_per_byte": measured(0.02) }],
    })
}

#[test]
fn a_report_has_figures_of_profiles_and_trace_and_the_same_as_json_and_csv() {
    let job = ran();
    std::fs::create_dir_all(job.path("profile")).expect("a folder");
    std::fs::write(job.path("profile/shm.json"), profile().to_string()).expect("a file");
    let report = |arguments: &[&str]| {
        let mut command = dipole_testbed::isolated_command(PROGRAM);
        command
            .arg("report")
            .arg(job.path("report"))
            .args(arguments);
        command.env("DIPOLE_PROFILE", job.path("profile"));
        command.output().expect("it starts")
    };
    let traces = job.traces();
    let output = report(&["--trace", traces.to_str().expect("a plain path")]);
    assert!(output.status.success(), "{}", text(&output));
    let read = |name: &str| {
        std::fs::read_to_string(job.path("report").join(name))
            .unwrap_or_else(|cause| panic!("{name}: {cause}"))
    };
    let data: Value = serde_json::from_str(&read("report.json")).expect("JSON");
    assert_eq!(data["profiles"][0]["copies"][0]["level"], "L1");
    assert_eq!(data["trace"]["ranks"], 3);
    for (name, heading, rows) in [
        ("messages.csv", "link,place,bytes,\"one way, ns\"", 4),
        ("gaps.csv", "link,place,bytes,of", 4),
        ("copies.csv", "level,bytes", 1),
        ("costs.csv", "link,p,nodes", 2),
        ("calls.csv", "call,supersteps", 4),
        ("supersteps.csv", "superstep,call", 11),
    ] {
        let table = read(name);
        assert!(table.starts_with(heading), "{name}: {table}");
        assert_eq!(table.lines().count(), rows + 1, "{name}: {table}");
    }
    let page = job.path("report/report.html");
    let check = |dom: &str| {
        let figures = between(dom, "<figure id=\"", "\"");
        for figure in [
            "latency",
            "end-to-end",
            "gap",
            "phases-shm",
            "l-node",
            "g-node",
            "supersteps",
        ] {
            assert!(figures.contains(&figure), "{figure} in {figures:?}");
        }
        // Measured at 4 lengths, and predicted at the other powers of two up to 4 MiB.
        let latency = dom.split("id=\"latency\"").nth(1).expect("a figure");
        assert!(latency.contains("data-points=\"23\""), "{latency}");
        assert!(latency.contains("4 Mi") && dom.contains("slow rank: "));
        assert!(!dom.contains("NaN"));
    };
    check(&read("report.html"));
    if let Some(browser) =
        browser("a_report_has_figures_of_profiles_and_trace_and_the_same_as_json_and_csv")
    {
        let opened = open(&browser, &page, &job.path(""));
        opened.check();
        check(&opened.dom);
    }
    // Without any files it prints advice.
    std::fs::remove_file(job.path("profile/shm.json")).expect("it is there");
    let output = report(&[]);
    assert!(
        !output.status.success() && text(&output).contains("dipole calibrate"),
        "{}",
        text(&output)
    );
}
