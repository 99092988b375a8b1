//! The client against servers that answer, refuse, send nonsense, stay silent or die.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;

use proptest::prelude::*;

use super::*;

const SHORT: Timeouts = Timeouts {
    reply: Duration::from_millis(200),
    barrier: Duration::from_millis(300),
};
const LONG: Timeouts = Timeouts {
    reply: Duration::from_secs(20),
    barrier: Duration::from_secs(20),
};

/// Replies of Slurm's server; `get` finds `found it`.
fn reply_to(request: &str) -> String {
    let command = request.split(' ').next().unwrap_or_default();
    match command {
        "cmd=init" => "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1",
        "cmd=get_maxes" => "cmd=maxes rc=0 kvsname_max=256 keylen_max=256 vallen_max=1024",
        "cmd=get_my_kvsname" => "cmd=my_kvsname rc=0 kvsname=7.0",
        "cmd=put" => "cmd=put_result rc=0",
        "cmd=barrier_in" => "cmd=barrier_out rc=0",
        "cmd=get" => "cmd=get_result rc=0 value=found it",
        "cmd=finalize" => "cmd=finalize_ack rc=0",
        _ => "cmd=unknown rc=-1",
    }
    .to_owned()
}

/// A server that replies as a function does, and closes the connection when that returns `None`.
fn server(
    mut answer: impl FnMut(&str) -> Option<String> + Send + 'static,
) -> (OwnedFd, JoinHandle<Vec<String>>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let thread = std::thread::spawn(move || {
        let mut requests = Vec::new();
        let mut out = ours.try_clone().unwrap();
        for line in BufReader::new(ours).lines().map_while(Result::ok) {
            let Some(reply) = answer(&line) else { break };
            requests.push(line);
            if out.write_all(reply.as_bytes()).is_err() {
                break;
            }
        }
        requests
    });
    (theirs.into(), thread)
}

fn with_newline(request: &str) -> Option<String> {
    Some(reply_to(request) + "\n")
}

#[test]
fn an_exchange_takes_the_requests_that_servers_understand() {
    let (socket, server) = server(with_newline);
    let mut client = Client::start_over(socket, LONG).unwrap();
    assert_eq!(client.job_name(), "7.0");
    assert!((500..1000).contains(&client.max_value_bytes()));
    client.put(1, 3, "10.0.0.1").unwrap();
    client.barrier().unwrap();
    assert_eq!(client.get(1, 4).unwrap(), "found it");
    client.finish().unwrap();
    drop(client);
    assert_eq!(
        server.join().unwrap(),
        [
            // Slurm parses this one to the letter.
            "cmd=init pmi_version=1 pmi_subversion=1",
            "cmd=get_maxes",
            "cmd=get_my_kvsname",
            "cmd=put kvsname=7.0 key=dipole1-3 value=10.0.0.1",
            "cmd=barrier_in",
            "cmd=get kvsname=7.0 key=dipole1-4",
            "cmd=finalize",
        ]
    );
}

/// The error with a server that gives one request another reply.
fn error_with(request: &'static str, reply: &'static str) -> String {
    let (socket, _server) = server(move |line| {
        if line.starts_with(request) {
            return Some(reply.to_owned());
        }
        with_newline(line)
    });
    let all = || {
        let mut client = Client::start_over(socket, SHORT)?;
        client.put(1, 0, "x")?;
        client.barrier()?;
        client.get(1, 0)?;
        client.finish()
    };
    all().expect_err(reply).to_string()
}

#[test]
fn a_wrong_reply_is_quoted_with_the_request() {
    for (request, reply, wanted) in [
        ("cmd=init", "cmd=response_to_init rc=-1\n", "`init`"),
        (
            "cmd=init",
            "cmd=response_to_init rc=0 pmi_version=2 pmi_subversion=0\n",
            "expected pmi_version=1",
        ),
        (
            "cmd=init",
            "41;cmd=fullinit-response;rc=0;\n",
            "begins with cmd=",
        ),
        ("cmd=init", "\u{1b}[2Jhello\n", "control characters"),
        ("cmd=get_maxes", "cmd=maxes\n", "vallen_max="),
        (
            "cmd=get_maxes",
            "cmd=maxes vallen_max=-1\n",
            "vallen_max=-1",
        ),
        (
            "cmd=get_maxes",
            "cmd=maxes vallen_max=64\n",
            "vallen_max=64",
        ),
        ("cmd=get_my_kvsname", "cmd=my_kvsname rc=0\n", "kvsname="),
        (
            "cmd=put",
            "cmd=put_result rc=-1 msg=full\n",
            "rc=-1 msg=full",
        ),
        ("cmd=barrier_in", "cmd=barrier_out rc=-1\n", "`barrier_in`"),
        ("cmd=get ", "cmd=put_result rc=0\n", "expected get_result"),
        ("cmd=get ", "cmd=get_result rc=0 msg=x\n", "expected value="),
        (
            "cmd=get ",
            "cmd=get_result rc=-1 msg=key_not_found\n",
            "key_not_found",
        ),
        ("cmd=finalize", "\n", "`finalize`"),
    ] {
        let error = error_with(request, reply);
        assert!(error.contains(wanted), "{request} {reply}: {error}");
        assert!(!error.contains('\u{1b}'), "{error}");
    }
}

#[test]
fn a_line_without_end_is_refused() {
    let (socket, _server) = server(|_| Some("x".repeat(100_000)));
    let error = Client::start_over(socket, LONG).err().unwrap().to_string();
    assert!(error.contains("at most 8192 bytes"), "{error}");
    assert!(error.len() < 400, "{error}");
}

#[test]
fn a_server_that_dies_is_reported_at_once() {
    for dies_at in [
        "cmd=init",
        "cmd=put",
        "cmd=barrier_in",
        "cmd=get ",
        "cmd=finalize",
    ] {
        let (socket, _server) =
            server(move |line| with_newline(line).filter(|_| !line.starts_with(dies_at)));
        let all = || {
            let mut client = Client::start_over(socket, LONG)?;
            client.put(1, 0, "x")?;
            client.barrier()?;
            client.get(1, 0)?;
            client.finish()
        };
        let request = dies_at.trim().trim_start_matches("cmd=");
        match all() {
            Err(ServiceError::Closed { request: found }) => assert_eq!(found, request),
            other => panic!("{dies_at}: {other:?}"),
        }
    }
    // It was already gone: no SIGPIPE either.
    let (ours, theirs) = UnixStream::pair().unwrap();
    drop(theirs);
    let error = Client::start_over(ours.into(), LONG).err().unwrap();
    assert_eq!(error, ServiceError::Closed { request: "init" });
}

#[test]
fn a_server_that_never_answers_is_reported_in_time() {
    assert!(error_with("cmd=init", "").contains("did not answer `init`"));
    assert!(error_with("cmd=get ", "cmd=get_res").contains("did not answer `get`"));
    let barrier = error_with("cmd=barrier_in", "");
    assert!(barrier.contains("some rank has not started"), "{barrier}");
}

#[test]
fn replies_may_arrive_in_pieces_or_together() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let thread = std::thread::spawn(move || {
        let mut out = theirs.try_clone().unwrap();
        for line in BufReader::new(theirs).lines().map_while(Result::ok) {
            for byte in (reply_to(&line) + "\n").as_bytes() {
                out.write_all(&[*byte]).unwrap();
            }
        }
    });
    let mut client = Client::start_over(ours.into(), LONG).unwrap();
    assert_eq!(client.get(1, 0).unwrap(), "found it");
    drop(client);
    thread.join().unwrap();
}

#[test]
fn a_rank_connects_at_the_port_and_identifies_itself() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap().to_string();
    let thread = std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut out = stream.try_clone().unwrap();
        let mut first = String::new();
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            let reply = match line.starts_with("cmd=initack") {
                true => "cmd=initack\ncmd=set size=4\ncmd=set rank=3\ncmd=set debug=0".to_owned(),
                false => reply_to(&line),
            };
            out.write_all((reply + "\n").as_bytes()).unwrap();
            if first.is_empty() {
                first = line;
            }
        }
        first
    });
    let get = |name: &str| match name {
        PORT => Some(at.clone()),
        ID => Some("3".to_owned()),
        _ => None,
    };
    assert!(is_offered(&get) && inherited(&get).unwrap().is_none());
    let (client, rank, size) = Client::connect(&get, LONG).unwrap();
    assert_eq!((rank, size), (3, 4));
    drop(client);
    assert_eq!(thread.join().unwrap(), "cmd=initack pmiid=3");
    let refused = |name: &str| match name {
        PORT => Some("127.0.0.1:1".to_owned()),
        ID => Some("3".to_owned()),
        _ => None,
    };
    let error = Client::connect(&refused, LONG).err().unwrap().to_string();
    assert!(error.contains("PMI_PORT=127.0.0.1:1"), "{error}");
    let without_id = |name: &str| (name == PORT).then(|| at.clone());
    assert!(!is_offered(&without_id));
    let error = Client::connect(&without_id, LONG).err().unwrap();
    assert!(error.to_string().contains("PMI_ID is not set"), "{error}");
}

#[test]
fn a_rank_that_the_server_does_not_have_is_refused() {
    for (set, wanted) in [
        ("cmd=set size=0", "a number of ranks"),
        ("cmd=set size=65537", "a number of ranks"),
        ("cmd=set size=x", "size, rank and debug"),
        ("cmd=set size=3", "a rank below the size"),
    ] {
        let (socket, _server) = server(move |_| {
            Some(format!(
                "cmd=initack\n{set}\ncmd=set rank=3\ncmd=set debug=0\n"
            ))
        });
        let mut client = Client::unused(socket, LONG);
        let error = client.identify(3).unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
    }
}

#[test]
fn a_descriptor_that_is_not_open_is_named() {
    for (value, wanted) in [("x", "PMI_FD is `x`"), ("98765", "(PMI_FD=98765)")] {
        let get = |name: &str| (name == FD).then(|| value.to_owned());
        let error = inherited(&get).unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
    }
    // A descriptor that is something else than a socket.
    let file = tempfile::tempfile().unwrap();
    assert_eq!(socket_number(&file), None);
    let error = Client::start_over(file.into(), LONG).err().unwrap();
    assert!(matches!(error, ServiceError::Io { .. }), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_reply_makes_the_client_fail_in_another_way(
        nonsense in proptest::collection::vec(any::<u8>(), 0..64),
        nth in 0_usize..6,
    ) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let thread = std::thread::spawn(move || {
            let mut out = theirs.try_clone().unwrap();
            let lines = BufReader::new(theirs).lines().map_while(Result::ok);
            for (index, line) in lines.enumerate() {
                let reply = match index == nth {
                    true => [&nonsense[..], b"\n"].concat(),
                    false => (reply_to(&line) + "\n").into_bytes(),
                };
                if out.write_all(&reply).is_err() {
                    break;
                }
            }
        });
        if let Ok(mut client) = Client::start_over(ours.into(), SHORT) {
            let _ = client.put(1, 0, "x");
            let _ = client.barrier();
            let _ = client.get(1, 0);
        }
        thread.join().unwrap();
    }
}
