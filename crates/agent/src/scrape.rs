//! Serves the counters over HTTP to whoever may reach the address: `GET /metrics`, nothing else.
//!
//! Requests are read to their blank line and not beyond; their length, their time and their number at once are
//! bounded, and so is how often the counters are gathered.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::metrics::metrics;

/// The longest request.
const MOST_BYTES: usize = 8 << 10;
/// Headers of a request, at most.
const MOST_HEADERS: usize = 64;
/// Readers at a time; others are turned away.
const MOST_READERS: usize = 8;
/// How long a reader may take to ask, and then to read.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long what was gathered is told again.
const FRESH: Duration = Duration::from_millis(200);

/// What was gathered, and when.
type Kept = Option<(Instant, Arc<Result<String, String>>)>;

struct Scrape {
    runtime_dir: PathBuf,
    readers: AtomicUsize,
    kept: Mutex<Kept>,
}

/// Listens at an address, as long as this process lives; where that is.
pub(super) fn serve(address: SocketAddr, runtime_dir: &Path) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind(address)?;
    let place = listener.local_addr()?;
    let scrape = Arc::new(Scrape {
        runtime_dir: runtime_dir.to_owned(),
        readers: AtomicUsize::new(0),
        kept: Mutex::new(None),
    });
    let accept = move || {
        loop {
            match listener.accept() {
                Ok((stream, _)) => accepted(&scrape, stream),
                // No descriptors, for example: it may get better.
                Err(_) => thread::sleep(Duration::from_millis(100)),
            }
        }
    };
    thread::Builder::new()
        .name("metrics".to_owned())
        .spawn(accept)?;
    Ok(place)
}

fn accepted(scrape: &Arc<Scrape>, mut stream: TcpStream) {
    let is_much = scrape.readers.fetch_add(1, Ordering::Relaxed) >= MOST_READERS;
    let own = Arc::clone(scrape);
    let started = !is_much && {
        let stream = stream.try_clone();
        let run = move || {
            if let Ok(mut stream) = stream {
                // A reader that went away has no answer.
                let _gone = own.answer(&mut stream);
            }
            own.readers.fetch_sub(1, Ordering::Relaxed);
        };
        let thread = thread::Builder::new().name("metrics reader".to_owned());
        thread.spawn(run).is_ok()
    };
    if !started {
        scrape.readers.fetch_sub(1, Ordering::Relaxed);
        let _busy = stream.set_write_timeout(Some(Duration::from_millis(10)));
        let _gone = stream.write_all(&reply(
            "503 Service Unavailable",
            "too many readers\n",
            false,
        ));
    }
}

impl Scrape {
    fn answer(&self, stream: &mut TcpStream) -> io::Result<()> {
        let begun = Instant::now();
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut request = Vec::new();
        let asked = loop {
            match ask(&request) {
                Some(asked) => break asked,
                None if request.len() >= MOST_BYTES => {
                    break Asked::Wrong("431 Request Header Fields Too Large");
                }
                None => {}
            }
            let left = PATIENCE.saturating_sub(begun.elapsed());
            if left.is_zero() {
                break Asked::Wrong("408 Request Timeout");
            }
            stream.set_read_timeout(Some(left))?;
            let mut part = [0; 1024];
            let room = part.len().min(MOST_BYTES - request.len());
            match stream.read(&mut part[..room]) {
                Ok(0) => return Ok(()),
                Ok(count) => request.extend_from_slice(&part[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break Asked::Wrong("408 Request Timeout"),
            }
        };
        let bytes = match asked {
            Asked::Wrong(status) => reply(status, "GET /metrics is all there is\n", false),
            Asked::Metrics { is_head } => match &*self.gathered() {
                Ok(text) => reply("200 OK", text, is_head),
                Err(cause) => reply("500 Internal Server Error", &format!("{cause}\n"), is_head),
            },
        };
        stream.write_all(&bytes)?;
        // What a client still sends would otherwise make the kernel drop the answer.
        stream.shutdown(std::net::Shutdown::Write)?;
        stream.set_read_timeout(Some(Duration::from_millis(100)))?;
        let mut rest = [0; 1024];
        for _ in 0..MOST_BYTES / rest.len() {
            if stream.read(&mut rest)? == 0 {
                break;
            }
        }
        Ok(())
    }

    /// The counters, not older than [`FRESH`].
    fn gathered(&self) -> Arc<Result<String, String>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((since, text)) = &*kept
            && since.elapsed() < FRESH
        {
            return Arc::clone(text);
        }
        let text = Arc::new(metrics(&self.runtime_dir).map_err(|cause| cause.to_string()));
        *kept = Some((Instant::now(), Arc::clone(&text)));
        text
    }
}

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Metrics {
        is_head: bool,
    },
    /// Nothing there is: the status.
    Wrong(&'static str),
}

/// Reads a request; `None` if it is not whole yet.
fn ask(bytes: &[u8]) -> Option<Asked> {
    let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Partial) => None,
        Err(httparse::Error::TooManyHeaders) => {
            Some(Asked::Wrong("431 Request Header Fields Too Large"))
        }
        Err(_) => Some(Asked::Wrong("400 Bad Request")),
        Ok(httparse::Status::Complete(_)) => {
            let path = request.path.unwrap_or_default();
            let path = path.split('?').next().unwrap_or_default();
            Some(match (request.method, path) {
                (Some("GET"), "/metrics") => Asked::Metrics { is_head: false },
                (Some("HEAD"), "/metrics") => Asked::Metrics { is_head: true },
                (Some("GET" | "HEAD"), _) => Asked::Wrong("404 Not Found"),
                _ => Asked::Wrong("405 Method Not Allowed"),
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
    fn requests_are_told_apart() {
        for (text, asked) in [
            (
                "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n",
                Some(Asked::Metrics { is_head: false }),
            ),
            (
                "HEAD /metrics?x=1 HTTP/1.0\r\n\r\n",
                Some(Asked::Metrics { is_head: true }),
            ),
            (
                "GET / HTTP/1.1\r\n\r\n",
                Some(Asked::Wrong("404 Not Found")),
            ),
            (
                "POST /metrics HTTP/1.1\r\n\r\n",
                Some(Asked::Wrong("405 Method Not Allowed")),
            ),
            ("\0\0\0\0", Some(Asked::Wrong("400 Bad Request"))),
            ("GET /metrics HTTP/1.1\r\nHost", None),
            ("", None),
        ] {
            assert_eq!(ask(text.as_bytes()), asked, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn strange_requests_do_no_harm(
            front in prop::sample::select(vec!["", "GET /metrics HTTP/1.1\r\n", "GET ", "PRI * HTTP/2.0\r\n\r\n"]),
            bytes in vec(any::<u8>(), 0..300),
        ) {
            let _asked = ask(&[front.as_bytes(), &bytes].concat());
        }
    }

    fn exchange(place: SocketAddr, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(place).expect("it listens");
        // It may have answered before all was written.
        let _gone = stream.write_all(request);
        let mut answer = Vec::new();
        let _gone = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    #[test]
    fn a_reader_gets_counters_and_long_silent_or_many_ones_are_turned_away() {
        let folder = tempfile::tempdir().expect("a folder");
        let place = serve(([127, 0, 0, 1], 0).into(), folder.path()).expect("a free port");
        let answer = exchange(place, b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(
            answer.contains("version=0.0.4") && answer.contains("\r\n\r\n# HELP"),
            "{answer}"
        );
        assert!(answer.contains("dipole_processes 0\n"), "{answer}");
        let long = [b"GET /metrics HTTP/1.1\r\nA: ".as_slice(), &[b'a'; 9000]].concat();
        assert!(exchange(place, &long).starts_with("HTTP/1.1 431 "));
        let silent: Vec<TcpStream> = (0..MOST_READERS)
            .map(|_| TcpStream::connect(place).expect("it listens"))
            .collect();
        // They are accepted in the order in which they came.
        let answer = exchange(place, b"GET /metrics HTTP/1.1\r\n\r\n");
        assert!(
            answer.starts_with("HTTP/1.1 503 ") || answer.is_empty(),
            "{answer}"
        );
        drop(silent);
        let begun = Instant::now();
        loop {
            let answer = exchange(place, b"GET /metrics HTTP/1.1\r\n\r\n");
            if answer.starts_with("HTTP/1.1 200 ") {
                break;
            }
            assert!(begun.elapsed() < Duration::from_secs(20), "{answer}");
            thread::sleep(Duration::from_millis(20));
        }
    }
}
