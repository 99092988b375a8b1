//! `dipole interface`: holds the TCP connections of a job's streams in a process of its own.
//!
//! # Source
//! Gigabit Nectar §4.3: a tool places the interface, and the control interface reports its state.

use std::io::Write;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use dipole_launch::RunArgs;
use dipole_naming::key::random_bytes;
use dipole_node::hosts::Hosts;
use dipole_node::{Address, Config, EndpointId, Node, NodeId};
use dipole_page::byte_size;
use dipole_streams::{
    Destinations, Interface, InterfaceConfig, StreamStatus, Volume, status, stop,
};
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::output::{Failure, columns, fit, table};

/// Hold the TCP connections of a job's parallel streams
///
/// Ranks of a job read and write a TCP stream together through an interface, which a program opens
/// (dp_interface_open, dipole_streams::Interface), or this command, without a change of the program.
#[derive(Args, Debug)]
pub(crate) struct InterfaceArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand, Debug)]
enum What {
    /// Serve streams at an endpoint of this node, or of another one, until a signal or `stop`
    Serve(ServeArgs),
    /// Show the streams of an interface: peers, bytes, rates, and who waits for whom
    Status(RequestArgs),
    /// Let an interface of this command end as soon as its open streams have ended
    Stop(RequestArgs),
}

#[derive(Args, Debug)]
struct ServeArgs {
    /// The endpoint at which ranks open streams. With the number of another node of the hosts file, the
    /// interface is started there, as `dipole run` does it. Each stream uses one of the endpoints that
    /// follow
    #[arg(value_name = "NID:DPID")]
    at: Address,
    /// Accept TCP clients here for ranks that accept streams; may be given several times, port 0
    /// chooses a free one
    #[arg(long, value_name = "HOST:PORT")]
    listen: Vec<String>,
    /// Connect to these addresses only; may be given several times [default: any]
    #[arg(long, value_name = "HOST:PORT")]
    allow: Vec<String>,
    /// Maximum number of streams at once
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=4096))]
    streams: u32,
    /// Hosts file [default: $DIPOLE_HOSTS, else this machine alone]
    #[arg(long, value_name = "FILE")]
    hosts: Option<PathBuf>,
    /// Number of this node [default: $DIPOLE_NID, else 1]
    #[arg(long, value_name = "NID")]
    nid: Option<NodeId>,
    /// Do not start it on another node.
    #[arg(long, hide = true)]
    here: bool,
}

#[derive(Args, Debug)]
struct RequestArgs {
    /// Address of the interface
    #[arg(value_name = "NID:DPID")]
    at: Address,
    /// Seconds to wait for its reply
    #[arg(long, value_name = "S", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: u64,
}

/// Runs the subcommand.
pub(crate) fn execute(
    arguments: &InterfaceArgs,
    json: bool,
    out: &mut dyn Write,
) -> Result<ExitCode, Failure> {
    match &arguments.what {
        What::Serve(serving) => serve(serving, json, out),
        What::Status(request) => {
            let streams = with_endpoint(|endpoint| {
                status(endpoint, request.at, Duration::from_secs(request.timeout))
            })?;
            print(&streams, json, out)?;
            Ok(ExitCode::SUCCESS)
        }
        What::Stop(request) => {
            let streams = with_endpoint(|endpoint| {
                stop(endpoint, request.at, Duration::from_secs(request.timeout))
            })?;
            if !json {
                writeln!(
                    out,
                    "interface {} ends after {} open streams",
                    request.at,
                    streams.len()
                )?;
            }
            print(&streams, json, out)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn serve(arguments: &ServeArgs, json: bool, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    let mut config = Config::from_env()?;
    if let Some(node) = arguments.nid {
        config.set_node(node)?;
    }
    if let Some(file) = &arguments.hosts {
        config.hosts = Hosts::load(file)?;
        config.apply_hosts_file();
    }
    let (own, wanted) = (config.node, arguments.at.node);
    if own != wanted {
        return match arguments.here {
            true => Err(format!("node {wanted} did not start it; this is node {own}").into()),
            false => serve_elsewhere(arguments, &config.hosts, json),
        };
    }
    let mut allowed = Vec::new();
    for name in &arguments.allow {
        allowed.extend(resolve(name)?);
    }
    let node = Node::open(config)?;
    let settings = InterfaceConfig {
        destinations: match allowed.is_empty() {
            true => Destinations::Any,
            false => Destinations::Only(allowed),
        },
        max_streams: arguments.streams,
        can_be_stopped: true,
        ..InterfaceConfig::default()
    };
    let interface = Interface::open(&node, arguments.at.endpoint, settings)?;
    let mut places = Vec::new();
    for name in &arguments.listen {
        let at = resolve(name)?[0];
        let listening = interface.control().listen(at);
        places.push(listening.map_err(|cause| format!("cannot listen at {at}: {cause}"))?);
    }
    let stops = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // A second signal ends the process at once.
        signal_hook::flag::register_conditional_default(signal, Arc::clone(&stops))?;
        signal_hook::flag::register(signal, Arc::clone(&stops))?;
    }
    let at = interface.address();
    match json {
        true => {
            let listens: Vec<String> = places.iter().map(ToString::to_string).collect();
            let line = json!({ "event": "serving", "at": at.to_string(), "listens": listens });
            writeln!(out, "{line}")?;
        }
        false => {
            writeln!(
                out,
                "interface {at} serves up to {} streams",
                arguments.streams
            )?;
            for place in &places {
                writeln!(out, "interface {at} listens at {place}")?;
            }
        }
    }
    out.flush()?;
    interface.serve(|| stops.load(Ordering::Relaxed))?;
    Ok(ExitCode::SUCCESS)
}

fn resolve(name: &str) -> Result<Vec<SocketAddr>, Failure> {
    let found = name.to_socket_addrs();
    let found = found.map_err(|cause| format!("{name} is not an address HOST:PORT: {cause}"))?;
    let found: Vec<SocketAddr> = found.collect();
    match found.is_empty() {
        true => Err(format!("{name} has no address").into()),
        false => Ok(found),
    }
}

/// Starts the interface on another node, as a job of one rank, and waits for its end.
fn serve_elsewhere(arguments: &ServeArgs, hosts: &Hosts, json: bool) -> Result<ExitCode, Failure> {
    #[derive(Parser)]
    struct Run {
        #[command(flatten)]
        run: RunArgs,
    }
    let wanted = arguments.at.node;
    if hosts.get(wanted).is_none() {
        return Err(format!(
            "node {wanted} is not this node, and the hosts file does not list it: give --hosts or --nid"
        )
        .into());
    }
    // `dipole run` fills hosts in the order of the file.
    let (first, others): (Vec<_>, Vec<_>) = hosts.iter().partition(|host| host.node == wanted);
    let lines: String = (first.into_iter().chain(others))
        .map(|host| host.line() + "\n")
        .collect();
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), lines)?;
    let text = |path: &std::path::Path| path.display().to_string();
    let mut words = ["run", "-n", "1"].map(str::to_owned).to_vec();
    words.push(format!("--hosts={}", text(file.path())));
    words.push(text(&std::env::current_exe()?));
    words.extend(json.then(|| "--json".to_owned()));
    words.extend(["interface", "serve", "--here"].map(str::to_owned));
    words.push(arguments.at.to_string());
    words.push(format!("--streams={}", arguments.streams));
    words.extend(arguments.listen.iter().map(|at| format!("--listen={at}")));
    words.extend(arguments.allow.iter().map(|to| format!("--allow={to}")));
    let run = Run::try_parse_from(words)?.run;
    // The interface prints its lines itself, as text or JSON.
    Ok(dipole_launch::execute(run, false)?)
}

/// Runs a request from an endpoint that is only for its reply.
fn with_endpoint<A, E: Into<Failure>>(
    request: impl FnOnce(&dipole_node::Endpoint) -> Result<A, E>,
) -> Result<A, Failure> {
    let node = Node::open(Config::from_env()?)?;
    let [low, middle, high] = random_bytes()?;
    // Above the numbers of all jobs.
    let id = EndpointId(u32::from_le_bytes([low, middle, high, 0xff]));
    let endpoint = node.endpoint(id)?;
    request(&endpoint).map_err(Into::into)
}

fn print(streams: &[StreamStatus], json: bool, out: &mut dyn Write) -> Result<(), Failure> {
    if json {
        for stream in streams {
            writeln!(out, "{}", line(stream))?;
        }
        return Ok(());
    }
    if streams.is_empty() {
        writeln!(out, "no open streams")?;
        return Ok(());
    }
    let mut rows = table([
        "stream",
        "ranks",
        "TCP peer",
        "read",
        "per second",
        "written",
        "per second",
        "open s",
        "waits for",
        "for s",
    ]);
    for stream in streams {
        rows.add_row([
            stream.at.to_string(),
            stream.ranks.len().to_string(),
            stream.peer.clone(),
            byte_size(stream.read.bytes),
            byte_size(stream.read.bytes_per_s),
            byte_size(stream.written.bytes),
            byte_size(stream.written.bytes_per_s),
            seconds(stream.open_for),
            stream.waits_for.to_string(),
            seconds(stream.waited),
        ]);
    }
    writeln!(out, "{}", fit(&rows, columns()))?;
    Ok(())
}

fn line(stream: &StreamStatus) -> serde_json::Value {
    let volume = |it: Volume| json!({ "bytes": it.bytes, "bytes_per_s": it.bytes_per_s });
    let ranks: Vec<String> = stream.ranks.iter().map(ToString::to_string).collect();
    json!({
        "event": "stream",
        "at": stream.at.to_string(),
        "ranks": ranks,
        "peer": stream.peer,
        "read": volume(stream.read),
        "written": volume(stream.written),
        "open_s": stream.open_for.as_secs_f64(),
        "waits_for": stream.waits_for.to_string(),
        "waited_s": stream.waited.as_secs_f64(),
    })
}

fn seconds(time: Duration) -> String {
    format!("{:.1}", time.as_secs_f64())
}
