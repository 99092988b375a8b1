//! HTTP server for the counters: `GET /metrics`, for any client that can reach the address.
//!
//! Requests are read up to the blank line. Their length, duration and number are limited, and so is
//! the rate at which counters are collected.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::metrics::metrics;

/// Maximum length of a request.
const MAX_REQUEST_BYTES: usize = 8 << 10;
/// Maximum number of headers of a request.
const MAX_HEADERS: usize = 64;
/// Maximum number of clients at a time; others get status 503.
const MAX_CLIENTS: usize = 8;
/// How long a client may take to send its request, and then to read the reply.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long collected counters are reused.
const CACHE_TIME: Duration = Duration::from_millis(200);

/// Collected counters, and when.
type Cached = Option<(Instant, Arc<Result<String, String>>)>;

struct Scrape {
    runtime_dir: PathBuf,
    clients: AtomicUsize,
    cached: Mutex<Cached>,
}

/// Listens at an address until this process ends; returns the bound address.
pub(super) fn serve(address: SocketAddr, runtime_dir: &Path) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind(address)?;
    let address = listener.local_addr()?;
    let scrape = Arc::new(Scrape {
        runtime_dir: runtime_dir.to_owned(),
        clients: AtomicUsize::new(0),
        cached: Mutex::new(None),
    });
    let accept = move || {
        loop {
            match listener.accept() {
                Ok((stream, _)) => start_client(&scrape, stream),
                // Out of descriptors, for example, which may be temporary.
                Err(_) => thread::sleep(Duration::from_millis(100)),
            }
        }
    };
    thread::Builder::new()
        .name("metrics".to_owned())
        .spawn(accept)?;
    Ok(address)
}

fn start_client(scrape: &Arc<Scrape>, mut stream: TcpStream) {
    let is_full = scrape.clients.fetch_add(1, Ordering::Relaxed) >= MAX_CLIENTS;
    let own = Arc::clone(scrape);
    let started = !is_full && {
        let stream = stream.try_clone();
        let run = move || {
            if let Ok(mut stream) = stream {
                // The client may have disconnected.
                let _gone = own.serve_client(&mut stream);
            }
            own.clients.fetch_sub(1, Ordering::Relaxed);
        };
        let thread = thread::Builder::new().name("metrics client".to_owned());
        thread.spawn(run).is_ok()
    };
    if !started {
        scrape.clients.fetch_sub(1, Ordering::Relaxed);
        let _busy = stream.set_write_timeout(Some(Duration::from_millis(10)));
        let _gone = stream.write_all(&reply(
            "503 Service Unavailable",
            "too many clients\n",
            false,
        ));
    }
}

impl Scrape {
    fn serve_client(&self, stream: &mut TcpStream) -> io::Result<()> {
        let start = Instant::now();
        stream.set_write_timeout(Some(CLIENT_TIMEOUT))?;
        let mut request = Vec::new();
        let parsed = loop {
            match parse(&request) {
                Some(parsed) => break parsed,
                None if request.len() >= MAX_REQUEST_BYTES => {
                    break Request::Invalid("431 Request Header Fields Too Large");
                }
                None => {}
            }
            let left = CLIENT_TIMEOUT.saturating_sub(start.elapsed());
            if left.is_zero() {
                break Request::Invalid("408 Request Timeout");
            }
            stream.set_read_timeout(Some(left))?;
            let mut part = [0; 1024];
            let room = part.len().min(MAX_REQUEST_BYTES - request.len());
            match stream.read(&mut part[..room]) {
                Ok(0) => return Ok(()),
                Ok(count) => request.extend_from_slice(&part[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break Request::Invalid("408 Request Timeout"),
            }
        };
        let bytes = match parsed {
            Request::Invalid(status) => reply(status, "only GET /metrics is available\n", false),
            Request::Metrics { is_head } => match &*self.collected() {
                Ok(text) => reply("200 OK", text, is_head),
                Err(cause) => reply("500 Internal Server Error", &format!("{cause}\n"), is_head),
            },
        };
        stream.write_all(&bytes)?;
        // Unread input would make the kernel reset the connection and discard the reply.
        stream.shutdown(std::net::Shutdown::Write)?;
        stream.set_read_timeout(Some(Duration::from_millis(100)))?;
        let mut rest = [0; 1024];
        for _ in 0..MAX_REQUEST_BYTES / rest.len() {
            if stream.read(&mut rest)? == 0 {
                break;
            }
        }
        Ok(())
    }

    /// The counters, at most [`CACHE_TIME`] old.
    fn collected(&self) -> Arc<Result<String, String>> {
        let mut cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((since, text)) = &*cached
            && since.elapsed() < CACHE_TIME
        {
            return Arc::clone(text);
        }
        let text = Arc::new(metrics(&self.runtime_dir).map_err(|cause| cause.to_string()));
        *cached = Some((Instant::now(), Arc::clone(&text)));
        text
    }
}

/// A parsed HTTP request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Request {
    Metrics {
        is_head: bool,
    },
    /// Anything else, with the status of the reply.
    Invalid(&'static str),
}

/// Parses a request; `None` if it is incomplete.
fn parse(bytes: &[u8]) -> Option<Request> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Partial) => None,
        Err(httparse::Error::TooManyHeaders) => {
            Some(Request::Invalid("431 Request Header Fields Too Large"))
        }
        Err(_) => Some(Request::Invalid("400 Bad Request")),
        Ok(httparse::Status::Complete(_)) => {
            let path = request.path.unwrap_or_default();
            let path = path.split('?').next().unwrap_or_default();
            Some(match (request.method, path) {
                (Some("GET"), "/metrics") => Request::Metrics { is_head: false },
                (Some("HEAD"), "/metrics") => Request::Metrics { is_head: true },
                (Some("GET" | "HEAD"), _) => Request::Invalid("404 Not Found"),
                _ => Request::Invalid("405 Method Not Allowed"),
            })
        }
    }
}

fn reply(status: &str, text: &str, is_head: bool) -> Vec<u8> {
    let allow = if status.starts_with("405") {
        "Allow: GET, HEAD\r\n"
    } else {
        ""
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
         Content-Length: {}\r\n{allow}Connection: close\r\n\r\n",
        text.len()
    );
    match is_head {
        true => head.into_bytes(),
        false => [head.as_bytes(), text.as_bytes()].concat(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn requests_are_distinguished() {
        for (text, parsed) in [
            (
                "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n",
                Some(Request::Metrics { is_head: false }),
            ),
            (
                "HEAD /metrics?x=1 HTTP/1.0\r\n\r\n",
                Some(Request::Metrics { is_head: true }),
            ),
            (
                "GET / HTTP/1.1\r\n\r\n",
                Some(Request::Invalid("404 Not Found")),
            ),
            (
                "POST /metrics HTTP/1.1\r\n\r\n",
                Some(Request::Invalid("405 Method Not Allowed")),
            ),
            ("\0\0\0\0", Some(Request::Invalid("400 Bad Request"))),
            ("GET /metrics HTTP/1.1\r\nHost", None),
            ("", None),
        ] {
            assert_eq!(parse(text.as_bytes()), parsed, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn strange_requests_do_no_harm(
            front in prop::sample::select(vec!["", "GET /metrics HTTP/1.1\r\n", "GET ", "PRI * HTTP/2.0\r\n\r\n"]),
            bytes in vec(any::<u8>(), 0..300),
        ) {
            let _parsed = parse(&[front.as_bytes(), &bytes].concat());
        }
    }

    fn exchange(address: SocketAddr, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(address).expect("it listens");
        // The server may reply before everything was written.
        let _gone = stream.write_all(request);
        let mut answer = Vec::new();
        let _gone = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    #[test]
    fn a_reader_gets_counters_and_slow_or_too_many_readers_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let address = serve(([127, 0, 0, 1], 0).into(), folder.path()).expect("a free port");
        let answer = exchange(address, b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(
            answer.contains("version=0.0.4") && answer.contains("\r\n\r\n# HELP"),
            "{answer}"
        );
        assert!(answer.contains("dipole_processes 0\n"), "{answer}");
        let long = [b"GET /metrics HTTP/1.1\r\nA: ".as_slice(), &[b'a'; 9000]].concat();
        assert!(exchange(address, &long).starts_with("HTTP/1.1 431 "));
        let silent: Vec<TcpStream> = (0..MAX_CLIENTS)
            .map(|_| TcpStream::connect(address).expect("it listens"))
            .collect();
        // Connections are accepted in order.
        let answer = exchange(address, b"GET /metrics HTTP/1.1\r\n\r\n");
        assert!(
            answer.starts_with("HTTP/1.1 503 ") || answer.is_empty(),
            "{answer}"
        );
        drop(silent);
        let start = Instant::now();
        loop {
            let answer = exchange(address, b"GET /metrics HTTP/1.1\r\n\r\n");
            if answer.starts_with("HTTP/1.1 200 ") {
                break;
            }
            assert!(start.elapsed() < Duration::from_secs(20), "{answer}");
            thread::sleep(Duration::from_millis(20));
        }
    }
}
