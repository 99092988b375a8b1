//! Pause frames (802.3x) of a device, as reported by `ethtool`.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::finding::Finding;

pub(super) fn examine(device: &str) -> Finding {
    pause(asked(device).as_deref())
}

fn asked(device: &str) -> Option<String> {
    // Users' search paths often lack the first two directories.
    let places = ["/usr/sbin/ethtool", "/sbin/ethtool", "/usr/bin/ethtool"];
    let program = places
        .iter()
        .map(PathBuf::from)
        .find(|path| path.exists())?;
    let mut command = Command::new(program);
    command
        .args(["-a", device])
        .stdin(Stdio::null())
        .stderr(Stdio::null());
    let output = command.output().ok()?;
    (output.status.success()).then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Parses the output of `ethtool -a`.
fn pause(told: Option<&str>) -> Finding {
    const NAME: &str = "pause frames";
    let state = |direction: &str| {
        let mut lines = told?.lines();
        let line = lines.find_map(|line| line.strip_prefix(direction))?;
        match line.trim_start_matches(':').trim() {
            "on" => Some(true),
            "off" => Some(false),
            _ => None,
        }
    };
    match (told, state("RX"), state("TX")) {
        (None, ..) => Finding::unknown(
            NAME,
            "ethtool is missing, or the device has none to tell of",
            "with ethtool installed, `ethtool -a DEVICE` shows them",
        ),
        (_, Some(false), Some(false)) => Finding::good(
            NAME,
            "off: a receiver that is overrun loses packets, which are repeated",
        ),
        (_, Some(receive), Some(send)) => Finding::good(
            NAME,
            format!(
                "receive {}, send {}: an overrun receiver holds its senders up",
                on(receive),
                on(send)
            ),
        )
        .advise(
            "on a switch shared with other traffic, one slow machine can hold up all: \
             `ethtool -A DEVICE rx off tx off`",
        ),
        _ => Finding::unknown(NAME, "ethtool does not report them", ""),
    }
}

fn on(state: bool) -> &'static str {
    if state { "on" } else { "off" }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict::Unknown;
    use super::*;

    #[test]
    fn what_ethtool_prints_is_understood() {
        let told = |rx, tx| {
            pause(Some(&format!(
                "Pause parameters for e:\nAutonegotiate:\ton\nRX:\t\t{rx}\nTX:\t\t{tx}\n"
            )))
        };
        assert!(told("off", "off").fact.starts_with("off"));
        assert!(told("on", "off").fact.starts_with("receive on, send off"));
        assert_eq!(told("maybe", "off").verdict, Unknown);
        assert_eq!(pause(None).verdict, Unknown);
    }
}
