//! Every launcher's environment, given as a table.

use super::*;
use crate::hosts::Hosts;

/// Reads a job from variables, later ones winning.
fn read(variables: &[&[(&str, &str)]]) -> Result<Launched, JobError> {
    let get = lookup(variables);
    launched(&get, Services::Avoid).map(|found| found.expect("a launcher that is recognised"))
}

fn lookup(variables: &[&[(&str, &str)]]) -> impl Fn(&str) -> Option<String> + use<> {
    let all: Vec<(String, String)> = variables
        .concat()
        .into_iter()
        .rev()
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    move |wanted| {
        all.iter()
            .find(|(name, _)| name == wanted)
            .map(|(_, value)| value.clone())
            .filter(|value| !value.is_empty())
    }
}

fn nodes(job: &Job) -> Vec<u32> {
    job.addresses.iter().map(|address| address.node.0).collect()
}

fn refused(variables: &[&[(&str, &str)]], wanted: &str) {
    let error = read(variables).unwrap_err().to_string();
    assert!(error.contains(wanted), "{wanted}: {error}");
}

const SLURM: [(&str, &str); 10] = [
    ("SLURM_JOB_ID", "42"),
    ("SLURM_STEP_ID", "3"),
    ("SLURM_PROCID", "5"),
    ("SLURM_NTASKS", "99"),
    ("SLURM_STEP_NUM_TASKS", "7"),
    ("SLURM_NODEID", "2"),
    ("SLURM_JOB_NODELIST", "n[01-09]"),
    ("SLURM_STEP_NODELIST", "n[03-04],m[1-2]"),
    ("SLURM_STEP_TASKS_PER_NODE", "2(x3),1"),
    ("SLURMD_NODENAME", "m1"),
];

#[test]
fn a_slurm_task_finds_its_rank_and_every_node_by_name() {
    let launched = read(&[&SLURM]).unwrap();
    let job = launched.job;
    assert_eq!((job.id, job.rank, job.size), ((42 << 32) | 3, 5, 7));
    assert_eq!(nodes(&job), [1, 1, 2, 2, 3, 3, 4]);
    let Nodes::Names(names) = launched.nodes else {
        panic!("{:?}", launched.nodes);
    };
    assert_eq!(names.names.join(" "), "n03 n04 m1 m2");
    assert_eq!(names.own, Some(2));
    let cyclic = [
        ("SLURM_DISTRIBUTION", "cyclic:block"),
        ("SLURM_PROCID", "6"),
    ];
    let job = read(&[&SLURM, &cyclic]).unwrap().job;
    assert_eq!(nodes(&job), [1, 2, 3, 4, 1, 2, 3]);
    let plane = [
        ("SLURM_DISTRIBUTION", "plane"),
        ("SLURM_DIST_PLANESIZE", "2"),
    ];
    assert_eq!(
        nodes(&read(&[&SLURM, &plane]).unwrap().job),
        [1, 1, 2, 2, 3, 3, 4]
    );
}

#[test]
fn jobs_and_steps_of_slurm_keep_apart() {
    let of = |job: &str, step: &str| {
        let own = [("SLURM_JOB_ID", job), ("SLURM_STEP_ID", step)];
        let launched = read(&[&SLURM, &own]).unwrap();
        let Nodes::Names(names) = launched.nodes else {
            panic!("no names");
        };
        (launched.job.addresses[0].endpoint.0, names.port)
    };
    let mut seen = std::collections::HashSet::new();
    for (job, step) in [
        ("42", "3"),
        ("42", "4"),
        ("43", "3"),
        ("43", "4"),
        ("44", "0"),
    ] {
        let (base, port) = of(job, step);
        assert!(base >= 0x8000_0000 && base & 0xffff == 0, "{base:x}");
        assert!((10_000..30_000).contains(&port));
        assert!(
            seen.insert((base, 0)) && seen.insert((0, port)),
            "{job}.{step}"
        );
    }
    assert_eq!(of("42", "3"), of("42", "3"));
}

#[test]
fn a_slurm_environment_that_does_not_hold_together_is_refused_by_name() {
    for (variable, value, wanted) in [
        (
            "SLURM_PROCID",
            "7",
            "SLURM_PROCID is `7`, expected a number from 0 to 6",
        ),
        ("SLURM_STEP_NUM_TASKS", "0", "SLURM_STEP_NUM_TASKS is `0`"),
        ("SLURM_JOB_ID", "x", "SLURM_JOB_ID is `x`"),
        ("SLURM_JOB_ID", "", "SLURM_JOB_ID is not set"),
        ("SLURM_NODEID", "", "SLURM_NODEID is not set"),
        (
            "SLURM_NODEID",
            "4",
            "SLURM_NODEID is `4`, expected a number from 0 to 3",
        ),
        ("SLURM_NODEID", "1", "rank 5 is on node 1"),
        ("SLURMD_NODENAME", "m2", "this is node m2"),
        (
            "SLURM_STEP_NODELIST",
            "n[3",
            "SLURM_STEP_NODELIST is `n[3`, expected node names",
        ),
        (
            "SLURM_STEP_NODELIST",
            "",
            "SLURM_STEP_TASKS_PER_NODE is `2(x3),1`, expected 7 tasks on 9",
        ),
        (
            "SLURM_STEP_TASKS_PER_NODE",
            "2(x4)",
            "expected 7 tasks on 4 nodes",
        ),
        (
            "SLURM_STEP_TASKS_PER_NODE",
            "",
            "SLURM_STEP_TASKS_PER_NODE is not set",
        ),
        (
            "SLURM_DISTRIBUTION",
            "arbitrary",
            "use srun --distribution=block",
        ),
        (
            "SLURM_DISTRIBUTION",
            "plane",
            "SLURM_DIST_PLANESIZE is not set",
        ),
        ("SLURM_HET_SIZE", "2", "SLURM_HET_SIZE is `2`"),
        ("DIPOLE_JOB", "x", "DIPOLE_JOB is `x`"),
        (
            "DIPOLE_HOSTS",
            "/nowhere/hosts",
            "cannot read the hosts file /nowhere/hosts",
        ),
    ] {
        refused(&[&SLURM, &[(variable, value)]], wanted);
    }
}

#[test]
fn a_batch_script_and_an_interactive_shell_are_no_tasks() {
    for step in ["", "4294967291", "4294967290", "x"] {
        let get = lookup(&[&SLURM, &[("SLURM_STEP_ID", step)]]);
        assert!(launched(&get, Services::Avoid).unwrap().is_none(), "{step}");
    }
}

#[test]
fn dipole_wins_over_mpirun_and_mpirun_over_slurm() {
    let all = [("OMPI_COMM_WORLD_RANK", "1"), ("DIPOLE_RANK", "0")];
    let found = launched(&lookup(&[&SLURM, &all]), Services::Avoid);
    assert!(found.unwrap().is_none());
    let job = read(&[&SLURM, &OPEN_MPI]).unwrap().job;
    assert_eq!((job.rank, job.size), (1, 4));
    // Slurm offers PMI to MPI programs: its tasks are not jobs of Dipole.
    let pmi = [("PMI_RANK", "5"), ("PMI_SIZE", "7"), ("PMIX_RANK", "5")];
    assert_eq!(read(&[&SLURM, &pmi]).unwrap().job.id, (42 << 32) | 3);
}

#[test]
fn pmix_of_another_launcher_wins_over_slurm_whose_own_does_not() {
    let served = |namespace| {
        [
            ("PMIX_RANK", "5"),
            ("PMIX_NAMESPACE", namespace),
            ("PMIX_SERVER_URI4", "server.0;tcp4://127.0.0.1:5000"),
        ]
    };
    for own in ["slurm.pmix.42.3", "slurm.pmix.42.2"] {
        let job = read(&[&SLURM, &served(own)]).unwrap().job;
        assert_eq!(job.id, (42 << 32) | 3);
        let get = lookup(&[&SLURM, &served(own)]);
        assert_eq!(pmix::is_of_slurm_step(&get), own == "slurm.pmix.42.3");
    }
    let other = served("prterun-n1-77@1");
    refused(&[&SLURM, &other], "DIPOLE_SIZE is not set");
    // Without a server the rank alone may have been inherited.
    assert!(read(&[&SLURM, &other[..2]]).is_ok());
    let size = [("DIPOLE_SIZE", "7")];
    refused(&[&other, &size], "DIPOLE_HOSTS is not set");
}

#[test]
fn errors_of_services_name_what_to_do() {
    let library = ServiceError::Library {
        cause: "no such file".to_owned(),
    };
    assert_eq!(
        JobError::from(library).to_string(),
        "the launcher's PMI service needs libpmix.so.2, which cannot be loaded: no such file; \
         install it on all nodes (Debian: libpmix2) or name its directory in LD_LIBRARY_PATH; \
         without it, name the nodes in a hosts file (DIPOLE_HOSTS)"
    );
    let version = ServiceError::Version {
        found: "2.2.5".to_owned(),
    };
    let text = version.to_string();
    assert!(
        text.contains("of version 3, 4, 5 or 6, but libpmix.so.2 has version `2.2.5`"),
        "{text}"
    );
}

const OPEN_MPI: [(&str, &str); 5] = [
    ("OMPI_COMM_WORLD_RANK", "1"),
    ("OMPI_COMM_WORLD_SIZE", "4"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"),
    ("PMIX_NAMESPACE", "2716467201"),
];

#[test]
fn ranks_of_mpirun_that_are_all_here_need_no_hosts_file() {
    let launched = read(&[&OPEN_MPI]).unwrap();
    assert_eq!(launched.nodes, Nodes::Here);
    assert_eq!(nodes(&launched.job), [1; 4]);
    let other = read(&[&OPEN_MPI, &[("PMIX_NAMESPACE", "2716467202")]]).unwrap();
    assert_ne!(launched.job.addresses[0], other.job.addresses[0]);
    let given = read(&[&OPEN_MPI, &[("DIPOLE_JOB", "17")]]).unwrap();
    assert_eq!(given.job.id, 17);
    let hydra = [
        ("PMI_RANK", "2"),
        ("PMI_SIZE", "3"),
        ("MPI_LOCALRANKID", "2"),
        ("MPI_LOCALNRANKS", "3"),
    ];
    let first = read(&[&hydra]).unwrap().job;
    assert_eq!((first.rank, first.size), (2, 3));
    assert_eq!(first, read(&[&hydra]).unwrap().job);
    refused(
        &[&hydra, &[("MPI_LOCALNRANKS", "")]],
        "DIPOLE_JOB is not set",
    );
    refused(&[&[("PMIX_RANK", "0")]], "DIPOLE_SIZE is not set");
}

#[test]
fn ranks_of_mpirun_on_several_nodes_fill_the_slots_of_the_hosts_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("hosts");
    let written = |text: &str| {
        std::fs::write(&file, text).unwrap();
        Hosts::parse(text).unwrap()
    };
    let path = file.to_str().unwrap();
    let hosts = written("5 127.0.0.1 slots=2\n6 192.0.2.77 slots=2\n");
    let two = [("OMPI_COMM_WORLD_LOCAL_SIZE", "2"), ("DIPOLE_HOSTS", path)];
    let launched = read(&[&OPEN_MPI, &two]).unwrap();
    assert_eq!(nodes(&launched.job), [5, 5, 6, 6]);
    assert_eq!(launched.nodes, Nodes::File(hosts));
    for (changes, wanted) in [
        (vec![("DIPOLE_HOSTS", "")], "DIPOLE_HOSTS is not set"),
        (
            vec![("OMPI_COMM_WORLD_SIZE", "5")],
            "do not suffice for 5 ranks",
        ),
        (
            vec![("OMPI_COMM_WORLD_LOCAL_SIZE", "3")],
            "it has 3 ranks on the node of rank 1",
        ),
        (
            vec![("OMPI_COMM_WORLD_LOCAL_RANK", "0")],
            "makes it number 1 on node 5",
        ),
        (
            vec![("OMPI_COMM_WORLD_RANK", "3")],
            "not an address of this machine",
        ),
        (
            vec![("OMPI_COMM_WORLD_RANK", "4")],
            "OMPI_COMM_WORLD_RANK is `4`",
        ),
        (
            vec![("OMPI_COMM_WORLD_SIZE", "")],
            "OMPI_COMM_WORLD_SIZE is not set",
        ),
    ] {
        refused(&[&OPEN_MPI, &two, &changes], wanted);
    }
    // Slurm's names are found in a hosts file by name=.
    written("7 10.0.0.1 name=n03\n9 10.0.0.2 name=m1\n8 10.0.0.3 name=n04\n2 10.0.0.4 name=m2");
    let hosts = [("DIPOLE_HOSTS", path)];
    assert_eq!(
        nodes(&read(&[&SLURM, &hosts]).unwrap().job),
        [7, 7, 8, 8, 9, 9, 2]
    );
    written("7 10.0.0.1 name=n03");
    refused(&[&SLURM, &hosts], "does not have its node n04");
}

const FLUX: [(&str, &str); 6] = [
    ("PMI_RANK", "1"),
    ("PMI_SIZE", "4"),
    ("FLUX_TASK_RANK", "1"),
    ("FLUX_JOB_SIZE", "4"),
    ("FLUX_JOB_NNODES", "1"),
    ("FLUX_JOB_ID", "ƒabcDEF12"),
];

#[test]
fn tasks_of_a_flux_job_know_its_name_and_whether_it_is_on_one_node() {
    let launched = read(&[&FLUX]).unwrap();
    assert_eq!(launched.nodes, Nodes::Here);
    assert_eq!((launched.job.rank, launched.job.size), (1, 4));
    let peer = [("PMI_RANK", "2"), ("FLUX_TASK_RANK", "2")];
    assert_eq!(read(&[&FLUX, &peer]).unwrap().job.id, launched.job.id);
    let other = [("FLUX_JOB_ID", "ƒabcDEF13")];
    assert_ne!(read(&[&FLUX, &other]).unwrap().job.id, launched.job.id);
    // On several nodes only the hosts file is missing, not the job's number.
    let two = [("FLUX_JOB_NNODES", "2")];
    refused(&[&FLUX, &two], "DIPOLE_HOSTS is not set");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("hosts");
    std::fs::write(&file, "5 127.0.0.1 slots=2\n6 192.0.2.77 slots=2\n").unwrap();
    let hosts = [("DIPOLE_HOSTS", file.to_str().unwrap())];
    let spread = read(&[&FLUX, &two, &hosts]).unwrap().job;
    assert_eq!(
        (nodes(&spread), spread.id),
        (vec![5, 5, 6, 6], launched.job.id)
    );
    refused(
        &[&FLUX, &[("FLUX_JOB_NNODES", "x")]],
        "FLUX_JOB_NNODES is `x`",
    );
    // Another launcher inside the task has ranks and jobs of its own.
    for inner in [
        ("PMI_SIZE", "3"),
        ("PMI_RANK", "0"),
        ("HYDI_CONTROL_FD", "7"),
    ] {
        refused(&[&FLUX, &[inner]], "DIPOLE_JOB is not set");
    }
}

const KUBERNETES: [(&str, &str); 3] = [
    ("JOB_COMPLETION_INDEX", "2"),
    ("DIPOLE_SIZE", "3"),
    ("DIPOLE_PEERS_PATTERN", "sum-{}.sum"),
];

#[test]
fn a_pod_of_an_indexed_job_is_a_node_of_its_own() {
    let launched = read(&[&KUBERNETES]).unwrap();
    assert_eq!((launched.job.rank, launched.job.size), (2, 3));
    assert_eq!(nodes(&launched.job), [1, 2, 3]);
    let Nodes::Names(names) = launched.nodes else {
        panic!("no names");
    };
    assert_eq!(names.names, ["sum-0.sum", "sum-1.sum", "sum-2.sum"]);
    assert_eq!((names.own, names.port), (Some(2), 7411));
    for (variable, value, wanted) in [
        (
            "DIPOLE_SIZE",
            "",
            "DIPOLE_SIZE is not set; set it for the container",
        ),
        (
            "DIPOLE_SIZE",
            "2",
            "JOB_COMPLETION_INDEX is `2`, expected a number from 0 to 1",
        ),
        (
            "DIPOLE_PEERS_PATTERN",
            "",
            "DIPOLE_PEERS_PATTERN is not set",
        ),
        (
            "DIPOLE_PEERS_PATTERN",
            "sum",
            "expected a host name with `{}` once",
        ),
    ] {
        refused(&[&KUBERNETES, &[(variable, value)]], wanted);
    }
}

#[test]
fn a_node_that_is_given_must_be_the_launchers() {
    let job = |node| Job::from_variables(lookup(&[&SLURM, &[("DIPOLE_NID", node)]]));
    assert!(job("3").is_ok());
    let error = job("4").unwrap_err().to_string();
    assert!(error.contains("DIPOLE_NID is `4`, expected 3"), "{error}");
}

#[test]
fn an_invalid_job_number_is_refused_without_a_launcher_too() {
    for variables in [
        &[("DIPOLE_JOB", "abc")][..],
        &[("DIPOLE_JOB", "abc"), ("DIPOLE_NID", "1")],
    ] {
        let get = |name: &str| {
            let found = variables.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let error = placement_from(&get, Services::Avoid)
            .expect_err("no number")
            .to_string();
        assert!(error.contains("DIPOLE_JOB is `abc`"), "{error}");
    }
}
