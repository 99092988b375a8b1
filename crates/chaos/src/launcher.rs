//! Recognises commands that start ranks on several nodes themselves.

use std::ffi::OsString;
use std::path::Path;

/// Programs that start ranks on several nodes themselves.
const LAUNCHERS: [&str; 7] = [
    "mpirun",
    "mpiexec",
    "mpiexec.hydra",
    "orterun",
    "prterun",
    "mpirun.openmpi",
    "mpirun.mpich",
];
/// Options of these launchers before a number of ranks.
const RANK_OPTIONS: [&str; 5] = ["-n", "-np", "--np", "-c", "--ranks"];

fn base_name(word: &OsString) -> Option<&str> {
    Path::new(word).file_name()?.to_str()
}

/// True for a command that starts its own ranks.
pub(crate) fn is_launcher(command: &[OsString]) -> bool {
    let words = command.iter().take(2).filter_map(base_name);
    match words.collect::<Vec<_>>()[..] {
        ["dipole", "run"] => true,
        [first, ..] => LAUNCHERS.contains(&first),
        [] => false,
    }
}

/// The number of ranks on the command line of a launcher, if it is one. Ranks of further programs
/// after a colon are not counted.
pub(crate) fn ranks(command: &[OsString]) -> Option<u32> {
    if !is_launcher(command) {
        return None;
    }
    let words: Vec<&str> = command.iter().filter_map(|word| word.to_str()).collect();
    let mut pairs = words.windows(2);
    let found = pairs.find(|pair| RANK_OPTIONS.contains(&pair[0]))?;
    found[1].parse().ok().filter(|ranks| *ranks > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn launchers_and_their_ranks_are_recognised() {
        for line in [
            "mpirun -n 4 a",
            "/usr/bin/mpiexec -np 4 a",
            "./dipole run -n 4 a",
        ] {
            assert!(is_launcher(&words(line)), "{line}");
            assert_eq!(ranks(&words(line)), Some(4), "{line}");
        }
        for line in [
            "./program",
            "dipole send 2:7",
            "mpirun.sh -n 4",
            "sh -c mpirun",
        ] {
            assert!(!is_launcher(&words(line)), "{line}");
        }
        assert_eq!(ranks(&words("mpirun a")), None);
        assert_eq!(ranks(&words("mpirun -n many a")), None);
        assert_eq!(ranks(&words("head -n 3 a")), None);
        assert!(!is_launcher(&[]));
    }
}
