//! A launcher with a small PMI-1 server, for nodes with addresses that other launchers do not use.
//! Its replies are those of Flux (RFC 13).

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Output, Stdio};
use std::sync::{Arc, Barrier, Mutex};

use rustix::io::{FdFlags, fcntl_setfd};

use super::nodes::Nodes;

struct Server {
    store: Mutex<BTreeMap<String, String>>,
    barrier: Barrier,
}

/// Runs a program as one rank on each node; returns the outputs as one.
pub(crate) fn run(nodes: &Nodes, program: &Path, variables: &[(&str, &str)]) -> Output {
    let size = nodes.count();
    let server = Arc::new(Server {
        store: Mutex::default(),
        barrier: Barrier::new(usize::try_from(size).expect("a number of nodes")),
    });
    let mut ranks = Vec::new();
    for rank in 0..size {
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        let theirs = OwnedFd::from(theirs);
        fcntl_setfd(&theirs, FdFlags::empty()).expect("inherited");
        let mut command = nodes.command(rank + 1, program);
        command
            .env("PMI_FD", theirs.as_raw_fd().to_string())
            .env("PMI_RANK", rank.to_string())
            .env("PMI_SIZE", size.to_string())
            .envs(variables.iter().copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        ranks.push(command.spawn().expect("a rank"));
        drop(theirs);
        let server = Arc::clone(&server);
        std::thread::spawn(move || server.serve(&ours));
    }
    let mut outputs = ranks
        .into_iter()
        .map(|rank| rank.wait_with_output().expect("its end"));
    let mut all = outputs.next().expect("a rank");
    for output in outputs {
        all.stdout.extend(&output.stdout);
        all.stderr.extend(&output.stderr);
        if all.status.success() {
            all.status = output.status;
        }
    }
    all
}

impl Server {
    fn serve(&self, stream: &UnixStream) {
        let mut out = stream;
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            if writeln!(out, "{}", self.reply(&line)).is_err() {
                return;
            }
            if line == "cmd=finalize" {
                // As launchers do.
                let _ = stream.shutdown(std::net::Shutdown::Both);
            }
        }
    }

    fn reply(&self, line: &str) -> String {
        let field = |name: &str| {
            let (_, rest) = line.split_once(&format!(" {name}="))?;
            let end = if name == "value" { '\n' } else { ' ' };
            rest.split(end).next().map(str::to_owned)
        };
        match line.split(' ').next().unwrap_or_default() {
            "cmd=init" => "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1".to_owned(),
            "cmd=get_maxes" => {
                "cmd=maxes rc=0 kvsname_max=64 keylen_max=64 vallen_max=1024".to_owned()
            }
            "cmd=get_my_kvsname" => {
                format!("cmd=my_kvsname rc=0 kvsname=test-{}", std::process::id())
            }
            "cmd=put" => {
                let entry = (
                    field("key").expect("a key"),
                    field("value").expect("a value"),
                );
                self.store.lock().expect("no panic").extend([entry]);
                "cmd=put_result rc=0".to_owned()
            }
            "cmd=barrier_in" => {
                self.barrier.wait();
                "cmd=barrier_out rc=0".to_owned()
            }
            "cmd=get" => {
                let store = self.store.lock().expect("no panic");
                match store.get(&field("key").expect("a key")) {
                    Some(value) => format!("cmd=get_result rc=0 value={value}"),
                    None => "cmd=get_result rc=1".to_owned(),
                }
            }
            "cmd=finalize" => "cmd=finalize_ack rc=0".to_owned(),
            _ => "cmd=unknown rc=-1".to_owned(),
        }
    }
}
