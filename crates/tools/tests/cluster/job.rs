//! A job on a testbed, whose output is printed and collected while it runs.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use dipole_testbed::Testbed;
use dipole_testbed::built::example;

/// Longer than any of these jobs takes.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Job {
    child: Child,
    begun: Instant,
    lines: Arc<Mutex<Vec<String>>>,
    readers: Vec<JoinHandle<()>>,
}

impl Job {
    /// Starts `dipole run` on the first node, with the soak example for some seconds.
    pub(crate) fn soak(testbed: &Testbed, ranks: u32, seconds: f64, options: &[&str]) -> Job {
        Job::start(testbed, ranks, &seconds.to_string(), options, "auto")
    }

    /// A soak that lasts until `end`.
    pub(crate) fn soak_on(testbed: &Testbed, ranks: u32, options: &[&str]) -> Job {
        Job::start(testbed, ranks, "-", options, "auto")
    }

    /// A soak that uses these links in turn.
    pub(crate) fn soak_by(testbed: &Testbed, ranks: u32, seconds: f64, links: &str) -> Job {
        Job::start(testbed, ranks, &seconds.to_string(), &[], links)
    }

    fn start(testbed: &Testbed, ranks: u32, duration: &str, options: &[&str], links: &str) -> Job {
        let mut command = testbed.command(1, env!("CARGO_BIN_EXE_dipole"));
        command.args(["run", "--tag", "-n", &ranks.to_string(), "--hosts"]);
        command.arg(testbed.hosts_file()).arg("--rsh");
        command.arg(testbed.remote_shell()).args(options);
        command.arg(example("soak")).args([duration, links]);
        command.stdin(Stdio::piped());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let begun = Instant::now();
        let lines = Arc::default();
        let readers = vec![
            listen(begun, &lines, child.stdout.take().expect("a pipe")),
            listen(begun, &lines, child.stderr.take().expect("a pipe")),
        ];
        Job {
            child,
            begun,
            lines,
            readers,
        }
    }

    /// Adds a line of the test itself to the output.
    pub(crate) fn note(&self, what: &str) {
        note(self.begun, &self.lines, &format!("--- {what}"));
    }

    /// Waits until `count` lines contain `text`.
    pub(crate) fn wait_for(&self, count: usize, text: &str) {
        let until = Instant::now() + PATIENCE;
        while self.count(text) < count {
            assert!(Instant::now() < until, "waited for `{text}`");
            thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn count(&self, text: &str) -> usize {
        let lines = self.lines.lock().expect("a lock that is not poisoned");
        lines.iter().filter(|line| line.contains(text)).count()
    }

    /// The numbers between these words, one per line.
    pub(crate) fn numbers(&self, before: &str, after: &str) -> Vec<f64> {
        let lines = self.lines.lock().expect("a lock that is not poisoned");
        let number = |line: &String| {
            let (head, _) = line.split_once(after)?;
            head.rsplit_once(before)?.1.parse().ok()
        };
        lines.iter().filter_map(number).collect()
    }

    /// Ends its standard input and waits for its end.
    pub(crate) fn end(&mut self) -> ExitStatus {
        drop(self.child.stdin.take());
        let until = Instant::now() + PATIENCE * 3;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("a child of ours") {
                break status;
            }
            assert!(Instant::now() < until, "the job does not end");
            thread::sleep(Duration::from_millis(20));
        };
        for reader in self.readers.drain(..) {
            reader.join().expect("it reads");
        }
        status
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // Its processes end with it.
        let _ended = self.child.kill();
        let _waited = self.child.wait();
    }
}

fn listen(
    begun: Instant,
    lines: &Arc<Mutex<Vec<String>>>,
    from: impl Read + Send + 'static,
) -> JoinHandle<()> {
    let lines = Arc::clone(lines);
    thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            note(begun, &lines, &line);
        }
    })
}

fn note(begun: Instant, lines: &Mutex<Vec<String>>, line: &str) {
    let line = format!("{:7.3}  {line}", begun.elapsed().as_secs_f64());
    println!("{line}");
    lines
        .lock()
        .expect("a lock that is not poisoned")
        .push(line);
}
