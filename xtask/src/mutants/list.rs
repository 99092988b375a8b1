//! Lists the bugs that can be injected.

mod agent;
mod bpf;
mod engine;
mod fabric;
mod launch;
mod link;
mod naming;
mod protocol;
mod sockets;
mod supersteps;

use std::ops::Range;

use super::suite::Suite;

/// A bug: a snippet that occurs once in a file, within a function, and its replacement.
pub(crate) struct Mutant {
    pub(crate) name: &'static str,
    /// Fault that the bug causes.
    pub(crate) effect: &'static str,
    /// Path relative to the root of the workspace.
    pub(crate) file: &'static str,
    /// The suite that should find it.
    pub(crate) suite: Suite,
    pub(super) snippet: &'static str,
    pub(super) replacement: &'static str,
}

/// All bugs. Neighbours share suites, so that a few neighbours need few of them built.
pub(crate) fn all() -> impl Iterator<Item = &'static Mutant> {
    [
        protocol::MUTANTS,
        engine::MUTANTS,
        supersteps::MUTANTS,
        link::MUTANTS,
        bpf::MUTANTS,
        naming::MUTANTS,
        agent::MUTANTS,
        launch::MUTANTS,
        fabric::MUTANTS,
        sockets::MUTANTS,
    ]
    .into_iter()
    .flatten()
}

impl Mutant {
    /// The bytes of the snippet in the source.
    ///
    /// # Errors
    /// The snippet does not occur exactly once; the text contains advice.
    pub(super) fn place(&self, source: &str) -> Result<Range<usize>, String> {
        let mut found = source.match_indices(self.snippet);
        match (found.next(), found.count()) {
            (Some((at, text)), 0) => Ok(at..at + text.len()),
            (first, more) => Err(format!(
                "its snippet occurs {} times in {}, not once; fit it to the code in \
                 xtask/src/mutants/list",
                usize::from(first.is_some()) + more,
                self.file
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_no_replacement_equals_its_snippet() {
        let mut numbers = std::collections::HashSet::new();
        for mutant in all() {
            let is_new = numbers.insert(crate::mutants::switch::number(mutant.name));
            assert!(is_new, "{}", mutant.name);
            assert_ne!(mutant.snippet, mutant.replacement, "{}", mutant.name);
        }
    }

    #[test]
    fn every_suite_is_a_test_program_that_exists() {
        for mutant in all() {
            if let Suite::Test(package, test, filter) = mutant.suite {
                let filters: Vec<_> = filter.split_whitespace().collect();
                crate::command::assert_is_test(package, test, &filters);
            }
        }
    }
}
