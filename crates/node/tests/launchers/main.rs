//! Jobs started by other launchers than `dipole run`: real Slurm daemons, a real `mpirun` and
//! `mpiexec.hydra`, `prterun`, Flux, and the environment of an indexed Kubernetes job. Every rank
//! checks each byte it receives. Launchers that are not installed are reported and skipped.

mod allocations;
mod events;
mod flux;
mod hydra;
mod networks;
mod nodes;
mod pmi_server;
mod pmix;
mod slurm;
mod stand_in;

use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use dipole_testbed::built;
use slurm::Cluster;

fn root() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// The program that all launchers start: `examples/all_to_all.rs`.
fn all_to_all() -> PathBuf {
    built::example("all_to_all")
}

/// A command without the variables of the launcher that started this test.
fn clean(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    let launchers = [
        "DIPOLE_",
        "SLURM",
        "OMPI_",
        "PMI",
        "MPI_",
        "HYD",
        "FLUX_",
        "PBS_",
        "LSB_",
        "JOB_COMPLETION",
    ];
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if launchers.iter().any(|prefix| name.starts_with(prefix)) {
            command.env_remove(name);
        }
    }
    command.stdin(Stdio::null());
    command
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain([PathBuf::from("/usr/sbin")])
        .any(|folder| folder.join(program).exists())
}

fn has_all(programs: &[&str], package: &str) -> bool {
    match programs.iter().find(|program| !is_installed(program)) {
        None => true,
        Some(missing) => {
            assert!(
                std::env::var_os("DIPOLE_REQUIRE_LAUNCHERS").is_none_or(|value| value != "1"),
                "DIPOLE_REQUIRE_LAUNCHERS is set but {missing} is not installed (Debian: {package})"
            );
            eprintln!("SKIPPED: {missing} is not installed (Debian: {package})");
            false
        }
    }
}

/// Checks that every rank reported success.
fn assert_all_right(output: &Output, ranks: usize) {
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{}: {said}{complained}",
        output.status
    );
    for rank in 0..ranks {
        let wanted = format!("rank {rank}: ");
        let line = said.lines().find(|line| line.starts_with(&wanted));
        let line = line.unwrap_or_else(|| panic!("nothing from rank {rank}: {said}{complained}"));
        let others = format!("from {} others, every byte right", ranks - 1);
        assert!(line.ends_with(&others), "{line}");
    }
}

#[test]
fn a_slurm_step_is_a_job_on_named_nodes() {
    let daemons = ["slurmctld", "slurmd", "srun", "munged"];
    if !has_all(&daemons, "slurm-wlm munge") || !slurm::may_start() {
        return;
    }
    let cluster = Cluster::start(4);
    let program = all_to_all();
    let step = |arguments: &[&str]| {
        let output = cluster.srun().args(arguments).arg(&program).output();
        (output.unwrap(), arguments.join(" "))
    };
    for arguments in [
        &["-N4", "-n8"][..],
        &["-N4", "-n7", "--distribution=cyclic"],
        &["-N3", "-n8", "--distribution=plane=2"],
        &["-N2", "-n4", "--mpi=pmi2"],
        // With PMI the ranks need not know the distribution.
        &[
            "-N2",
            "-n3",
            "--mpi=pmi2",
            "--distribution=arbitrary",
            "-w",
            "n1,n1,n2",
        ],
    ] {
        let (output, arguments) = step(arguments);
        eprintln!("srun {arguments}");
        let ranks = arguments
            .split(" -n")
            .nth(1)
            .and_then(|rest| rest.split(' ').next());
        assert_all_right(&output, ranks.unwrap().parse().unwrap());
    }
    // Two simultaneous jobs of one user on the same nodes.
    let both: Vec<Child> = (0..2)
        .map(|_| {
            let mut step = cluster.srun();
            step.args(["-N4", "-n4", "--overlap"]).arg(&program);
            step.stdout(Stdio::piped()).stderr(Stdio::piped());
            step.spawn().unwrap()
        })
        .collect();
    for step in both {
        assert_all_right(&step.wait_with_output().unwrap(), 4);
    }
    // A script with several programs: the launcher serves only the first one.
    let script = cluster.folder().join("twice");
    std::fs::write(&script, format!("{0} && {0}\n", program.display())).unwrap();
    let mut twice = cluster.srun();
    twice.args(["-N2", "-n4", "--mpi=pmi2", "sh"]).arg(&script);
    assert_all_right(&twice.output().unwrap(), 4);
    // With a hosts file that uses Slurm's node names in another order.
    let hosts = cluster.folder().join("hosts-file");
    std::fs::write(
        &hosts,
        "4 127.0.0.14 name=n1\n3 127.0.0.13 name=n2\n2 127.0.0.12 name=n3\n1 127.0.0.11 name=n4\n",
    )
    .unwrap();
    let runtime = cluster.folder().join("runtime");
    let mut step = cluster.srun();
    step.env("DIPOLE_HOSTS", &hosts)
        .env("DIPOLE_RUNTIME_DIR", &runtime);
    let output = step.args(["-N4", "-n8"]).arg(&program).output().unwrap();
    assert_all_right(&output, 8);
    // A distribution that other ranks cannot compute is refused with advice.
    let output = cluster
        .srun()
        .args(["-N2", "-n3", "--distribution=arbitrary", "-w", "n1,n1,n2"])
        .arg(&program)
        .output()
        .unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("use srun --distribution=block"), "{said}");
}

#[test]
fn tasks_of_slurm_exchange_their_addresses_by_pmix() {
    let daemons = ["slurmctld", "slurmd", "srun", "munged"];
    if !has_all(&daemons, "slurm-wlm munge") || !slurm::may_start() {
        return;
    }
    let cluster = Cluster::start(4);
    if !cluster.has_pmix() {
        eprintln!("SKIPPED: Slurm's plugin for PMIx is not installed");
        return;
    }
    let program = all_to_all();
    let step = |ranks: usize, arguments: &[&str]| {
        let mut step = cluster.srun();
        step.arg("--mpi=pmix").arg(format!("-n{ranks}"));
        assert_all_right(&step.args(arguments).output().unwrap(), ranks);
    };
    let at = program.to_str().unwrap();
    step(8, &["-N4", at]);
    let arbitrary = ["-N2", "--distribution=arbitrary", "-w", "n1,n2,n2", at];
    step(3, &arbitrary);
    step(4, &["-N2", "sh", "-c", &format!("{at} && {at}")]);
}

#[test]
fn a_program_of_open_mpi_is_a_step_of_slurm_over_dipole() {
    let daemons = ["slurmctld", "slurmd", "srun", "munged", "mpicc.openmpi"];
    if !has_all(&daemons, "slurm-wlm munge libopenmpi-dev") || !slurm::may_start() {
        return;
    }
    let cluster = Cluster::start(2);
    if !cluster.has_pmix() {
        eprintln!("SKIPPED: Slurm's plugin for PMIx is not installed");
        return;
    }
    let folder = cluster.folder();
    let provider = built::libraries().join("libdipole_fi.so");
    std::fs::copy(provider, folder.join("libdipole-fi.so")).unwrap();
    let (source, program) = (root().join("examples/mpi/ep.c"), folder.join("ep"));
    let mut compiler = Command::new("mpicc.openmpi");
    compiler.arg("-O2").arg("-o").args([&program, &source]);
    assert!(compiler.arg("-lm").status().unwrap().success());
    let mut step = cluster.srun();
    // As `dipole mpi-env openmpi` prints them.
    step.env("FI_PROVIDER_PATH", folder)
        .env("OMPI_MCA_pml", "cm")
        .env("OMPI_MCA_mtl", "ofi")
        .env("OMPI_MCA_mtl_ofi_provider_include", "dipole")
        .env("OMPI_MCA_btl_ofi_provider_include", "dipole");
    step.args(["--mpi=pmix", "-N2", "-n4", "-l"]).arg(&program);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let output = step.output().unwrap();
    let (said, complaint) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{said}{complaint}");
    assert!(said.contains("ep: right on 4 ranks"), "{said}");
    // Without the provider, the program ends with an error and uses nothing else.
    std::fs::remove_file(folder.join("libdipole-fi.so")).unwrap();
    let output = step.output().unwrap();
    let complaint = text(&output.stderr);
    assert!(!output.status.success(), "{}", text(&output.stdout));
    assert!(
        complaint.contains("PML cm cannot be selected"),
        "{complaint}"
    );
}

/// Number of processes with this command line.
fn running(command: &str) -> usize {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = processes.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    let wanted = command.replace(' ', "\0") + "\0";
    lines.filter(|line| *line == wanted.as_bytes()).count()
}

#[test]
fn dipole_run_in_a_batch_script_uses_the_nodes_of_the_job() {
    let daemons = ["slurmctld", "slurmd", "sbatch", "munged"];
    if !has_all(&daemons, "slurm-wlm munge") || !slurm::may_start() {
        return;
    }
    let cluster = Cluster::start(3);
    let (dipole, program) = (built::program("dipole"), all_to_all());
    let dipole = dipole.display();
    let batch = |ranks: &str| {
        let mut output = cluster.sbatch(ranks).output().unwrap();
        output.stdout = std::fs::read(cluster.log("out")).unwrap();
        output
    };
    let output = batch(&format!("{dipole} run -n 6 {}", program.display()));
    assert_all_right(&output, 6);
    let report = "echo $DIPOLE_RANK on $DIPOLE_NID by ${SLURM_STEP_NODELIST:-$SLURMD_NODENAME}";
    let output = batch(&format!("{dipole} run -n 6 sh -c '{report}'"));
    let said = String::from_utf8_lossy(&output.stdout);
    for rank in 0..6 {
        let node = rank / 2 + 1;
        let line = format!("{rank} on {node} by n{node}");
        assert!(said.lines().any(|one| one == line), "{line}: {said}");
    }
    let output = batch(&format!("{dipole} run -n 7 true"));
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("take 6 in all"), "{said}");
    let failing = "test $DIPOLE_RANK -ne 4 || exit 3; sleep 60";
    let output = batch(&format!("{dipole} run -n 6 sh -c '{failing}'"));
    assert_eq!(output.status.code(), Some(3), "{output:?}");

    let sleep = format!("sleep 6{}", std::process::id());
    let mut job = cluster.sbatch(&format!("{dipole} run -n 6 {sleep}"));
    let mut job = job.stdout(Stdio::null()).spawn().unwrap();
    cluster.wait_until("all ranks run", || running(&sleep) == 6);
    cluster.scancel();
    assert!(!job.wait().unwrap().success());
    cluster.wait_until("no rank is left", || running(&sleep) == 0);
}

fn mpirun(ranks: usize, program: &mut dyn FnMut(&mut Command)) -> Output {
    let mut command = clean("mpirun");
    let ranks = ranks.to_string();
    // The tests may run as root.
    command.args(["-n", &ranks, "--oversubscribe", "--allow-run-as-root"]);
    program(&mut command);
    command.output().unwrap()
}

fn has_open_mpi() -> bool {
    if !has_all(&["mpirun"], "openmpi-bin") {
        return false;
    }
    let version = Command::new("mpirun").arg("--version").output().unwrap();
    let is_open_mpi = String::from_utf8_lossy(&version.stdout).contains("Open MPI");
    if !is_open_mpi {
        eprintln!("SKIPPED: mpirun is not Open MPI's");
    }
    is_open_mpi
}

#[test]
fn mpirun_starts_a_job_on_one_node() {
    if !has_open_mpi() {
        return;
    }
    let program = all_to_all();
    let output = mpirun(4, &mut |command| {
        command.arg(&program);
    });
    assert_all_right(&output, 4);
}

#[test]
fn mpirun_with_a_contradicting_hosts_file_is_refused_with_advice() {
    if !has_open_mpi() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let hosts = folder.path().join("hosts");
    std::fs::write(&hosts, "1 127.0.0.1 slots=1\n2 127.0.0.2 slots=1\n").unwrap();
    let program = all_to_all();
    let output = mpirun(2, &mut |command| {
        command.env("DIPOLE_HOSTS", &hosts).arg(&program);
    });
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("it has 2 ranks on the node"), "{said}");
    assert!(said.contains("--map-by slot"), "{said}");
}

#[test]
fn mpiexec_of_hydra_starts_a_job_even_through_a_shell() {
    if !has_all(&["mpiexec.hydra"], "mpich") {
        return;
    }
    let program = all_to_all();
    let line = format!("{}; exit $?", program.display());
    for command in [vec![program.to_str().unwrap()], vec!["sh", "-c", &line]] {
        let mut launcher = clean("mpiexec.hydra");
        let output = launcher.args(["-n", "3"]).args(command).output().unwrap();
        assert_all_right(&output, 3);
    }
}

#[test]
fn pods_of_an_indexed_job_find_each_other_by_their_host_names() {
    let program = all_to_all();
    let folder = tempfile::tempdir().unwrap();
    let pods: Vec<Child> = (0..3)
        .map(|index: u32| {
            // Pods do not share files.
            let runtime = folder.path().join(format!("pod-{index}"));
            clean(&program)
                .env("JOB_COMPLETION_INDEX", index.to_string())
                .env("DIPOLE_SIZE", "3")
                .env("DIPOLE_PEERS_PATTERN", "127.0.0.{+21}")
                .env("DIPOLE_RUNTIME_DIR", runtime)
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let outputs: Vec<Output> = pods
        .into_iter()
        .map(|pod| pod.wait_with_output().unwrap())
        .collect();
    let mut all = outputs[0].clone();
    for output in &outputs[1..] {
        assert!(output.status.success(), "{output:?}");
        all.stdout.extend(&output.stdout);
        all.stderr.extend(&output.stderr);
    }
    assert_all_right(&all, 3);
}
