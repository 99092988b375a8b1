//! Runs the kernels of `examples/mpi` over Dipole and over TCP, alternating, with Debian's Open MPI.
//!
//! As root they run on two nodes in network namespaces with a veth pair between them, half of the
//! ranks on each; ranks of a node use shared memory. Otherwise all ranks are on this node, and those
//! of Open MPI use TCP.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use dipole_testbed::Testbed;

use super::library::{Library, Transport, provider};
use super::prepare;
use crate::command::{Failure, at, describe, root, run};

#[derive(Args)]
pub(crate) struct Arguments {
    /// Numbers of ranks.
    #[arg(long, value_delimiter = ',', default_values_t = [2, 4])]
    ranks: Vec<u32>,
    /// Rounds, each of which runs every kernel over every transport.
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// The link of Dipole between nodes: bpf, udp or auto.
    #[arg(long, default_value = "auto")]
    link: String,
    /// An installed libdipole-fi.so to use instead of building one.
    #[arg(long, value_name = "FILE")]
    provider: Option<PathBuf>,
    /// Kernels; all by default.
    kernels: Vec<String>,
}

/// The kernels, with arguments for a run of about 1 s.
const KERNELS: [(&str, &[&str]); 6] = [
    ("ep", &["S"]),
    ("is", &["22"]),
    ("cg", &["14000"]),
    ("mg", &["6"]),
    ("ft", &["10"]),
    ("lu", &["48"]),
];
const TRANSPORTS: [Transport; 2] = [Transport::Dipole, Transport::Tcp];
const LIBRARY: Library = Library::Openmpi4;
/// The network between the nodes.
const NETWORK: &str = "10.0.0.0/24";

pub(super) fn kernels(arguments: &Arguments) -> Result<(), Failure> {
    let provider = provider(arguments.provider.as_deref())?;
    let chosen: Vec<_> = KERNELS
        .iter()
        .filter(|(name, _)| {
            arguments.kernels.is_empty() || arguments.kernels.iter().any(|kernel| kernel == name)
        })
        .collect();
    if chosen.is_empty() {
        let names = KERNELS.map(|(name, _)| name).join(", ");
        return Err(Failure::Text(format!("no such kernel; there are {names}")));
    }
    let testbed = match Testbed::why_not() {
        None => Some(Testbed::builder().nodes(2).build().map_err(|cause| {
            Failure::Text(format!("cannot create network namespaces: {cause}"))
        })?),
        Some(why) => {
            println!("on this node only, because network namespaces are not available: {why}");
            None
        }
    };
    let mut programs = BTreeMap::new();
    for (name, _) in &chosen {
        programs.insert(*name, compile(name)?);
    }
    // Seconds over Dipole and over TCP, by ranks and kernel.
    let mut seconds: BTreeMap<(u32, &str), [Vec<f64>; 2]> = BTreeMap::new();
    for _ in 0..arguments.rounds {
        for &ranks in &arguments.ranks {
            for (name, words) in &chosen {
                for (index, transport) in TRANSPORTS.into_iter().enumerate() {
                    let mut command =
                        launcher_command(transport, ranks, testbed.as_ref(), &provider)?;
                    if transport == Transport::Dipole && arguments.link != "auto" {
                        command.env("DIPOLE_LINK", &arguments.link);
                    }
                    command.arg(&programs[name]).args(*words);
                    let took = run_kernel(&mut command, name)?;
                    seconds.entry((ranks, *name)).or_default()[index].push(took);
                }
            }
        }
    }
    let rounds = arguments.rounds;
    println!("seconds, medians of {rounds} rounds; compare only within a line");
    println!("kernel  ranks    Dipole  over TCP  Dipole / TCP");
    for ((ranks, name), [dipole, tcp]) in seconds {
        let (dipole, tcp) = (median(dipole), median(tcp));
        let ratio = dipole / tcp;
        println!("{name:6}  {ranks:5}  {dipole:8.3}  {tcp:8.3}  {ratio:12.2}");
    }
    Ok(())
}

fn compile(name: &str) -> Result<PathBuf, Failure> {
    let folder = prepare::folder().join("kernels");
    fs::create_dir_all(&folder).map_err(at(&folder))?;
    let program = folder.join(name);
    let source = root().join("examples/mpi").join(format!("{name}.c"));
    run(LIBRARY
        .compiler()
        .args(["-O3", "-o"])
        .args([&program, &source])
        .arg("-lm"))?;
    Ok(program)
}

/// The launcher, up to the program.
fn launcher_command(
    transport: Transport,
    ranks: u32,
    testbed: Option<&Testbed>,
    provider: &Path,
) -> Result<Command, Failure> {
    let mut command = LIBRARY.launcher(transport, provider);
    let number = ranks.to_string();
    let Some(testbed) = testbed else {
        command.args(["-n", &number]);
        return Ok(command);
    };
    if transport == Transport::Tcp {
        command.env("OMPI_MCA_btl", "tcp,vader,self");
        command.env("OMPI_MCA_btl_tcp_if_include", NETWORK);
    }
    // Ranks that wait let others have the core: there may be fewer cores than ranks.
    command.env("OMPI_MCA_mpi_yield_when_idle", "1");
    command.env("OMPI_MCA_oob_tcp_if_include", NETWORK);
    command.env("OMPI_MCA_plm_rsh_agent", remote_shell(testbed)?);
    // The launcher is on the first node.
    let mut there = testbed.command(1, "unshare");
    there.args(["--uts", "sh", "-c", "hostname node1 && exec \"$@\"", "sh"]);
    there.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            // The runtime directory is that of the node.
            Some(value) if name != "DIPOLE_RUNTIME_DIR" => there.env(name, value),
            Some(_) => &mut there,
            None => there.env_remove(name),
        };
    }
    let hosts = [(1, ranks.div_ceil(2)), (2, ranks / 2)];
    let hosts = hosts.map(|(node, slots)| format!("{}:{slots}", testbed.node(node).addresses[0]));
    there.args(["--host", &hosts.join(","), "-n", &number]);
    Ok(there)
}

/// A script that starts a command on a node, like ssh. The nodes have names of their own: Open MPI
/// uses shared memory between hosts with the same name.
fn remote_shell(testbed: &Testbed) -> Result<PathBuf, Failure> {
    let mut script = "#!/bin/sh\naddress=$1\nshift\ncase $address in\n".to_owned();
    for number in [1, 2] {
        let node = testbed.node(number);
        let variables = testbed.environment(number);
        let variables = variables.map(|(name, value)| format!("{name}={value}"));
        script += &format!(
            "{}) exec ip netns exec {} unshare --uts env {} sh -c \"hostname node{number}; $*\" ;;\n",
            node.addresses[0],
            node.namespace,
            variables.join(" ")
        );
    }
    script += "esac\n";
    let path = testbed.folder().join("remote-shell-by-address");
    fs::write(&path, script).map_err(at(&path))?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).map_err(at(&path))?;
    Ok(path)
}

/// Runs a kernel; returns the time that it reports, in seconds.
fn run_kernel(command: &mut Command, name: &str) -> Result<f64, Failure> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output();
    let output = output.map_err(|cause| Failure::Start { program, cause })?;
    let text = String::from_utf8_lossy(&output.stdout);
    let right = format!("{name}: right on ");
    let result = text.lines().find(|line| line.starts_with(&right));
    let took = result.and_then(|line| line.rsplit_once(", ")?.1.strip_suffix(" s")?.parse().ok());
    took.filter(|_| output.status.success()).ok_or_else(|| {
        let (command, why) = (describe(command), String::from_utf8_lossy(&output.stderr));
        Failure::Text(format!("{command}: {text}{why}"))
    })
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}
