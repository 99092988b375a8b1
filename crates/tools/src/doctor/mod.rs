//! `dipole doctor`: examines this machine and, from here, every node in the hosts file. Reports what
//! will be used, why nothing faster is, and what to do.
//!
//! Each part reads the system in one function and judges in another, which is tested separately:
//! [`kernel`], [`limits`], [`memory`], [`mpi`], [`checkpoints`], [`setup`], [`device`], [`pause`],
//! [`bpf_link`] and [`firewall`] for this machine; [`peer`], [`paths`], [`busy_poll`] and [`verdict`] for the others.
//! [`job_peers`] coordinates the ranks of a job. The only change it makes is to create the runtime
//! directory, as every program does.

mod answer;
mod bpf_link;
mod busy_poll;
mod checkpoints;
mod device;
mod finding;
mod firewall;
mod job_peers;
mod kernel;
mod limits;
mod memory;
mod mpi;
mod paths;
mod pause;
mod peer;
mod setup;
mod verdict;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use dipole_link::sys::interface_addresses;
use dipole_node::hosts::Host;
use dipole_node::{Config, NodeId};

use crate::output::{Failure, columns, has_colours, wrap};
use finding::Finding;

/// Nodes examined concurrently.
const AT_ONCE: usize = 32;

/// Check this machine and its peers: what will be used, why not better, what to do
///
/// Exits with 0 if nothing is broken, with 1 if messages will not get through or the
/// configuration is wrong (with --strict also if something is slower than possible), with 3 if
/// nothing is broken but some node did not reply, so that messages to it could not be tried.
/// In a job (dipole run -n N --hosts FILE dipole doctor) the nodes answer each other.
#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// Hosts file [default: $DIPOLE_HOSTS, else this machine alone]
    #[arg(long, value_name = "FILE")]
    hosts: Option<PathBuf>,
    /// Number of this node [default: $DIPOLE_NID, else 1]
    #[arg(long, value_name = "NID")]
    nid: Option<NodeId>,
    /// Fail also if something works, but more slowly than possible
    #[arg(long)]
    strict: bool,
    /// Also list checks that passed
    #[arg(long, short)]
    verbose: bool,
    /// Seconds to wait for each node's reply
    #[arg(long, default_value_t = 1.0, value_name = "S", value_parser = patience)]
    timeout: f64,
}

fn patience(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.05..=60.0).contains(&value) => Ok(value),
        _ => Err("expected seconds from 0.05 to 60".into()),
    }
}

/// Examines and prints; with `json`, one object per line.
pub(crate) fn execute(
    arguments: DoctorArgs,
    json: bool,
    out: &mut dyn Write,
) -> Result<ExitCode, Failure> {
    let patience = Duration::from_secs_f64(arguments.timeout);
    let (config, mut findings) = setup::configure(arguments.hosts, arguments.nid);
    let job_peers = job_peers::JobPeers::meet(&config);
    // If the key is unusable, its cause has already been reported.
    if !findings.iter().any(|one| one.name == setup::CLUSTER_KEY) {
        findings.extend(setup::cluster_key(&config));
    }
    findings.extend(setup::unknown_variables());
    findings.extend(kernel::examine());
    findings.extend(limits::examine());
    findings.extend(memory::examine(&config));
    findings.extend(mpi::examine());
    findings.extend(checkpoints::examine());
    findings.extend(network(&config, patience));
    if let Some(job_peers) = job_peers {
        job_peers.part();
    }
    if json {
        for finding in &findings {
            writeln!(out, "{}", crate::output::json(finding))?;
        }
    } else {
        let colours = has_colours(&std::io::stdout());
        let text = finding::text(&findings, arguments.verbose, colours);
        writeln!(out, "{}", wrap(&text, columns()))?;
    }
    let status = finding::status(&findings, arguments.strict);
    Ok(ExitCode::from(status))
}

/// Examines this node's address and device, and the other nodes.
fn network(config: &Config, patience: Duration) -> Vec<Finding> {
    if config.hosts.is_local_only() {
        return Vec::new();
    }
    let mut findings = Vec::new();
    let devices = interface_addresses().unwrap_or_else(|cause| {
        findings.push(Finding::unknown(
            "devices",
            format!("the kernel does not list them: {cause}"),
            "netlink sockets must be allowed",
        ));
        Vec::new()
    });
    // A node that is not in the hosts file has no known address, which is reported elsewhere.
    let listed = config.hosts.get(config.node);
    let here = listed.and_then(|_| device::of(config.bind, &devices));
    let own = peer::Own {
        key: config.key.as_ref(),
        address: here.map(|_| config.bind),
        device: here.map(|device| &*device.name),
        ports: config.ports,
        patience,
    };
    if let Some(host) = listed {
        findings.push(setup::own_address(
            host,
            &config.hosts,
            config.bind,
            &devices,
        ));
        if let Some(device) = here {
            findings.extend(device::examine(device));
            findings.push(peer::examine_own(host, own));
        }
        for interface in &config.interfaces {
            match device::of(*interface, &devices) {
                Some(device) => findings.extend(device::examine(device)),
                None => findings.push(setup::no_interface(*interface).about(host.to_string())),
            }
        }
    }
    let mut own_addresses = Vec::from_iter(listed.map(|_| config.bind));
    own_addresses.extend(&config.interfaces);
    let mut bpf_links = false;
    for address in own_addresses.iter().filter(|one| !one.is_loopback()) {
        let (found, usable) = bpf_link::examine(*address, config);
        findings.extend(found);
        bpf_links |= usable;
    }
    if bpf_links {
        findings.push(firewall::examine());
    }
    let others: Vec<&Host> = config
        .hosts
        .iter()
        .filter(|host| host.node != config.node)
        .collect();
    for group in others.chunks(AT_ONCE) {
        std::thread::scope(|scope| {
            let asked: Vec<_> = group
                .iter()
                .map(|host| {
                    scope.spawn(|| {
                        let mut findings = peer::examine(host, own);
                        findings.extend(paths::examine(host, own, &own_addresses));
                        findings
                    })
                })
                .collect();
            for thread in asked {
                findings.extend(thread.join().expect("an examination does not panic"));
            }
        });
    }
    findings
}
