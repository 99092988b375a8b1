//! Lists the bugs that can be injected.

mod engine;
mod protocol;
mod supersteps;

use super::suite::Suite;

/// A bug: a snippet that occurs once in a file, and its replacement.
pub(crate) struct Mutant {
    pub(crate) name: &'static str,
    /// Fault that the bug causes.
    pub(crate) effect: &'static str,
    /// Path relative to the root of the workspace.
    pub(crate) file: &'static str,
    /// The suite that should find it.
    pub(crate) suite: Suite,
    snippet: &'static str,
    replacement: &'static str,
}

pub(crate) fn all() -> impl Iterator<Item = &'static Mutant> {
    [protocol::MUTANTS, engine::MUTANTS, supersteps::MUTANTS]
        .into_iter()
        .flatten()
}

impl Mutant {
    /// The source with the bug.
    ///
    /// # Errors
    /// The snippet does not occur exactly once; the text contains advice.
    pub(crate) fn mutate(&self, source: &str) -> Result<String, String> {
        match source.matches(self.snippet).count() {
            1 => Ok(source.replacen(self.snippet, self.replacement, 1)),
            count => Err(format!(
                "mutant {}: its snippet occurs {count} times in {}, not once; \
                 fit it to the code in xtask/src/mutants/list",
                self.name, self.file
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_snippet_occurs_exactly_once() {
        for mutant in all() {
            let path = crate::command::root().join(mutant.file);
            let source = std::fs::read_to_string(path).expect("the file of a mutant");
            let mutated = mutant.mutate(&source);
            assert!(
                mutated.is_ok_and(|mutated| mutated != source),
                "{}",
                mutant.name
            );
        }
    }

    #[test]
    fn names_are_unique_and_a_missing_snippet_is_reported() {
        let mut names = std::collections::HashSet::new();
        for mutant in all() {
            assert!(names.insert(mutant.name), "{}", mutant.name);
            let error = mutant.mutate("fn main() {}").expect_err("no snippet there");
            assert!(error.contains(mutant.name) && error.contains("0 times"));
        }
    }
}
