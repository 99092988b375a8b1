//! Builds all bugs into one copy of the sources; a variable of the environment selects one of them
//! at run time.
//!
//! A function with bugs gets one body per bug, next to its own:
//!
//! ```text
//! fn name() { match crate::planted::chosen() { 7 => { .. } 8 => { .. } _ => { .. } } }
//! ```
//!
//! Whole bodies are exchanged, so a snippet need be neither an expression nor a statement, and the
//! snippets of two bugs may overlap. Only xtask knows this code; the real sources have no trace of
//! it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};

use syn::visit::Visit;

use super::list::Mutant;

/// The variable that selects a bug by name. Programs refuse no variable that they do not know.
pub(super) const VARIABLE: &str = "PLANTED_BUG";
/// A file of the copy that lists the variables which tests pass on to isolated programs.
pub(super) const ISOLATION: &str = "crates/testbed/src/isolated.rs";

/// Files of the copy that differ from the workspace, with their contents.
///
/// # Errors
/// A bug does not fit its file; the text names it and contains advice.
pub(super) fn switched(
    mutants: &[&Mutant],
    read: impl Fn(&Path) -> Result<String, String>,
) -> Result<BTreeMap<PathBuf, String>, String> {
    let mut by_file: BTreeMap<PathBuf, Vec<&Mutant>> = BTreeMap::new();
    for mutant in mutants {
        by_file.entry(mutant.file.into()).or_default().push(mutant);
    }
    let mut files = BTreeMap::new();
    let mut roots = BTreeSet::new();
    let mut refused = Vec::new();
    for (path, there) in by_file {
        match with_bodies(&read(&path)?, &there) {
            Ok(text) => drop(files.insert(path.clone(), text)),
            Err(reasons) => refused.push(reasons),
        }
        roots.insert(crate_root(&path)?);
    }
    if !refused.is_empty() {
        return Err(refused.join("\n"));
    }
    for path in roots {
        let source = match files.remove(&path) {
            Some(source) => source,
            None => read(&path)?,
        };
        files.insert(path, source + SELECTION);
    }
    let isolation = PathBuf::from(ISOLATION);
    let source = match files.remove(&isolation) {
        Some(source) => source,
        None => read(&isolation)?,
    };
    files.insert(isolation, passed_on(&source)?);
    Ok(files)
}

/// The root module of the crate that a file belongs to. Files below `src` of a crate with a library
/// belong to the library.
fn crate_root(file: &Path) -> Result<PathBuf, String> {
    let mut parts = file.iter();
    let folder: PathBuf = parts.by_ref().take_while(|part| *part != "src").collect();
    let source = folder.join("src");
    let root = ["lib.rs", "main.rs"].map(|name| source.join(name));
    let there = root
        .into_iter()
        .find(|root| crate::command::root().join(root).is_file());
    there.ok_or_else(|| format!("{} does not belong to a crate", file.display()))
}

/// The number by which the copy knows a bug. It depends on nothing else, so that a change of the
/// list changes few files of the copy (FNV-1a).
pub(super) fn number(name: &str) -> u64 {
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    name.bytes().fold(0xcbf2_9ce4_8422_2325, mix)
}

/// The module that reads the variable once. `proto` has no `std` of its own.
const SELECTION: &str = r#"
#[allow(missing_docs, unreachable_pub, clippy::all)]
pub(crate) mod planted {
    extern crate std;
    use core::sync::atomic::{AtomicU64, Ordering};

    static CHOSEN: AtomicU64 = AtomicU64::new(0);

    #[inline]
    pub(crate) fn chosen() -> u64 {
        match CHOSEN.load(Ordering::Relaxed) {
            0 => read(),
            number => number,
        }
    }

    #[cold]
    fn read() -> u64 {
        let name = std::env::var("PLANTED_BUG").unwrap_or_default();
        let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        let number = name.bytes().fold(0xcbf2_9ce4_8422_2325, mix);
        CHOSEN.store(number, Ordering::Relaxed);
        number
    }
}
"#;

/// The list of variables that isolated programs see, with that of the bug.
fn passed_on(source: &str) -> Result<String, String> {
    let (before, rest) = source
        .split_once("const KEPT: [&str; ")
        .ok_or_else(|| format!("{ISOLATION} has no list KEPT; fit xtask/src/mutants/switch.rs"))?;
    let fitted = rest.split_once("] = [").and_then(|(count, names)| {
        let count = count.parse::<usize>().ok()? + 1;
        Some(format!(
            "{before}const KEPT: [&str; {count}] = [\"{VARIABLE}\", {names}"
        ))
    });
    fitted.ok_or_else(|| format!("{ISOLATION}: KEPT is not an array of names"))
}

/// A function that is not within another one.
struct Function {
    /// The bytes between its braces.
    body: Range<usize>,
    name: String,
    /// Why it can have only one body.
    refusal: Option<&'static str>,
}

#[derive(Default)]
struct Functions(Vec<Function>);

impl Functions {
    fn add(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let braces = block.brace_token.span;
        self.0.push(Function {
            body: braces.open().byte_range().end..braces.close().byte_range().start,
            name: signature.ident.to_string(),
            refusal: refusal(signature),
        });
    }
}

fn refusal(signature: &syn::Signature) -> Option<&'static str> {
    struct Opaque(bool);
    impl Visit<'_> for Opaque {
        fn visit_type_impl_trait(&mut self, _: &syn::TypeImplTrait) {
            self.0 = true;
        }
    }
    let mut opaque = Opaque(false);
    opaque.visit_return_type(&signature.output);
    match (signature.constness, opaque.0) {
        (Some(_), _) => Some("is a const fn, which cannot choose at run time"),
        (None, true) => Some("returns an `impl` type, which two bodies do not share"),
        (None, false) => None,
    }
}

// Functions within functions are part of the outer one and not visited.
impl<'ast> Visit<'ast> for Functions {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.add(&item.sig, &item.block);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.add(&item.sig, &item.block);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.add(&item.sig, block);
        }
    }
}

/// The index of the function that a bug changes, and its body with the bug.
fn body_with(
    source: &str,
    functions: &[Function],
    mutant: &Mutant,
) -> Result<(usize, String), String> {
    let place = mutant.place(source)?;
    let around = |body: &Range<usize>| body.start <= place.start && place.end <= body.end;
    let at = functions.iter().position(|function| around(&function.body));
    let at = at.ok_or_else(|| {
        format!(
            "its snippet is not within the body of one function of {}, so it cannot be chosen at \
             run time; change a function instead",
            mutant.file
        )
    })?;
    let Function {
        body,
        name,
        refusal,
    } = &functions[at];
    if let Some(refusal) = refusal {
        return Err(format!(
            "{name} in {} {refusal}; change one of its callers instead",
            mutant.file
        ));
    }
    let (before, after) = (
        &source[body.start..place.start],
        &source[place.end..body.end],
    );
    let changed = format!("{before}{}{after}", mutant.replacement);
    syn::parse_str::<syn::Block>(&format!("{{{changed}}}"))
        .map_err(|cause| format!("its replacement does not parse: {cause}"))?;
    Ok((at, changed))
}

/// A file whose functions have one body per bug.
fn with_bodies(source: &str, mutants: &[&Mutant]) -> Result<String, String> {
    let parsed = syn::parse_file(source).map_err(|cause| {
        let file = mutants.first().map_or("", |mutant| mutant.file);
        format!("{file}:{}: {cause}", cause.span().start().line)
    })?;
    let mut functions = Functions::default();
    functions.visit_file(&parsed);
    let (mut arms, mut refused) = (BTreeMap::<usize, String>::new(), Vec::new());
    for mutant in mutants {
        match body_with(source, &functions.0, mutant) {
            Ok((at, body)) => {
                let arm = arms.entry(at).or_default();
                let (name, number) = (mutant.name, number(mutant.name));
                let _written = write!(arm, "\n/* {name} */ {number} => {{{body}}}");
            }
            Err(reason) => refused.push(format!("mutant {}: {reason}", mutant.name)),
        }
    }
    if !refused.is_empty() {
        return Err(refused.join("\n"));
    }
    let mut switched = source.to_owned();
    for (at, arms) in arms.into_iter().rev() {
        let body = functions.0[at].body.clone();
        let own = &source[body.clone()];
        let text = format!(" match crate::planted::chosen() {{{arms}\n_ => {{{own}}}}} ");
        switched.replace_range(body, &text);
    }
    Ok(switched)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutants::suite::Suite;

    fn mutant(name: &'static str, snippet: &'static str, replacement: &'static str) -> Mutant {
        Mutant {
            name,
            effect: "",
            file: "crates/proto/src/lib.rs",
            suite: Suite::Simulator,
            snippet,
            replacement,
        }
    }

    const SOURCE: &str = "const LIMIT: u32 = 7;
impl Thing { fn is_below(&self, of: u32) -> bool { let of = of + 1; of < LIMIT } }
const fn twice(of: u32) -> u32 { of * 2 }
fn all() -> Vec<impl Sized> { vec![8] }
fn other() { fn inner() -> u32 { 5 } inner(); }
";

    fn bodies(mutants: &[Mutant]) -> Result<String, String> {
        with_bodies(SOURCE, &mutants.iter().collect::<Vec<_>>())
    }

    #[test]
    fn snippets_of_one_function_may_overlap_and_need_not_be_expressions() {
        let switched = bodies(&[
            mutant("no-let", "let of = of + 1;", ""),
            mutant("other-let", "of + 1; of <", "of; of <="),
            mutant("inner", "5", "6"),
        ]);
        let switched = switched.expect("all fit");
        syn::parse_file(&switched).expect("it parses");
        for (name, body) in [
            ("no-let", "  of < LIMIT "),
            ("other-let", " let of = of; of <= LIMIT "),
            ("inner", " fn inner() -> u32 { 6 } inner(); "),
        ] {
            let arm = format!("/* {name} */ {} => {{{body}}}", number(name));
            assert!(switched.contains(&arm), "{arm} in\n{switched}");
        }
        assert!(switched.contains("_ => { let of = of + 1; of < LIMIT }"));
    }

    #[test]
    fn bugs_that_cannot_be_chosen_at_run_time_are_refused_with_their_names() {
        for (wrong, reason) in [
            (
                mutant("constant", "u32 = 7", "u32 = 8"),
                "the body of one function",
            ),
            (
                mutant("two", "of < LIMIT } }\nconst", "}}\nconst"),
                "the body of one function",
            ),
            (mutant("fixed", "of * 2", "of * 3"), "a const fn"),
            (mutant("opaque", "vec![8]", "vec![9]"), "an `impl` type"),
            (mutant("broken", "of + 1;", "of +;"), "does not parse"),
            (mutant("absent", "of + 2;", ""), "occurs 0 times"),
            (mutant("double", "of:", "of :"), "occurs 2 times"),
        ] {
            let name = wrong.name;
            let error = bodies(&[wrong]).expect_err(name);
            assert!(error.contains(name) && error.contains(reason), "{error}");
        }
    }

    #[test]
    fn every_bug_of_the_list_fits_the_code_and_the_copy_parses() {
        let mutants: Vec<_> = crate::mutants::list::all().collect();
        let read = |path: &Path| {
            std::fs::read_to_string(crate::command::root().join(path)).map_err(|it| it.to_string())
        };
        let files = switched(&mutants, read).unwrap_or_else(|error| panic!("{error}"));
        for (path, text) in &files {
            let parsed = syn::parse_file(text);
            assert!(parsed.is_ok(), "{}: {:?}", path.display(), parsed.err());
        }
        for mutant in &mutants {
            let text = &files[Path::new(mutant.file)];
            assert!(
                text.contains(&format!("/* {} */", mutant.name)),
                "{}",
                mutant.name
            );
        }
        assert!(files[Path::new(ISOLATION)].contains(VARIABLE));
        assert!(SELECTION.contains(VARIABLE));
    }
}
