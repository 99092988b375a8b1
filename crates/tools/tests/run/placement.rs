//! Placement of ranks: slots, folders, programs, cores.

use super::*;

#[test]
fn slots_limit_the_ranks_unless_more_are_requested() {
    let folder = tempfile::tempdir().unwrap();
    let hosts = hosts_file(folder.path(), "1 127.0.0.1\n2 127.0.0.2 slots=2\n");
    let too_many = run(&["-n", "4", "--hosts", &hosts, "echo", "started"]);
    assert_eq!((status(&too_many), &*out(&too_many)), (1, ""));
    let said = err(&too_many);
    assert!(
        said.contains("take 3 in all") && said.contains("--oversubscribe"),
        "{said}"
    );
    let script = "echo $DIPOLE_NID";
    let words = [
        "-n",
        "4",
        "--oversubscribe",
        "--hosts",
        &hosts,
        "sh",
        "-c",
        script,
    ];
    let all = run(&words);
    assert_eq!(
        lines(&all),
        ["1", "2"].map(str::to_owned).into(),
        "{}",
        err(&all)
    );
    assert_eq!(out(&all).lines().count(), 4);
}

#[test]
fn ranks_start_in_the_requested_directory_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().canonicalize().unwrap();
    let output = run(&["-n", "2", "--wdir", place.to_str().unwrap(), "pwd"]);
    assert_eq!(out(&output), format!("{0}\n{0}\n", place.display()));
    let output = run(&["-n", "2", "--wdir", "/nowhere/at-all", "echo", "started"]);
    assert_eq!((status(&output), &*out(&output)), (1, ""));
    assert!(
        err(&output).contains("there is no directory /nowhere/at-all"),
        "{}",
        err(&output)
    );
}

#[test]
fn a_job_may_have_several_programs() {
    let say = |word: &str| format!("echo {word} $DIPOLE_RANK of $DIPOLE_SIZE");
    let (first, second) = (say("server"), say("client"));
    let output = run(&[
        "-n", "1", "sh", "-c", &first, ":", "-n", "2", "sh", "-c", &second,
    ]);
    assert_eq!(status(&output), 0, "{}", err(&output));
    let expected = ["server 0 of 3", "client 1 of 3", "client 2 of 3"];
    assert_eq!(lines(&output), expected.map(str::to_owned).into());
    let output = run(&["-n", "1", "true", ":", "-n", "many", "true"]);
    assert_eq!(status(&output), 2);
    assert!(
        err(&output).contains("invalid value 'many'"),
        "{}",
        err(&output)
    );
}

/// The cores in a list such as `0-2,5`.
fn cores(list: &str) -> BTreeSet<usize> {
    let number = |text: &str| text.parse::<usize>().unwrap();
    let parts = list.split(',').flat_map(|part| match part.split_once('-') {
        Some((first, last)) => number(first)..=number(last),
        None => number(part)..=number(part),
    });
    parts.collect()
}

#[test]
fn bound_ranks_run_on_separate_cores_which_are_printed() {
    let script = "echo $DIPOLE_RANK $(grep Cpus_allowed_list /proc/self/status | cut -f 2)";
    let all = std::thread::available_parallelism().unwrap().get();
    let ranks = all.min(3);
    let count = ranks.to_string();
    let output = run(&["-n", &count, "--bind", "sh", "-c", script]);
    assert_eq!(status(&output), 0, "{}", err(&output));
    let mut used = BTreeSet::new();
    for line in lines(&output) {
        let (rank, list) = line.split_once(' ').unwrap();
        let own = cores(list);
        assert!(own.is_disjoint(&used), "{line}");
        let told: Vec<String> = own.iter().map(ToString::to_string).collect();
        let told = format!("rank {rank} on {}", told.join(","));
        assert!(err(&output).contains(&told), "{told}: {}", err(&output));
        used.extend(own);
    }
    assert_eq!(used.len(), all, "every core is used");
    let crowd = (all + 1).to_string();
    let output = run(&["-n", &crowd, "--bind", "true"]);
    assert!(
        err(&output).contains("more ranks than cores"),
        "{}",
        err(&output)
    );
}

#[test]
fn ranks_on_few_cores_are_distributed_evenly_over_them() {
    let script = "echo $DIPOLE_RANK $(grep Cpus_allowed_list /proc/self/status | cut -f 2)";
    let all = std::thread::available_parallelism().unwrap().get();
    for on in [1, all.min(2)] {
        let output = run(&["-n", "16", "--on", &on.to_string(), "sh", "-c", script]);
        assert_eq!(status(&output), 0, "{}", err(&output));
        let mut used: BTreeMap<usize, usize> = BTreeMap::new();
        for line in lines(&output) {
            let (_, list) = line.split_once(' ').unwrap();
            let own = cores(list);
            assert_eq!(own.len(), 1, "{line}");
            *used.entry(own.into_iter().next().unwrap()).or_default() += 1;
        }
        assert_eq!(used.len(), on, "{used:?}");
        assert!(used.values().all(|ranks| *ranks == 16 / on), "{used:?}");
        let said = err(&output);
        assert!(
            said.contains(&format!("ranks 0 to {} on", 16 / on - 1)),
            "{said}"
        );
    }
    assert_eq!(status(&run(&["-n", "2", "--on", "0", "true"])), 2);
}
