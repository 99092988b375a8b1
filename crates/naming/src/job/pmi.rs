//! A client of PMI-1, the service with which MPI launchers let ranks exchange their addresses.
//!
//! A rank puts a text under a key, enters a barrier, and gets the texts of the others. Requests and
//! replies are lines of text over a connection that the launcher has made (`PMI_FD`), or that the
//! rank makes (`PMI_PORT`). Launchers serve a rank until it finalizes; many close the connection
//! then, so it can be used once.
//!
//! # Source
//! The wire format of MPICH's "simple" PMI client, version 1.1; Flux RFC 13. Hydra, Slurm's plugin
//! `pmi2` and Flux serve it.

use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use dipole_link::sys::inherited_descriptor;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::service::{Connected, Exchange, Given, ServiceError, TIMEOUTS, Timeouts, WARN_AFTER};
use super::{Lookup, number, required_number};
use crate::job::{JobError, Launcher, MAX_RANKS};
use crate::lines::excerpt;

mod reply;

use reply::{MAX_LINE_BYTES, Reply};

const FD: &str = "PMI_FD";
const PORT: &str = "PMI_PORT";
const ID: &str = "PMI_ID";
/// Longest request with a value: some servers read at most 1024 bytes at once.
const MAX_REQUEST_BYTES: usize = 1000;
/// Announced by servers whose values have no useful length.
const MIN_VALUE_BYTES: usize = 128;

/// True if the launcher offers the service.
pub(super) fn is_offered(get: Lookup<'_>) -> bool {
    get(FD).is_some() || is_port_offered(get)
}

/// True if ranks connect at a port, and receive their rank there.
pub(super) fn is_port_offered(get: Lookup<'_>) -> bool {
    get(PORT).is_some() && get(ID).is_some()
}

/// The launcher's connection, copied from its descriptor.
pub(super) fn inherited(get: Lookup<'_>) -> Result<Option<OwnedFd>, JobError> {
    let Some(found) = get(FD) else {
        return Ok(None);
    };
    let fd: i32 = number(FD, found.clone(), 0, i32::MAX)?;
    let unreachable = |cause: io::Error| {
        JobError::Service(ServiceError::Unreachable {
            variable: FD,
            value: found,
            cause: format!("{cause}; a program between the launcher and this one has closed it"),
        })
    };
    inherited_descriptor(fd).map(Some).map_err(unreachable)
}

/// The connection to the server.
pub(super) struct Client {
    socket: OwnedFd,
    timeouts: Timeouts,
    /// Bytes that have been received and not used.
    received: Vec<u8>,
    store: String,
    max_value_bytes: usize,
}

impl Client {
    /// Begins to use the launcher's connection, or connects at the port in `PMI_PORT`.
    pub(super) fn open(
        get: Lookup<'_>,
        inherited: Option<OwnedFd>,
        given: Given,
    ) -> Result<Connected, JobError> {
        let (client, rank, size) = match (inherited, given.rank, given.size) {
            (Some(socket), Some(rank), Some(size)) => {
                (Client::start_over(socket, TIMEOUTS)?, rank, size)
            }
            _ => Client::connect(get, TIMEOUTS)?,
        };
        Ok((Box::new(client), rank, size))
    }

    /// Connects at the port in `PMI_PORT`; returns rank and number of ranks as well.
    fn connect(get: Lookup<'_>, timeouts: Timeouts) -> Result<(Client, u32, u32), JobError> {
        let at = get(PORT).unwrap_or_default();
        let advice = "the launcher sets both or none";
        let id: u32 = required_number(get, Launcher::Mpi, ID, (0, MAX_RANKS - 1), advice)?;
        let unreachable = |cause: io::Error| ServiceError::Unreachable {
            variable: PORT,
            value: excerpt(&at),
            cause: cause.to_string(),
        };
        let socket = connected(&at, timeouts.reply).map_err(unreachable)?;
        let mut client = Client::unused(socket.into(), timeouts);
        let (rank, size) = client.identify(id)?;
        client.start()?;
        Ok((client, rank, size))
    }

    /// Begins to use a connection that the launcher has made.
    fn start_over(socket: OwnedFd, timeouts: Timeouts) -> Result<Client, ServiceError> {
        let mut client = Client::unused(socket, timeouts);
        client.start()?;
        Ok(client)
    }

    fn unused(socket: OwnedFd, timeouts: Timeouts) -> Client {
        Client {
            socket,
            timeouts,
            received: Vec::new(),
            store: String::new(),
            max_value_bytes: 0,
        }
    }

    /// Sends the number that the launcher has given this rank. The server answers with lines that set
    /// variables: the rank and the number of ranks are returned.
    fn identify(&mut self, id: u32) -> Result<(u32, u32), ServiceError> {
        const REQUEST: &str = "initack";
        const EXPECTED: &str = "cmd=set with size, rank and debug";
        let deadline = Instant::now() + self.timeouts.reply;
        self.send_line(REQUEST, &format!("cmd=initack pmiid={id}"))?;
        self.receive(REQUEST, "initack", deadline)?;
        let mut numbers = [0_u32; 3];
        for (number, name) in numbers.iter_mut().zip(["size", "rank", "debug"]) {
            let reply = self.receive(REQUEST, "set", deadline)?;
            let found = reply.field(name).and_then(|found| found.parse().ok());
            *number = found.ok_or_else(|| reply.unexpected(REQUEST, EXPECTED))?;
            let is_valid = match name {
                "size" => (1..=MAX_RANKS).contains(number),
                _ => true,
            };
            if !is_valid {
                return Err(reply.unexpected(REQUEST, "a number of ranks"));
            }
        }
        let [size, rank, _] = numbers;
        match rank < size {
            true => Ok((rank, size)),
            false => Err(ServiceError::Unexpected {
                request: REQUEST,
                line: format!("rank={rank} and size={size}"),
                expected: "a rank below the size",
            }),
        }
    }

    fn start(&mut self) -> Result<(), ServiceError> {
        let init = "cmd=init pmi_version=1 pmi_subversion=1";
        let reply = self.request("init", init, "response_to_init")?;
        reply.check_success("init")?;
        if reply.field("pmi_version").is_some_and(|it| it != "1") {
            return Err(reply.unexpected("init", "pmi_version=1"));
        }
        let reply = self.request("get_maxes", "cmd=get_maxes", "maxes")?;
        let max = reply.field("vallen_max").and_then(|max| max.parse().ok());
        let max = max.filter(|max| *max > MIN_VALUE_BYTES);
        let expected = "vallen_max= with more than 128 bytes";
        let max: usize = max.ok_or_else(|| reply.unexpected("get_maxes", expected))?;
        let reply = self.request("get_my_kvsname", "cmd=get_my_kvsname", "my_kvsname")?;
        reply.check_success("get_my_kvsname")?;
        let store = reply.field("kvsname").filter(|name| !name.is_empty());
        let store = store.ok_or_else(|| reply.unexpected("get_my_kvsname", "kvsname="))?;
        self.store = store.to_owned();
        let others = format!("cmd=put kvsname={store} key={} value=", key(9, MAX_RANKS));
        // The limit counts the terminating zero.
        self.max_value_bytes = (max - 1).min(MAX_REQUEST_BYTES.saturating_sub(others.len()));
        Ok(())
    }

    /// Sends a request and receives the reply with this command.
    fn request(
        &mut self,
        request: &'static str,
        line: &str,
        command: &'static str,
    ) -> Result<Reply, ServiceError> {
        let deadline = Instant::now() + self.timeouts.reply;
        self.send_line(request, line)?;
        self.receive(request, command, deadline)
    }

    fn send_line(&mut self, request: &'static str, line: &str) -> Result<(), ServiceError> {
        let line = format!("{line}\n");
        let mut rest = line.as_bytes();
        while !rest.is_empty() {
            // The server reads each request before it replies, so there is always space.
            match send(&self.socket, rest, SendFlags::NOSIGNAL) {
                Ok(sent) => rest = &rest[sent..],
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET) => {
                    return Err(ServiceError::Closed { request });
                }
                Err(cause) => return Err(failed(request, cause)),
            }
        }
        Ok(())
    }

    fn receive(
        &mut self,
        request: &'static str,
        command: &'static str,
        deadline: Instant,
    ) -> Result<Reply, ServiceError> {
        let line = self.receive_line(request, deadline)?;
        let reply = Reply::parse(&line).map_err(|expected| ServiceError::Unexpected {
            request,
            line: excerpt(&String::from_utf8_lossy(&line)),
            expected,
        })?;
        match reply.command() == command {
            true => Ok(reply),
            false => Err(reply.unexpected(request, command)),
        }
    }

    /// The next line without its end.
    fn receive_line(
        &mut self,
        request: &'static str,
        deadline: Instant,
    ) -> Result<Vec<u8>, ServiceError> {
        let started = Instant::now();
        loop {
            if let Some(end) = self.received.iter().position(|byte| *byte == b'\n') {
                let mut line: Vec<u8> = self.received.drain(..=end).collect();
                line.pop();
                return Ok(line);
            }
            if self.received.len() > MAX_LINE_BYTES {
                return Err(ServiceError::Unexpected {
                    request,
                    line: excerpt(&String::from_utf8_lossy(&self.received)),
                    expected: "a line of at most 8192 bytes",
                });
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let seconds = started.elapsed().as_secs();
                return Err(ServiceError::Silent { request, seconds });
            }
            self.fill(request, left)?;
        }
    }

    /// Receives bytes that arrive within this time.
    fn fill(&mut self, request: &'static str, left: Duration) -> Result<(), ServiceError> {
        let mut polled = [PollFd::new(&self.socket, PollFlags::IN)];
        let limit = Timespec::try_from(left).ok();
        match poll(&mut polled, limit.as_ref()) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(()),
            Ok(_) => {}
            Err(cause) => return Err(failed(request, cause)),
        }
        let mut buffer = [0; 4096];
        match recv(&self.socket, &mut buffer[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) | Err(rustix::io::Errno::CONNRESET) => Err(ServiceError::Closed { request }),
            Ok((length, _)) => {
                self.received.extend(&buffer[..length]);
                Ok(())
            }
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => Ok(()),
            Err(cause) => Err(failed(request, cause)),
        }
    }
}

impl Exchange for Client {
    fn job_name(&self) -> &str {
        &self.store
    }

    fn max_value_bytes(&self) -> usize {
        self.max_value_bytes
    }

    fn put(&mut self, round: u32, rank: u32, value: &str) -> Result<(), ServiceError> {
        let (store, key) = (&self.store, key(round, rank));
        let line = format!("cmd=put kvsname={store} key={key} value={value}");
        let reply = self.request("put", &line, "put_result")?;
        reply.check_success("put")
    }

    fn barrier(&mut self) -> Result<(), ServiceError> {
        const REQUEST: &str = "barrier_in";
        let seconds = self.timeouts.barrier.as_secs();
        let started = Instant::now();
        self.send_line(REQUEST, "cmd=barrier_in")?;
        let early = started + WARN_AFTER.min(self.timeouts.barrier);
        let mut reply = self.receive(REQUEST, "barrier_out", early);
        if matches!(reply, Err(ServiceError::Silent { .. })) {
            tracing::warn!("waiting for the other ranks in the launcher's barrier");
            let deadline = started + self.timeouts.barrier;
            reply = self.receive(REQUEST, "barrier_out", deadline);
        }
        match reply {
            Err(ServiceError::Silent { .. }) => Err(ServiceError::Barrier { seconds }),
            reply => reply?.check_success(REQUEST),
        }
    }

    fn get(&mut self, round: u32, rank: u32) -> Result<String, ServiceError> {
        let (store, key) = (&self.store, key(round, rank));
        let line = format!("cmd=get kvsname={store} key={key}");
        let reply = self.request("get", &line, "get_result")?;
        reply.check_success("get")?;
        let value = reply.field("value");
        let value = value.ok_or_else(|| reply.unexpected("get", "value="))?;
        Ok(value.to_owned())
    }

    fn finish(&mut self) -> Result<(), ServiceError> {
        self.request("finalize", "cmd=finalize", "finalize_ack")
            .map(drop)
    }
}

/// The key of a rank's text in a round.
fn key(round: u32, rank: u32) -> String {
    format!("dipole{round}-{rank}")
}

fn failed(request: &'static str, cause: rustix::io::Errno) -> ServiceError {
    ServiceError::Io {
        request,
        cause: io::Error::from(cause).to_string(),
    }
}

/// Connects to `HOST:PORT` within a time.
fn connected(at: &str, timeout: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::other("the name has no address");
    for address in at.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, timeout) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(cause) => last = cause,
        }
    }
    Err(last)
}

/// The number of the socket behind a descriptor, which no other socket has had since the machine
/// was started; `None` if it is not a socket.
pub(super) fn socket_number(descriptor: impl AsFd) -> Option<u64> {
    let found = rustix::fs::fstat(descriptor).ok()?;
    let kind = rustix::fs::FileType::from_raw_mode(found.st_mode);
    (kind == rustix::fs::FileType::Socket).then_some(found.st_ino)
}

#[cfg(test)]
mod tests;
