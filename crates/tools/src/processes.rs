//! `dipole stats` and `dipole links`: counters of local processes and how they reach their peers, from
//! the files that they write ([`report`]). So processes that hang are shown like those that run.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::str::FromStr;

use clap::Args;
use dipole_naming::environment::default_runtime_dir;
use dipole_node::registry::{LinkUse, ProcessReport, Registry, report};
use dipole_node::{Address, EndpointId, NodeId};
use serde::Serialize;

use crate::output::{Failure, columns, fit, json as line, table};

/// Show counters of local processes
///
/// Processes write their counters a few times a second, at no cost to their messages. Shown are those of
/// the user of the runtime directory; root sees others with DIPOLE_RUNTIME_DIR set. The last counters
/// of a process that has died are shown once.
#[derive(Args, Debug)]
pub(crate) struct StatsArgs {
    /// A process, by its pid or by an endpoint of it as NODE:ENDPOINT; all counters are printed
    #[arg(value_name = "PID|ENDPOINT")]
    which: Option<Which>,
    /// Print also counters that are zero
    #[arg(long, short)]
    all: bool,
    /// Print all processes' counters for Prometheus, as `dipole agent --metrics` serves them
    #[arg(long, conflicts_with_all = ["which", "all"])]
    prometheus: bool,
}

/// Show how local processes reach their peers, and why they do not use a faster link
#[derive(Args, Debug)]
pub(crate) struct LinksArgs {
    /// A process, by its pid or by an endpoint of it as NODE:ENDPOINT
    #[arg(value_name = "PID|ENDPOINT")]
    which: Option<Which>,
}

/// Selects processes to show.
#[derive(Clone, Copy, Debug)]
enum Which {
    Pid(u32),
    Endpoint(Address),
}

impl FromStr for Which {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Which, &'static str> {
        let pid = text.parse().map(Which::Pid);
        pid.or_else(|_| text.parse().map(Which::Endpoint))
            .map_err(|_| "expected a process id, as 4711, or an endpoint, as 1:7")
    }
}

/// One process and its node.
pub(crate) struct Found {
    pub(crate) node: NodeId,
    pub(crate) report: ProcessReport,
}

impl Found {
    fn is(&self, which: Which) -> bool {
        match which {
            Which::Pid(pid) => self.report.pid() == Some(pid),
            Which::Endpoint(address) => {
                self.node == address.node && self.report.endpoints.contains(&address.endpoint)
            }
        }
    }

    fn endpoints(&self) -> Vec<String> {
        let node = self.node;
        let addresses = self.report.endpoints.iter().map(|&endpoint| {
            let address = Address { node, endpoint };
            address.to_string()
        });
        addresses.collect()
    }

    /// Processes with endpoint numbers of their own choice.
    pub(crate) fn chosen_endpoints(&self) -> Vec<String> {
        let chosen = self.report.endpoints.iter();
        let chosen = chosen.zip(self.endpoints());
        let chosen = chosen.filter(|(one, _)| !EndpointId::EPHEMERAL.contains(&one.0));
        chosen.map(|(_, address)| address).collect()
    }

    fn command(&self) -> &str {
        let owner = self.report.owner.as_ref();
        owner.map_or("(has died)", |owner| &owner.command)
    }

    fn values(&self) -> &[(String, u64)] {
        let counters = self.report.counters.as_ref();
        counters.map_or(&[], |counters| &counters.values)
    }

    pub(crate) fn value(&self, name: &str) -> u64 {
        let found = self.values().iter().find(|(known, _)| known == name);
        found.map_or(0, |(_, value)| *value)
    }

    /// The command without the folder of its program.
    pub(crate) fn name(&self) -> &str {
        let command = self.command();
        let program = command.split(' ').next().unwrap_or(command);
        let folder = program.rfind('/').map_or(0, |slash| slash + 1);
        &command[folder..]
    }

    /// The command, and the endpoints whose numbers were chosen.
    fn name_and_endpoints(&self) -> String {
        let endpoints = self.chosen_endpoints().join(" ");
        match endpoints.is_empty() {
            true => self.name().to_owned(),
            false => format!("{endpoints} {}", self.name()),
        }
    }

    fn heading(&self) -> String {
        let pid = self.report.pid().unwrap_or(0);
        let endpoints = match &*self.chosen_endpoints() {
            [] => "no endpoints".to_owned(),
            [one] => format!("endpoint {one}"),
            some => format!("endpoints {}", some.join(", ")),
        };
        format!(
            "node {}, process {pid}, {}, {endpoints}",
            self.node,
            self.name()
        )
    }
}

/// Counters of one process.
#[derive(Serialize)]
struct StatsLine<'a> {
    node: u32,
    pid: Option<u32>,
    command: &'a str,
    alive: bool,
    endpoints: Vec<String>,
    counters: serde_json::Map<String, serde_json::Value>,
}

/// How one process reaches a peer.
#[derive(Serialize)]
struct LinkLine<'a> {
    node: u32,
    pid: Option<u32>,
    peer_node: u32,
    /// The peer, if it is on this machine.
    peer_pid: Option<u32>,
    link: &'a str,
    paths: &'a str,
    check: &'a str,
    why: &'a str,
}

/// Prints counters; with `json` an object for each process.
pub(crate) fn stats(
    arguments: &StatsArgs,
    json: bool,
    out: &mut dyn Write,
) -> Result<ExitCode, Failure> {
    let runtime = default_runtime_dir();
    if arguments.prometheus {
        write!(out, "{}", dipole_agent::metrics(&runtime)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let found = all(&runtime)?;
    let shown = chosen(&found, arguments.which, &runtime)?;
    if json {
        for one in &shown {
            writeln!(out, "{}", line(&stats_line(one)))?;
        }
    } else if arguments.which.is_some() {
        for one in &shown {
            writeln!(out, "{}", one.heading())?;
            let wanted = |value: u64| value > 0 || arguments.all;
            for (name, value) in one.values().iter().filter(|(_, value)| wanted(*value)) {
                writeln!(out, "{value:>20}  {name}")?;
            }
        }
    } else if !shown.is_empty() {
        writeln!(out, "{}", overview(&shown))?;
    }
    tell_of_dead(&runtime, &shown);
    Ok(ExitCode::SUCCESS)
}

/// Prints links; with `json` an object for each.
pub(crate) fn links(
    arguments: &LinksArgs,
    json: bool,
    out: &mut dyn Write,
) -> Result<ExitCode, Failure> {
    let runtime = default_runtime_dir();
    let found = all(&runtime)?;
    for one in chosen(&found, arguments.which, &runtime)? {
        // A dead process reaches no peer.
        if one.report.owner.is_none() {
            continue;
        }
        if !json {
            writeln!(out, "{}", one.heading())?;
        }
        for link in &one.report.links {
            let peer = found
                .iter()
                .find(|peer| peer.report.incarnation == link.incarnation);
            let text = match json {
                true => line(&link_line(one, link, peer)),
                false => link_text(link, peer),
            };
            writeln!(out, "{text}")?;
        }
        if one.report.links.is_empty() && !json {
            writeln!(out, "    no peers so far")?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Processes of all nodes in a runtime directory.
pub(crate) fn all(runtime: &Path) -> Result<Vec<Found>, Failure> {
    let mut nodes = Vec::new();
    for entry in std::fs::read_dir(runtime).into_iter().flatten() {
        let name = entry?.file_name();
        let node = name.to_str().and_then(|name| name.strip_prefix("node-"));
        nodes.extend(node.and_then(|number| number.parse::<u32>().ok()));
    }
    nodes.sort_unstable();
    let mut found = Vec::new();
    for node in nodes.into_iter().map(NodeId) {
        let reports = report(runtime, node)?;
        found.extend(reports.into_iter().map(|report| Found { node, report }));
    }
    Ok(found)
}

/// All processes, or the selected one.
fn chosen<'a>(
    found: &'a [Found],
    which: Option<Which>,
    runtime: &Path,
) -> Result<Vec<&'a Found>, Failure> {
    let shown = found.iter();
    let shown: Vec<&Found> = shown
        .filter(|one| which.is_none_or(|which| one.is(which)))
        .collect();
    let place = runtime.display();
    match (shown.is_empty(), which) {
        (true, Some(Which::Pid(pid))) => Err(format!(
            "process {pid} has no node of Dipole in {place}; set DIPOLE_RUNTIME_DIR to that \
             process's, `dipole stats` lists those that are known"
        )
        .into()),
        (true, Some(Which::Endpoint(address))) => Err(format!(
            "no process has endpoint {address} open in {place}; `dipole stats` lists who has what"
        )
        .into()),
        (true, None) => {
            eprintln!("dipole: no process uses {place}; set DIPOLE_RUNTIME_DIR for another");
            Ok(shown)
        }
        (false, _) => Ok(shown),
    }
}

fn overview(shown: &[&Found]) -> String {
    let mut table = table([
        "pid", "command", "peers", "msgs out", "msgs in", "MB out", "MB in", "repeats",
    ]);
    let short = |text: &str, most: usize| match text.chars().count() > most {
        true => text.chars().take(most - 1).chain(['…']).collect(),
        false => text.to_owned(),
    };
    #[allow(clippy::cast_precision_loss, reason = "megabytes for a reader")]
    let megabytes = |one: &Found, direction| {
        let bytes = one.value(&format!("message bytes {direction}"));
        format!("{:.1}", bytes as f64 / 1e6)
    };
    for one in shown {
        let peers = one.value("network peers") + one.value("shared-memory peers");
        table.add_row([
            one.report.pid().unwrap_or(0).to_string(),
            short(&one.name_and_endpoints(), 11),
            peers.to_string(),
            one.value("messages sent").to_string(),
            one.value("messages received").to_string(),
            megabytes(one, "sent"),
            megabytes(one, "received"),
            one.value("units repeated").to_string(),
        ]);
    }
    fit(&table, columns())
}

fn stats_line(one: &Found) -> StatsLine<'_> {
    let key = |name: &str| {
        let words = name.split(|c: char| !c.is_alphanumeric());
        let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
        words.join("_")
    };
    let counters = one.values().iter();
    StatsLine {
        node: one.node.0,
        pid: one.report.pid(),
        command: one.command(),
        alive: one.report.owner.is_some(),
        endpoints: one.endpoints(),
        counters: counters
            .map(|(name, value)| (key(name), (*value).into()))
            .collect(),
    }
}

fn link_line<'a>(one: &Found, link: &'a LinkUse, peer: Option<&Found>) -> LinkLine<'a> {
    LinkLine {
        node: one.node.0,
        pid: one.report.pid(),
        peer_node: link.node.0,
        peer_pid: peer.and_then(|peer| peer.report.pid()),
        link: &link.link,
        paths: &link.paths,
        check: &link.check,
        why: &link.why,
    }
}

fn link_text(link: &LinkUse, peer: Option<&Found>) -> String {
    let mut text = format!("    {} to node {}", link.link, link.node);
    if let Some(peer) = peer {
        let pid = peer.report.pid().unwrap_or(0);
        text += &format!(", process {pid}, {}", peer.name());
    }
    if !link.paths.is_empty() {
        text += &format!(": {}", link.paths);
    }
    if !link.check.is_empty() {
        text += &format!(", checked by {}", link.check);
    }
    if !link.why.is_empty() {
        text += &format!("\n        not better, since {}", link.why);
    }
    text
}

/// Reports which processes have died, and removes their files.
fn tell_of_dead(runtime: &Path, shown: &[&Found]) {
    for one in shown.iter().filter(|one| one.report.owner.is_none()) {
        let pid = one.report.pid().unwrap_or(0);
        // Opening a registry sweeps it.
        let what = match Registry::open(runtime, one.node) {
            Ok(_) => "its files are removed now".to_owned(),
            Err(cause) => format!("its files stay: {cause}"),
        };
        let node = one.node;
        eprintln!("dipole: process {pid} of node {node} has died without a goodbye; {what}");
    }
}
