//! Progress of a stream on standard error, and its summary at the end.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{HumanBytes, ProgressBar, ProgressStyle};
use serde::Serialize;

/// Interval between two lines of progress where no bar can be drawn.
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// Progress of one stream.
pub(super) struct Progress {
    started: Instant,
    there_bytes: u64,
    bytes: u64,
    messages: u64,
    show: Show,
}

enum Show {
    Nothing,
    Bar(ProgressBar),
    Lines { next: Instant, who: &'static str },
}

/// The result that both commands print with `--json`.
#[derive(Serialize)]
pub(super) struct Summary<'a> {
    pub(super) event: &'a str,
    pub(super) peer: String,
    /// The file, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) file: Option<String>,
    /// Length of the whole file, including what an earlier transfer had brought.
    pub(super) bytes: u64,
    pub(super) messages: u64,
    pub(super) seconds: f64,
    pub(super) bytes_per_s: f64,
    pub(super) crc32c: String,
}

/// The result of a tree that both commands print with `--json`.
#[derive(Serialize)]
pub(super) struct TreeSummary<'a> {
    pub(super) event: &'a str,
    pub(super) peer: String,
    /// Regular files that are complete.
    pub(super) files: u64,
    /// Files, directories and links that are not.
    pub(super) failed: u64,
    /// Contents and metadata that were transferred, without the holes of files.
    pub(super) bytes: u64,
    pub(super) messages: u64,
    pub(super) seconds: f64,
    pub(super) bytes_per_s: f64,
}

/// A file of a tree that has arrived, for `--json`.
#[derive(Serialize)]
pub(super) struct FileArrival {
    pub(super) event: &'static str,
    pub(super) peer: String,
    pub(super) file: String,
    pub(super) bytes: u64,
}

/// A line of `--json`.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum Event<'a> {
    Stream(Summary<'a>),
    Tree(TreeSummary<'a>),
    File(FileArrival),
}

impl Progress {
    /// `total_bytes` if it is known; `forced` shows progress even without a terminal.
    pub(super) fn new(who: &'static str, total_bytes: Option<u64>, forced: bool) -> Progress {
        let started = Instant::now();
        let show = if std::io::stderr().is_terminal() {
            let (bar, template) = match total_bytes {
                Some(total) => (
                    ProgressBar::new(total),
                    "{msg} {bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta} left",
                ),
                None => (
                    ProgressBar::new_spinner(),
                    "{msg} {spinner} {bytes} {bytes_per_sec}",
                ),
            };
            let style = ProgressStyle::with_template(template)
                .unwrap_or_else(|_| ProgressStyle::default_bar());
            Show::Bar(bar.with_style(style).with_message(who))
        } else if forced {
            Show::Lines { next: started, who }
        } else {
            Show::Nothing
        };
        Progress {
            started,
            there_bytes: 0,
            bytes: 0,
            messages: 0,
            show,
        }
    }

    /// Starts the clock with the stream, not with the wait for it; `present` bytes are there already.
    pub(super) fn begin(&mut self, there_bytes: u64) {
        self.started = Instant::now();
        self.there_bytes = there_bytes;
        self.bytes = there_bytes;
    }

    pub(super) fn add(&mut self, bytes: usize) {
        self.add_hole(bytes as u64);
    }

    /// Adds a message that stands for this many bytes.
    pub(super) fn add_hole(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.messages += 1;
        match &mut self.show {
            Show::Nothing => {}
            Show::Bar(bar) => bar.set_position(self.bytes),
            Show::Lines { next, who } => {
                let now = Instant::now();
                if now >= *next {
                    *next = now + REPORT_EVERY;
                    let rate = per_second(self.bytes - self.there_bytes, now - self.started);
                    eprintln!("{who} {}, {}/s", HumanBytes(self.bytes), whole_bytes(rate));
                }
            }
        }
    }

    /// Removes the bar; returns the time and the rate.
    fn end(&self) -> (Duration, f64) {
        let took = self.started.elapsed();
        let rate = per_second(self.bytes - self.there_bytes, took);
        match &self.show {
            Show::Nothing => {}
            Show::Bar(bar) => bar.finish_and_clear(),
            Show::Lines { who, .. } => eprintln!(
                "{who} {} in {:.3} s, {}/s",
                HumanBytes(self.bytes),
                took.as_secs_f64(),
                whole_bytes(rate)
            ),
        }
        (took, rate)
    }

    /// Removes the bar and summarises the transfer of a tree with these numbers of complete and other
    /// files.
    pub(super) fn finish_tree<'a>(
        &self,
        event: &'a str,
        peer: String,
        (files, failed): (u64, u64),
    ) -> TreeSummary<'a> {
        let (took, rate) = self.end();
        TreeSummary {
            event,
            peer,
            files,
            failed,
            bytes: self.bytes,
            messages: self.messages,
            seconds: took.as_secs_f64(),
            bytes_per_s: rate,
        }
    }

    /// Removes the bar and summarises the transfer.
    pub(super) fn finish<'a>(
        &self,
        event: &'a str,
        peer: String,
        file: Option<String>,
        crc: u32,
    ) -> Summary<'a> {
        let (took, rate) = self.end();
        Summary {
            event,
            peer,
            file,
            bytes: self.bytes,
            messages: self.messages,
            seconds: took.as_secs_f64(),
            bytes_per_s: rate,
            crc32c: format!("{crc:08x}"),
        }
    }
}

fn per_second(bytes: u64, took: Duration) -> f64 {
    bytes as f64 / took.as_secs_f64().max(1e-9)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rate is not negative, and for people"
)]
fn whole_bytes(rate: f64) -> HumanBytes {
    HumanBytes(rate as u64)
}
