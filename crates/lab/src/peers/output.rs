//! Parses the output of programs: one-way times in nanoseconds, throughput in bytes.

use serde::Deserialize;
use serde_json::Value;

use dipole_bench::control::Outcome;
use dipole_bench::statistics::OneWay;

const NS_PER_US: f64 = 1e3;

/// Parses the last line of our own programs, a JSON object.
pub(super) fn program(text: &str) -> Option<Outcome> {
    #[derive(Deserialize)]
    struct Told {
        p50_ns: Option<f64>,
        mean80_ns: Option<f64>,
        p99_ns: Option<f64>,
        p999_ns: Option<f64>,
        messages_per_s: Option<f64>,
        bytes_per_s: Option<f64>,
        cpu_ns_per_message: f64,
    }
    let mut told = text.lines().rev();
    let told: Told = told.find_map(|line| serde_json::from_str(line).ok())?;
    (told.p50_ns.is_some() || told.bytes_per_s.is_some()).then(|| Outcome {
        one_way: told.p50_ns.map(|p50_ns| OneWay {
            p50_ns,
            mean80_ns: told.mean80_ns,
            p99_ns: told.p99_ns,
            p999_ns: told.p999_ns,
        }),
        messages_per_s: told.messages_per_s,
        bytes_per_s: told.bytes_per_s,
        cpu_ns_per_message: told.cpu_ns_per_message,
        ..Outcome::default()
    })
}

fn only(p50_ns: f64) -> OneWay {
    OneWay {
        p50_ns,
        mean80_ns: None,
        p99_ns: None,
        p999_ns: None,
    }
}

/// Parses `fi_pingpong`: its last line has the time of a transfer in us, half a round trip.
pub(super) fn fi_pingpong(text: &str) -> Option<Outcome> {
    let mut lines = text.lines();
    let headings = lines.find(|line| line.contains("usec/xfer"))?;
    let column = headings
        .split_whitespace()
        .position(|heading| heading == "usec/xfer")?;
    let mean_us: f64 = lines.next()?.split_whitespace().nth(column)?.parse().ok()?;
    Some(Outcome {
        one_way: Some(only(mean_us * NS_PER_US)),
        remarks: vec!["fi_pingpong reports the mean, not the median".to_owned()],
        ..Outcome::default()
    })
}

/// Parses `ucx_perftest -f -v`: names of columns, then their values.
fn ucx_columns(text: &str) -> Option<impl Fn(&str) -> Option<f64>> {
    let mut lines = text.lines();
    let names = lines.find(|line| line.starts_with("iterations,"))?;
    let values = lines.next()?;
    Some(move |name: &str| {
        let column = names.split(',').position(|known| known == name)?;
        values.split(',').nth(column)?.trim().parse().ok()
    })
}

/// Returns half round trips of a latency test in us, and their mean in ns including stalls.
pub(super) fn ucx_latency(text: &str) -> Option<(Outcome, f64)> {
    let column = ucx_columns(text)?;
    let (p50_us, mean_us) = (column("50.0_percentile_lat")?, column("overall_lat")?);
    let outcome = Outcome {
        one_way: Some(only(p50_us * NS_PER_US)),
        ..Outcome::default()
    };
    Some((outcome, mean_us * NS_PER_US))
}

/// Returns the messages per second of a whole bandwidth test.
pub(super) fn ucx_stream(text: &str, size_bytes: f64) -> Option<Outcome> {
    let rate = ucx_columns(text)?("overall_mr")?;
    Some(Outcome {
        messages_per_s: Some(rate),
        bytes_per_s: Some(rate * size_bytes),
        ..Outcome::default()
    })
}

/// Parses `iperf3 -J`: received bytes, and the CPU time of both sides in percent.
pub(super) fn iperf3(text: &str, size_bytes: f64) -> Option<Outcome> {
    let told: Value = serde_json::from_str(text).ok()?;
    let end = told.get("end")?;
    let received = end.get("sum_received")?;
    let bytes_per_s = received.get("bits_per_second")?.as_f64()? / 8.0;
    let used = end.get("cpu_utilization_percent")?;
    let percent = used.get("host_total")?.as_f64()? + used.get("remote_total")?.as_f64()?;
    let messages_per_s = bytes_per_s / size_bytes;
    Some(Outcome {
        messages_per_s: Some(messages_per_s),
        bytes_per_s: Some(bytes_per_s),
        cpu_ns_per_message: percent / 100.0 * 1e9 / messages_per_s.max(f64::MIN_POSITIVE),
        ..Outcome::default()
    })
}

/// Returns the number after a word in sockperf's output.
fn number_after(text: &str, word: &str) -> Option<f64> {
    let (_, rest) = text.split_once(word)?;
    let rest = rest.trim_start_matches([' ', '=', ':']);
    let end = rest.find(|one: char| !one.is_ascii_digit() && one != '.');
    rest[..end.unwrap_or(rest.len())].parse().ok()
}

/// Parses `sockperf ping-pong`: half round trips in us, and the number of messages both ways.
pub(super) fn sockperf_pingpong(text: &str) -> Option<(Outcome, f64)> {
    let percentile = |share: &str| {
        let line = text
            .lines()
            .find(|line| line.contains(&format!("percentile {share}")))?;
        Some(number_after(line, "=")? * NS_PER_US)
    };
    let sent = number_after(text, "SentMessages=")?;
    let outcome = Outcome {
        one_way: Some(OneWay {
            p50_ns: percentile("50.000")?,
            mean80_ns: None,
            p99_ns: percentile("99.000"),
            p999_ns: percentile("99.900"),
        }),
        ..Outcome::default()
    };
    Some((outcome, 2.0 * sent))
}

/// Parses `sockperf throughput`, by the sender's clock.
pub(super) fn sockperf_stream(text: &str, size_bytes: f64) -> Option<(Outcome, f64)> {
    let rate = number_after(text, "Message Rate is ")?;
    let sent = number_after(text, "Total of ")?;
    let outcome = Outcome {
        messages_per_s: Some(rate),
        bytes_per_s: Some(rate * size_bytes),
        remarks: vec!["sockperf counts what was sent".to_owned()],
        ..Outcome::default()
    };
    Some((outcome, sent))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn p50(outcome: Option<Outcome>) -> f64 {
        let outcome = outcome.expect("an outcome");
        outcome.one_way.expect("a time").p50_ns
    }

    #[test]
    fn a_program_of_ours_tells_its_figures_last() {
        let text = "a remark of a launcher's\n{\"p50_ns\": 150.0, \"mean80_ns\": 151.2, \"p99_ns\": \
                    255.5, \"p999_ns\": 365.5, \"cpu_ns_per_message\": 844.4}\n";
        let outcome = program(text).expect("an outcome");
        assert_eq!(outcome.cpu_ns_per_message, 844.4);
        assert_eq!(outcome.one_way.and_then(|times| times.p99_ns), Some(255.5));
        assert_eq!(p50(Some(outcome)), 150.0);
        let text =
            "{\"messages_per_s\": 10.0, \"bytes_per_s\": 640.0, \"cpu_ns_per_message\": 7.0}";
        assert_eq!(program(text).and_then(|it| it.bytes_per_s), Some(640.0));
        assert_eq!(program("{\"cpu_ns_per_message\": 7.0}"), None);
        assert_eq!(program("nothing"), None);
    }

    #[test]
    fn fi_pingpong_tells_microseconds_a_transfer() {
        let text = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n\
                    64k     1k      =1k      125m        0.17s    756.16      86.67       0.01\n";
        assert_eq!(p50(fi_pingpong(text)), 86_670.0);
        assert_eq!(fi_pingpong("fi_getinfo: -61"), None);
    }

    #[test]
    fn ucx_perftest_tells_half_round_trips_and_messages_a_second() {
        let text = "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,\
                    overall_mr\n10000,6.605,35.093,35.093,1.74,1.74,28495,28495\n";
        let (outcome, mean_ns) = ucx_latency(text).expect("an outcome");
        assert_eq!((p50(Some(outcome)), mean_ns), (6605.0, 35_093.0));
        let stream = ucx_stream(text, 64.0).expect("an outcome");
        assert_eq!(stream.messages_per_s, Some(28_495.0));
        assert_eq!(stream.bytes_per_s, Some(28_495.0 * 64.0));
        assert_eq!(ucx_latency("[1:2] ERROR no device"), None);
    }

    #[test]
    fn iperf3_tells_bits_that_arrived_and_percent_of_both_sides() {
        let text = r#"{"end": {"sum_sent": {"bits_per_second": 9e9},
            "sum_received": {"bits_per_second": 8e9},
            "cpu_utilization_percent": {"host_total": 40.0, "remote_total": 60.0}}}"#;
        let outcome = iperf3(text, 1e6).expect("an outcome");
        assert_eq!(outcome.bytes_per_s, Some(1e9));
        assert_eq!(outcome.messages_per_s, Some(1000.0));
        // CPU time of one processor for 1000 messages per second.
        assert_eq!(outcome.cpu_ns_per_message, 1e6);
        assert_eq!(iperf3(r#"{"error": "unable to connect"}"#, 1.0), None);
    }

    #[test]
    fn sockperf_tells_half_round_trips_and_what_the_whole_run_sent() {
        let text = "sockperf: [Total Run] RunTime=1.000 sec; Warm up time=400 msec; \
                    SentMessages=71157; ReceivedMessages=71156\n\
                    sockperf: [Valid Duration] RunTime=0.550 sec; SentMessages=39726; \
                    ReceivedMessages=39726\n\
                    sockperf: ---> percentile 99.900 =   21.086\n\
                    sockperf: ---> percentile 99.000 =    8.993\n\
                    sockperf: ---> percentile 50.000 =    6.704\n";
        let (outcome, messages) = sockperf_pingpong(text).expect("an outcome");
        assert_eq!(messages, 142_314.0);
        let one_way = outcome.one_way.expect("times");
        assert_eq!((one_way.p50_ns, one_way.p999_ns), (6704.0, Some(21_086.0)));
        let text = "sockperf: Total of 680481 messages sent in 1.000 sec\n\
                    sockperf: Summary: Message Rate is 680152 [msg/sec]\n";
        let (outcome, messages) = sockperf_stream(text, 1024.0).expect("an outcome");
        assert_eq!(
            (outcome.messages_per_s, messages),
            (Some(680_152.0), 680_481.0)
        );
        assert_eq!(sockperf_pingpong("sockperf: ERROR"), None);
    }
}
