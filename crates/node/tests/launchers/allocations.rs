//! `dipole run` inside allocations of PBS and LSF, on three namespaces as nodes.
//!
//! Neither scheduler is here: the tests set the variables that their manuals specify, and stand-ins of
//! `ssh` and `blaunch` start processes in the namespaces.

use std::path::Path;
use std::process::{Command, Output};

use dipole_testbed::built;

use super::nodes::Nodes;
use super::{all_to_all, assert_all_right, running};

/// Checks `dipole run` in scripts that a function runs on the first of three nodes with two slots
/// each.
pub(super) fn check(nodes: &Nodes, run: &dyn Fn(&Path) -> Output) {
    let dipole = built::program("dipole");
    let dipole = dipole.display();
    let script = |text: &str| run(&nodes.script("job", text));
    let program = all_to_all();
    let output = script(&format!("{dipole} run -n 6 {}", program.display()));
    assert_all_right(&output, 6);

    let report = "echo $DIPOLE_RANK on $(hostname)";
    let output = script(&format!("{dipole} run -n 6 sh -c '{report}'"));
    let said = String::from_utf8_lossy(&output.stdout);
    for rank in 0..6 {
        let line = format!("{rank} on n{}", rank / 2 + 1);
        assert!(said.lines().any(|one| one == line), "{line}: {output:?}");
    }
    let output = script(&format!("{dipole} run -n 7 true 2>&1"));
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("take 6 in all"), "{output:?}");

    let failing = "test $DIPOLE_RANK -ne 4 || exit 3; sleep 60";
    let output = script(&format!(
        "{dipole} run -n 6 sh -c '{failing}'; echo status $?"
    ));
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("status 3\n"), "{output:?}");

    // The scheduler ends a job with SIGTERM. The folder tells the processes of simultaneous tests apart.
    let sleep = nodes.folder().join("sleep");
    std::os::unix::fs::symlink("/bin/sleep", &sleep).expect("a link");
    let sleep = format!("{} 1000", sleep.display());
    let log = nodes.folder().join("started");
    let output = script(&format!(
        "{dipole} run -n 6 sh -c 'echo started; exec {sleep}' > {log} &\n\
         until [ \"$(grep -c started {log})\" = 6 ]; do sleep 0.05; done\n\
         kill $!; wait $!; echo status $?",
        log = log.display()
    ));
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("status 143\n"), "{output:?}");
    assert_eq!(running(&sleep), 0);
}

/// Runs a script on the first node, with stand-ins before other programs.
fn with_stand_in(nodes: &Nodes, variables: &[(&str, &str)], script: &Path) -> Output {
    let mut command = nodes.command(1, script);
    command.env("PATH", nodes.path_with_stand_ins());
    command
        .envs(variables.iter().copied())
        .output()
        .expect("a script")
}

#[test]
fn dipole_run_uses_the_nodes_of_a_pbs_job_and_reaches_them_by_ssh() {
    let Some(nodes) = Nodes::new(3, 1) else {
        return;
    };
    nodes.add_ssh();
    let file = nodes.folder().join("pbs-nodes");
    std::fs::write(&file, "n1\nn1\nn2\nn2\nn3\nn3\n").expect("a file");
    let file = file.to_str().expect("a path");
    let variables = [("PBS_JOBID", "7.server"), ("PBS_NODEFILE", file)];
    check(&nodes, &|script| with_stand_in(&nodes, &variables, script));
}

#[test]
fn dipole_run_uses_the_nodes_of_an_lsf_job_and_reaches_them_by_blaunch() {
    let Some(nodes) = Nodes::new(3, 1) else {
        return;
    };
    let enter = nodes.folder().join("enter");
    let stand_in = format!(
        "node=${{1#n}}; shift\nexec {} $node \"$@\"",
        enter.display()
    );
    nodes.script("bin/blaunch", &stand_in);
    let variables = [("LSB_JOBID", "7"), ("LSB_MCPU_HOSTS", "n1 2 n2 2 n3 2")];
    check(&nodes, &|script| with_stand_in(&nodes, &variables, script));
    let file = nodes.folder().join("lsf-nodes");
    std::fs::write(&file, "n1\nn1\nn2\n").expect("a file");
    let file = file.to_str().expect("a path");
    let variables = [("LSB_JOBID", "7"), ("LSB_DJOB_HOSTFILE", file)];
    let dipole = built::program("dipole");
    let script = nodes.script("job", &format!("{} run -n 4 true 2>&1", dipole.display()));
    let output = with_stand_in(&nodes, &variables, &script);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("take 3 in all"), "{output:?}");
}

#[test]
fn a_list_of_nodes_that_cannot_be_read_is_named() {
    let dipole = built::program("dipole");
    let mut command: Command = super::clean(dipole);
    command
        .env("PBS_JOBID", "7")
        .env("PBS_NODEFILE", "/nowhere/nodes");
    let output = command
        .args(["run", "-n", "2", "true"])
        .output()
        .expect("dipole");
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("PBS_NODEFILE is `/nowhere/nodes`"), "{said}");
}
