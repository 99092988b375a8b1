//! A host from the launcher's view: a guard process that leads to the shim on that host.

use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead, BufReader, Read};
use std::net::UdpSocket;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use dipole_naming::registry::is_shortage;
use dipole_naming::threads;
use dipole_node::NodeId;
use dipole_node::hosts::Host;
use dipole_node::job::Starter;

use super::budget::Budget;
use super::message::{self, ToLauncher, ToShim, skip_to_banner};

/// Events of a host's threads for the launcher, with the index of the contact.
pub(super) enum HostEvent {
    Message(usize, ToLauncher),
    /// The host was reached through its agent, not a remote shell.
    ByAgent(usize),
    /// A line on standard error from the remote shell, the guard or the shim.
    StderrLine(usize, String),
    /// The stream ended; with a reason if that was not after `Done`.
    Ended(usize, Option<String>),
}

/// How long output on standard error may arrive after the end of the messages.
const LAST_ERRORS_TIMEOUT: Duration = Duration::from_secs(1);

/// Starts a process on a node of this Slurm job, with the job's cores and within its limits.
const SRUN: [&str; 8] = [
    "srun",
    "--overlap",
    "--nodes=1",
    "--ntasks=1",
    "--unbuffered",
    "--mpi=none",
    "--cpu-bind=none",
    "--quiet",
];

/// How to reach hosts.
pub(super) struct Reach<'a> {
    /// Command line of the remote shell; if empty, `ssh` with options that never prompt.
    pub(super) shell: &'a [String],
    /// Path of `dipole` on the other hosts.
    pub(super) program: &'a Path,
    /// The node of this machine, if it is set in the environment.
    pub(super) own_node: Option<NodeId>,
    /// With a cluster key, agents are tried first.
    pub(super) has_key: bool,
    /// How the scheduler that has allocated the hosts starts processes on them.
    pub(super) starter: Starter,
    /// The hosts come from an agent, not from a file that the user wrote.
    pub(super) is_discovered: bool,
    /// Number of ranks of the job, and its command, for the rules of agents.
    pub(super) ranks: u32,
    pub(super) job: String,
}

/// A host that the launcher has contacted.
pub(super) struct Contact {
    pub(super) host: Host,
    pub(super) since: Instant,
    pub(super) state: State,
    /// Number of ranks it accepts, if its owner has set a limit.
    pub(super) max_ranks: Option<u32>,
    /// It was reached through its agent, which has its own key file.
    pub(super) by_agent: bool,
    /// Messages for a writing thread, because the launcher must not block on a network that hangs.
    to_write: Option<Sender<(ToShim, Option<Sender<()>>)>>,
}

/// The state of a contact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// No message from its shim yet.
    Waiting,
    /// Its shim waits until ranks move to it.
    Answered,
    /// Its shim has sent its first message.
    Ready,
    /// Disconnected, in an orderly way or not.
    Gone,
}

impl Contact {
    /// Starts the guard that leads to the host, and threads that read from it.
    pub(super) fn start(
        index: usize,
        host: &Host,
        reach: &Reach<'_>,
        events: &Sender<HostEvent>,
        budget: &Budget,
    ) -> io::Result<Contact> {
        let own = std::env::current_exe()?;
        let mut command = Command::new(&own);
        command
            .arg("guard")
            .args(["--parent", &std::process::id().to_string()])
            .args(guard_arguments(host, reach, &own)?)
            // The terminal sends Ctrl-C to the launcher only, which forwards it.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let (to_write, messages) = channel::<(ToShim, Option<Sender<()>>)>();
        if let Some(mut stdin) = child.stdin.take() {
            threads::start("dipole-to-host", move || {
                for (message, written) in messages {
                    // The reading thread reports a lost host.
                    if message::write(&message, &mut stdin).is_err() {
                        return;
                    }
                    if let Some(written) = written {
                        let _nobody_waits = written.send(());
                    }
                }
            })?;
        }
        let (open, closed) = channel();
        if let Some(stdout) = child.stdout.take() {
            let (events, budget) = (events.clone(), budget.clone());
            threads::start("dipole-from-host", move || {
                let reason = read_messages(index, stdout, &events, &budget);
                // Standard error may explain the end, and is used only if it arrives before it.
                let _all_read = closed.recv_timeout(LAST_ERRORS_TIMEOUT);
                let _ = events.send(HostEvent::Ended(index, reason));
            })?;
        }
        if let Some(stderr) = child.stderr.take() {
            let events = events.clone();
            threads::start("dipole-errors", move || {
                let _dropped_at_the_end: Sender<()> = open;
                for line in BufReader::new(stderr).split(b'\n').map_while(Result::ok) {
                    let line = String::from_utf8_lossy(&line).trim_end().to_owned();
                    let _ = events.send(HostEvent::StderrLine(index, line));
                }
            })?;
        }
        Ok(Contact {
            host: host.clone(),
            since: Instant::now(),
            state: State::Waiting,
            max_ranks: None,
            by_agent: false,
            to_write: Some(to_write),
        })
    }

    /// Sends the shim a message. The reading thread reports a lost host.
    pub(super) fn send(&self, message: ToShim) {
        if let Some(to_write) = &self.to_write {
            let _ = to_write.send((message, None));
        }
    }

    /// Sends a message. The returned channel gets an item, or is closed, when it has been written.
    pub(super) fn send_and_notify(&self, message: ToShim) -> Receiver<()> {
        let (written, left) = channel();
        if let Some(to_write) = &self.to_write {
            let _ = to_write.send((message, Some(written)));
        }
        left
    }

    /// Disconnects: the guard and the shim then end all processes there.
    pub(super) fn disconnect(&mut self) {
        self.to_write = None;
        self.state = State::Gone;
    }
}

/// The arguments after `guard --parent PID`: none for this machine.
fn guard_arguments(host: &Host, reach: &Reach<'_>, own: &Path) -> io::Result<Vec<OsString>> {
    if is_here(host, reach)? {
        return Ok(Vec::new());
    }
    let mut arguments: Vec<OsString> = vec!["--".into()];
    let mut line = quoted(reach.program.as_os_str());
    line.push(" guard");
    if reach.shell.is_empty()
        && let Some(words) = scheduled(host, reach, &line)
    {
        arguments.extend(words);
        return Ok(arguments);
    }
    // An explicit way to reach the host takes precedence over its agent.
    if reach.has_key && reach.shell.is_empty() && host.ssh.is_none() {
        let addresses: Vec<String> = host.directories().iter().map(ToString::to_string).collect();
        arguments.extend([own.into(), "reach".into(), addresses.join(",").into()]);
        let (node, ranks) = (
            host.node.to_string(),
            reach.ranks.min(host.slots).to_string(),
        );
        arguments.extend(["--node", &node].map(OsString::from));
        arguments.extend(["--ranks", &ranks, "--job", &reach.job, "--"].map(OsString::from));
        // A remote shell would get the key without a proof that the host holds it.
        if reach.is_discovered {
            return Ok(arguments);
        }
    }
    if reach.shell.is_empty() {
        arguments.extend(
            [
                "ssh",
                "-oBatchMode=yes",
                "-oConnectTimeout=5",
                "-oServerAliveInterval=2",
                "-oServerAliveCountMax=3",
            ]
            .map(OsString::from),
        );
    } else {
        arguments.extend(reach.shell.iter().map(OsString::from));
    }
    arguments.push(match &host.ssh {
        Some(destination) => destination.to_string().into(),
        None => host.text_of(host.address).into(),
    });
    arguments.push(line);
    Ok(arguments)
}

/// The command with which the scheduler starts a shell or a program on a host.
fn scheduled(host: &Host, reach: &Reach<'_>, line: &OsStr) -> Option<Vec<OsString>> {
    let name = host.name.as_ref()?;
    let mut words: Vec<OsString> = Vec::new();
    match reach.starter {
        Starter::Ssh => return None,
        Starter::Srun => {
            words.extend(SRUN.map(OsString::from));
            words.push(format!("--nodelist={name}").into());
            words.extend(["sh".into(), "-c".into(), line.to_owned()]);
        }
        // It may pass the words to a shell or not.
        Starter::Blaunch => {
            words.extend(["blaunch".into(), name.to_string().into()]);
            words.extend([reach.program.into(), "guard".into()]);
        }
    }
    Some(words)
}

fn is_here(host: &Host, reach: &Reach<'_>) -> io::Result<bool> {
    Ok(match &host.ssh {
        Some(destination) => &**destination == "local",
        None if reach.own_node == Some(host.node) => true,
        None if reach.starter != Starter::Ssh => false,
        // An address that can be bound belongs to this machine.
        None if !reach.shell.is_empty() => false,
        None => match UdpSocket::bind(host.socket_address(host.address, 0)) {
            // Any address fails during a shortage.
            Err(cause) if is_shortage(&cause) => return Err(cause),
            bound => bound.is_ok(),
        },
    })
}

/// Quotes a word for a shell.
fn quoted(word: &OsStr) -> OsString {
    let text = word.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+".contains(c);
    if text.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''")).into()
}

/// Reads messages until the stream ends; returns why, if that was not after [`ToLauncher::Done`].
fn read_messages(
    index: usize,
    stdout: impl Read,
    events: &Sender<HostEvent>,
    budget: &Budget,
) -> Option<String> {
    let mut from = BufReader::with_capacity(1 << 16, stdout);
    match skip_to_banner(&mut from) {
        Ok(true) => {
            let _ = events.send(HostEvent::ByAgent(index));
        }
        Ok(false) => {}
        Err(cause) => return Some(cause.to_string()),
    }
    let mut done = false;
    loop {
        match message::read::<ToLauncher>(&mut from) {
            Ok(Some(message)) => {
                done |= matches!(message, ToLauncher::Done);
                if let ToLauncher::Output { bytes, .. } = &message {
                    budget.take(bytes.len());
                }
                let _ = events.send(HostEvent::Message(index, message));
            }
            Ok(None) if done => return None,
            Ok(None) => return Some("the connection ended".to_owned()),
            Err(cause) => return Some(cause.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dipole_node::hosts::Hosts;

    fn words(line: &str, shell: &[&str], own_node: Option<u32>) -> Vec<String> {
        words_with(line, shell, own_node, [false, false])
    }

    fn words_with(
        line: &str,
        shell: &[&str],
        own_node: Option<u32>,
        [has_key, is_discovered]: [bool; 2],
    ) -> Vec<String> {
        let hosts = Hosts::parse(line).unwrap();
        let shell: Vec<String> = shell.iter().map(|word| (*word).to_owned()).collect();
        let reach = Reach {
            shell: &shell,
            program: Path::new("/opt/my tools/dipole"),
            own_node: own_node.map(NodeId),
            has_key,
            starter: Starter::Ssh,
            is_discovered,
            ranks: 3,
            job: "sort big".to_owned(),
        };
        guard_arguments(hosts.iter().next().unwrap(), &reach, Path::new("/d"))
            .unwrap()
            .into_iter()
            .map(|word| word.into_string().unwrap())
            .collect()
    }

    #[test]
    fn this_machine_needs_no_shell_and_another_is_reached_by_ssh_or_what_was_given() {
        assert!(words("1 127.0.0.1", &[], None).is_empty());
        assert!(words("1 192.0.2.1", &[], Some(1)).is_empty());
        assert!(words("1 192.0.2.1 ssh=local", &["sh"], None).is_empty());
        let by_ssh = words("1 192.0.2.1 ssh=me@there", &[], None);
        assert_eq!(by_ssh[1], "ssh");
        assert_eq!(by_ssh[by_ssh.len() - 2], "me@there");
        assert_eq!(by_ssh[by_ssh.len() - 1], "'/opt/my tools/dipole' guard");
        let given = words("1 127.0.0.1", &["into", "-q"], None);
        assert_eq!(given[..4], ["--", "into", "-q", "127.0.0.1"]);
    }

    #[test]
    fn a_node_of_an_allocation_is_reached_by_the_command_of_the_scheduler() {
        let hosts = Hosts::parse("1 127.0.0.1 name=n1\n2 127.0.0.1 port=9 name=n2").unwrap();
        for (starter, expected) in [
            (
                Starter::Srun,
                "srun --overlap --nodes=1 --ntasks=1 --unbuffered --mpi=none --cpu-bind=none \
                 --quiet --nodelist=n2 sh -c /opt/dipole guard",
            ),
            (Starter::Blaunch, "blaunch n2 /opt/dipole guard"),
        ] {
            let reach = Reach {
                shell: &[],
                program: Path::new("/opt/dipole"),
                own_node: Some(NodeId(1)),
                has_key: true,
                starter,
                is_discovered: false,
                ranks: 2,
                job: String::new(),
            };
            let words = |index| {
                let host = hosts.iter().nth(index).unwrap();
                guard_arguments(host, &reach, Path::new("/d")).unwrap()
            };
            assert!(words(0).is_empty(), "it runs here");
            assert_eq!(words(1)[1..].join(OsStr::new(" ")), expected);
        }
    }

    #[test]
    fn with_a_key_the_agent_is_tried_first_unless_the_user_sets_how_the_host_is_reached() {
        let line = "1 192.0.2.1 port=9 interfaces=192.0.3.1 slots=2";
        let words = words_with(line, &[], None, [true, false]);
        let agent = ["--", "/d", "reach", "192.0.2.1:9,192.0.3.1:9"];
        assert_eq!(words[..4], agent);
        assert_eq!(words[4..6], ["--node", "1"]);
        assert_eq!(words[6..10], ["--ranks", "2", "--job", "sort big"]);
        assert_eq!(words[10..12], ["--", "ssh"]);
        for (line, shell) in [(line, &["sh"][..]), ("1 192.0.2.1 ssh=there", &[])] {
            let given = words_with(line, shell, None, [true, false]);
            assert!(!given.contains(&"reach".to_owned()), "{given:?}");
        }
        assert!(words_with(line, &[], Some(1), [true, false]).is_empty());
        // No file states that this host may get the key.
        let discovered = words_with(line, &[], None, [true, true]);
        assert_eq!(discovered[..10], words[..10]);
        assert_eq!(discovered[10..], ["--"]);
    }
}
