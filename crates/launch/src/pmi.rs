//! A server of PMI-1 for the ranks of one host, so that an MPI library in them finds its job.
//!
//! Ranks speak lines of text over the inherited descriptor `PMI_FD`. They put addresses under keys,
//! meet in a barrier, and get what others have put before it. At the barrier the shims of all hosts
//! exchange what is new through the launcher.
//!
//! # Source
//! The wire format of MPICH's "simple" PMI client, version 1.1.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use dipole_naming::threads;
use rustix::io::{FdFlags, fcntl_setfd};

use crate::message::{Entries, PmiJob, ToLauncher};

/// Longest line of a client. Its own limit is 1024.
const MAX_LINE_BYTES: u64 = 4096;
/// Longest name, key and value, as announced to clients.
const MAXES: &str = "kvsname_max=256 keylen_max=64 vallen_max=1024";
/// Name of the only store.
const STORE: &str = "dipole";
/// The key under which clients look for the nodes of the ranks.
const MAPPING: &str = "PMI_process_mapping";

/// Serves the ranks of this host.
#[derive(Clone)]
pub(super) struct PmiServer {
    shared: Arc<Shared>,
    outbox: Sender<ToLauncher>,
}

struct Shared {
    job: PmiJob,
    /// Number of ranks on this host.
    local: usize,
    state: Mutex<State>,
    /// A barrier has ended, or the job is ending.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    store: BTreeMap<String, String>,
    /// Entries that the other hosts do not have yet.
    fresh: Entries,
    /// Ranks of this host in the current barrier.
    waiting: usize,
    /// Ranks of this host that have ended.
    gone: usize,
    /// Number of barriers that have ended.
    barriers: u64,
    /// The job is ending.
    closed: bool,
}

impl PmiServer {
    pub(super) fn new(job: PmiJob, local: usize, outbox: Sender<ToLauncher>) -> PmiServer {
        let shared = Shared {
            job,
            local,
            state: Mutex::default(),
            changed: Condvar::new(),
        };
        PmiServer {
            shared: Arc::new(shared),
            outbox,
        }
    }

    /// Connects a rank that is about to be started. The returned descriptor is inherited by every
    /// process that is started until it is dropped.
    pub(super) fn connect(&self, rank: u32, command: &mut Command) -> io::Result<OwnedFd> {
        let (ours, theirs) = UnixStream::pair()?;
        let theirs = OwnedFd::from(theirs);
        fcntl_setfd(&theirs, FdFlags::empty())?;
        command
            .env("PMI_FD", theirs.as_raw_fd().to_string())
            .env("PMI_RANK", rank.to_string())
            .env("PMI_SIZE", self.shared.job.size.to_string());
        let server = self.clone();
        threads::start("dipole-pmi", move || {
            // A rank that ends closes the connection; most never use it.
            let _ended = server.serve(rank, &ours);
            server.leave();
        })?;
        Ok(theirs)
    }

    /// Adds what all hosts have put, and ends the barrier.
    pub(super) fn end_barrier(&self, entries: Entries) {
        let mut state = self.lock();
        state.store.extend(entries);
        state.barriers += 1;
        self.shared.changed.notify_all();
    }

    /// Ends all waits: the job is ending.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.shared.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        let state = self.shared.state.lock();
        state.unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves a rank until it closes the connection, aborts, or breaks the rules of the protocol.
    fn serve(&self, rank: u32, stream: &UnixStream) -> io::Result<()> {
        let mut reader = BufReader::new(stream);
        let mut out = stream;
        let mut next = || -> io::Result<Option<String>> {
            let mut line = String::new();
            (&mut reader).take(MAX_LINE_BYTES).read_line(&mut line)?;
            // A line that is too long has no end either.
            Ok(line.strip_suffix('\n').map(str::to_owned))
        };
        while let Some(line) = next()? {
            let mut request = Request::parse(&line);
            if line.starts_with("mcmd=") {
                // A request of several lines, to start more processes.
                while next()?.is_some_and(|line| line != "endcmd") {}
                request.command = "spawn";
            }
            if request.command == "abort" {
                let status = request.field("exitcode").and_then(|code| code.parse().ok());
                let status = status.unwrap_or(1);
                let _ = self.outbox.send(ToLauncher::PmiAbort { rank, status });
                break;
            }
            if let Some(answer) = self.answer(&request) {
                out.write_all(format!("{answer}\n").as_bytes())?;
            }
        }
        Ok(())
    }

    /// The answer to a request; `None` if the job ends before there is one.
    fn answer(&self, request: &Request<'_>) -> Option<String> {
        let job = &self.shared.job;
        Some(match request.command {
            "init" => "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1".to_owned(),
            "get_maxes" => format!("cmd=maxes {MAXES}"),
            "get_appnum" => "cmd=appnum appnum=0".to_owned(),
            "get_universe_size" => format!("cmd=universe_size size={}", job.size),
            "get_my_kvsname" => format!("cmd=my_kvsname kvsname={STORE}"),
            "put" => match (request.field("key"), request.field("value")) {
                (Some(key), Some(value)) => {
                    let entry = (key.to_owned(), value.to_owned());
                    let mut state = self.lock();
                    state.fresh.push(entry.clone());
                    state.store.extend([entry]);
                    "cmd=put_result rc=0 msg=success".to_owned()
                }
                _ => "cmd=put_result rc=-1 msg=malformed".to_owned(),
            },
            "get" => match request.field("key") {
                Some(MAPPING) => format!("cmd=get_result rc=0 msg=success value={}", job.mapping),
                key => match key.and_then(|key| self.lock().store.get(key).cloned()) {
                    Some(value) => format!("cmd=get_result rc=0 msg=success value={value}"),
                    None => "cmd=get_result rc=-1 msg=key_not_found value=unknown".to_owned(),
                },
            },
            "barrier_in" => {
                self.meet()?;
                "cmd=barrier_out rc=0".to_owned()
            }
            "finalize" => "cmd=finalize_ack rc=0".to_owned(),
            other => format!("cmd={other}_result rc=-1 msg=not_supported"),
        })
    }

    /// Waits in a barrier of all ranks; `None` if the job ends.
    fn meet(&self) -> Option<()> {
        let mut state = self.lock();
        let before = state.barriers;
        state.waiting += 1;
        self.arrive(&mut state);
        while state.barriers == before && !state.closed {
            let waited = self.shared.changed.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
        (!state.closed).then_some(())
    }

    /// A rank has ended: the others do not wait for it, and do not find its address.
    fn leave(&self) {
        let mut state = self.lock();
        state.gone += 1;
        self.arrive(&mut state);
    }

    /// Announces the barrier of this host if all its ranks are there.
    fn arrive(&self, state: &mut State) {
        if state.waiting > 0 && state.waiting + state.gone >= self.shared.local {
            state.waiting = 0;
            let entries = std::mem::take(&mut state.fresh);
            let _ = self.outbox.send(ToLauncher::PmiBarrier(entries));
        }
    }
}

/// A line of a client: fields `name=value`, separated by spaces.
struct Request<'a> {
    command: &'a str,
    line: &'a str,
}

impl<'a> Request<'a> {
    fn parse(line: &'a str) -> Request<'a> {
        let mut request = Request { command: "", line };
        request.command = request.field("cmd").unwrap_or_default();
        request
    }

    /// A field by its name. The field `value` is the last one and may contain anything.
    fn field(&self, name: &str) -> Option<&'a str> {
        let mut rest = self.line;
        while !rest.is_empty() {
            let (found, after) = rest.split_once('=')?;
            if found == "value" {
                return (name == "value").then_some(after);
            }
            let (value, next) = after.split_once(' ').unwrap_or((after, ""));
            if found == name {
                return Some(value);
            }
            rest = next.trim_start();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    /// A client of a server, as MPI libraries have one.
    struct Client(BufReader<UnixStream>);

    impl Client {
        fn new(server: &PmiServer) -> Client {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let server = server.clone();
            std::thread::spawn(move || {
                let ended = server.serve(0, &theirs);
                server.leave();
                ended
            });
            Client(BufReader::new(ours))
        }

        fn send(&mut self, request: &str) {
            self.0.get_mut().write_all(request.as_bytes()).unwrap();
        }

        fn receive(&mut self) -> String {
            let mut line = String::new();
            self.0.read_line(&mut line).unwrap();
            line.trim_end().to_owned()
        }

        fn ask(&mut self, request: &str) -> String {
            self.send(&format!("{request}\n"));
            self.receive()
        }
    }

    #[test]
    fn what_was_put_on_one_host_is_found_on_another_after_the_barrier() {
        let job = PmiJob::new(&[1, 1, 2]);
        let (outbox, sent) = channel();
        let one = PmiServer::new(job.clone(), 2, outbox.clone());
        let other = PmiServer::new(job, 1, outbox);
        let mut clients = [&one, &one, &other].map(Client::new);
        for client in &mut clients {
            let answer = client.ask("cmd=init pmi_version=1 pmi_subversion=1");
            assert!(answer.contains("response_to_init rc=0"), "{answer}");
            assert_eq!(
                client.ask("cmd=get_universe_size"),
                "cmd=universe_size size=3"
            );
            assert_eq!(
                client.ask("cmd=get_my_kvsname"),
                "cmd=my_kvsname kvsname=dipole"
            );
        }
        let card = "fd00::1$port#7 = x";
        let put = clients[0].ask(&format!("cmd=put kvsname=dipole key=card value={card}"));
        assert_eq!(put, "cmd=put_result rc=0 msg=success");
        let missing = clients[2].ask("cmd=get kvsname=dipole key=card");
        assert!(missing.starts_with("cmd=get_result rc=-1"), "{missing}");
        for client in &mut clients {
            client.send("cmd=barrier_in\n");
        }
        // The launcher exchanges what both hosts have sent.
        let mut all = Entries::new();
        for _ in 0..2 {
            match sent.recv().unwrap() {
                ToLauncher::PmiBarrier(entries) => all.extend(entries),
                other => panic!("{other:?}"),
            }
        }
        for server in [&one, &other] {
            server.end_barrier(all.clone());
        }
        for client in &mut clients {
            assert_eq!(client.receive(), "cmd=barrier_out rc=0");
            let got = client.ask("cmd=get kvsname=dipole key=card");
            assert_eq!(got, format!("cmd=get_result rc=0 msg=success value={card}"));
            let mapping = client.ask("cmd=get kvsname=dipole key=PMI_process_mapping");
            assert!(
                mapping.ends_with("value=(vector,(0,1,2),(1,1,1))"),
                "{mapping}"
            );
            assert_eq!(client.ask("cmd=finalize"), "cmd=finalize_ack rc=0");
        }
    }

    #[test]
    fn requests_that_are_not_supported_are_refused() {
        let (outbox, _sent) = channel();
        let server = PmiServer::new(PmiJob::new(&[1]), 1, outbox);
        let mut client = Client::new(&server);
        let refused = client.ask("mcmd=spawn\nnprocs=2\nexecname=x\nendcmd");
        assert!(refused.contains("rc=-1"), "{refused}");
        for request in ["cmd=lookup_name service=x", "cmd=put key=only", "nonsense"] {
            let refused = client.ask(request);
            assert!(refused.contains("rc=-1"), "{request}: {refused}");
        }
    }

    #[test]
    fn fields_are_found_by_their_whole_names_only() {
        let request = Request::parse("cmd=put kvsname=a key=b value=key=c  d= ");
        assert_eq!(request.command, "put");
        assert_eq!(request.field("key"), Some("b"));
        assert_eq!(request.field("value"), Some("key=c  d= "));
        assert_eq!(request.field("name"), None);
        assert_eq!(Request::parse("mcmd=spawn").command, "");
        assert_eq!(
            Request::parse("cmd=get key=value").field("key"),
            Some("value")
        );
    }

    #[test]
    fn nobody_waits_for_a_rank_that_has_ended() {
        let (outbox, sent) = channel();
        let server = PmiServer::new(PmiJob::new(&[1, 1]), 2, outbox);
        let mut stays = Client::new(&server);
        let leaves = Client::new(&server);
        stays.send("cmd=barrier_in\n");
        drop(leaves);
        assert!(matches!(sent.recv().unwrap(), ToLauncher::PmiBarrier(_)));
        server.end_barrier(Entries::new());
        assert_eq!(stays.receive(), "cmd=barrier_out rc=0");
    }

    #[test]
    fn an_abort_reaches_the_launcher_with_its_status() {
        let (outbox, sent) = channel();
        let server = PmiServer::new(PmiJob::new(&[1]), 1, outbox);
        let mut client = Client::new(&server);
        client.send("cmd=abort exitcode=7\n");
        let told = sent.recv().unwrap();
        assert!(
            matches!(told, ToLauncher::PmiAbort { rank: 0, status: 7 }),
            "{told:?}"
        );
        assert_eq!(client.receive(), "", "the connection is closed");
    }

    #[test]
    fn a_line_without_an_end_closes_the_connection() {
        let (outbox, _sent) = channel();
        let server = PmiServer::new(PmiJob::new(&[1]), 1, outbox);
        let mut client = Client::new(&server);
        client.send(&"x".repeat(5000));
        assert_eq!(client.receive(), "");
    }

    #[test]
    fn a_wait_ends_with_the_job() {
        let (outbox, _sent) = channel();
        let server = PmiServer::new(PmiJob::new(&[1, 1]), 2, outbox);
        let mut client = Client::new(&server);
        client.send("cmd=barrier_in\n");
        server.close();
        assert_eq!(client.ask("cmd=get_maxes"), format!("cmd=maxes {MAXES}"));
    }
}
