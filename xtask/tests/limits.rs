//! Limits on the size of files, functions, structs and parameter lists, so that each of them
//! stays small enough to be read in one sitting.

#![allow(missing_docs, reason = "tests")]

#[path = "common/sources.rs"]
mod sources;

use std::collections::BTreeSet;
use std::path::Path;

use sources::{read, with_extensions};
use syn::spanned::Spanned;
use syn::visit::Visit;

/// Lines of a file, with its unit tests.
const FILE_LINES: usize = 700;
/// Lines of a function from its signature to its closing brace.
const FUNCTION_LINES: usize = 80;
/// Named fields of a struct.
const STRUCT_FIELDS: usize = 20;
/// Parameters of a function without `self`; each member of a tuple counts.
const PARAMETERS: usize = 6;

/// Places that may exceed a limit, as `path` or `path: item`, each with the reason.
const EXCEPTIONS: &[(&str, &str)] = &[
    (
        "crates/bench/src/results.rs: BenchRow",
        "one field per figure of a JSON result",
    ),
    (
        "crates/bench/src/bsp/row.rs: Row",
        "one field per figure of a JSON result",
    ),
    (
        "crates/lab/src/pacing/mod.rs: PacingRow",
        "one field per figure of a JSON result",
    ),
    (
        "crates/lab/src/variance/mod.rs: VarianceRow",
        "one field per figure of a JSON result",
    ),
    (
        "crates/capi/tests/header.rs: layouts",
        "a table of all structs that C shares",
    ),
    (
        "crates/fabric/tests/abi.rs: facts",
        "a table of all constants and structs that libfabric shares",
    ),
    (
        "crates/proto/src/config.rs: Config",
        "independent parameters of the specification",
    ),
    (
        "crates/proto/tests/protocol/pair/mod.rs: Wire",
        "independent faults and counters of a test network",
    ),
    (
        "crates/node/tests/simulation/totals.rs: Totals",
        "one counter per kind of event, added up by name",
    ),
];

/// Everything in one file that exceeds a limit.
struct Excess<'a> {
    path: &'a Path,
    /// Types around the current item, innermost last.
    scope: Vec<String>,
    found: Vec<(String, String)>,
}

impl Excess<'_> {
    fn report(&mut self, item: &str, what: String) {
        let name = [&self.scope.join("::"), item].join("::");
        let name = name.trim_start_matches("::");
        self.found
            .push((format!("{}: {name}", self.path.display()), what));
    }

    fn check_function(&mut self, signature: &syn::Signature, whole: proc_macro2::Span) {
        let name = signature.ident.to_string();
        let lines = whole.end().line - signature.span().start().line + 1;
        if lines > FUNCTION_LINES {
            self.report(&name, format!("{lines} lines, at most {FUNCTION_LINES}"));
        }
        let parameters: usize = signature.inputs.iter().map(values).sum();
        // Functions of a C interface have the parameters of their header.
        if parameters > PARAMETERS && signature.abi.is_none() {
            let what = format!("{parameters} parameters, at most {PARAMETERS}");
            self.report(&name, what);
        }
    }
}

/// Values that a parameter carries.
fn values(parameter: &syn::FnArg) -> usize {
    match parameter {
        syn::FnArg::Receiver(_) => 0,
        syn::FnArg::Typed(typed) => members(&typed.ty),
    }
}

/// Members of a tuple, in tuples within it, too; 1 for any other type.
fn members(kind: &syn::Type) -> usize {
    match kind {
        syn::Type::Tuple(tuple) => tuple.elems.iter().map(members).sum(),
        syn::Type::Reference(reference) => members(&reference.elem),
        _ => 1,
    }
}

impl<'ast> Visit<'ast> for Excess<'_> {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.check_function(&item.sig, item.span());
        syn::visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.check_function(&item.sig, item.span());
        syn::visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        self.check_function(&item.sig, item.span());
        syn::visit::visit_trait_item_fn(self, item);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let syn::Type::Path(path) = &*item.self_ty else {
            return syn::visit::visit_item_impl(self, item);
        };
        let name = path.path.segments.last().expect("a path has a name");
        self.scope.push(name.ident.to_string());
        syn::visit::visit_item_impl(self, item);
        self.scope.pop();
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        if let syn::Fields::Named(fields) = &item.fields {
            let count = fields.named.len();
            // Structs that C reads have the fields of its header.
            let is_c = item.attrs.iter().any(|attribute| {
                attribute.path().is_ident("repr")
                    && matches!(&attribute.meta, syn::Meta::List(list) if list.tokens.to_string().contains('C'))
            });
            if count > STRUCT_FIELDS && !is_c {
                let what = format!("{count} fields, at most {STRUCT_FIELDS}");
                self.report(&item.ident.to_string(), what);
            }
        }
    }
}

/// Items that exceed a limit in the text of a file.
fn excess(path: &Path, text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let lines = text.lines().count();
    if lines > FILE_LINES {
        let what = format!("{lines} lines, at most {FILE_LINES}");
        found.push((path.display().to_string(), what));
    }
    let file = syn::parse_file(text).unwrap_or_else(|cause| panic!("{}: {cause}", path.display()));
    let mut visitor = Excess {
        path,
        scope: Vec::new(),
        found,
    };
    visitor.visit_file(&file);
    visitor.found
}

#[test]
fn files_functions_structs_and_parameter_lists_stay_small() {
    let (mut unused, mut report) = (
        EXCEPTIONS
            .iter()
            .map(|(place, _)| *place)
            .collect::<BTreeSet<_>>(),
        String::new(),
    );
    let files = with_extensions(&["rs"]);
    assert!(files.len() > 100, "the sources are found");
    for path in files {
        for (place, what) in excess(&path, &read(&path)) {
            if EXCEPTIONS.iter().any(|(known, _)| *known == place) {
                unused.remove(place.as_str());
            } else {
                report += &format!("{place}: {what}\n");
            }
        }
    }
    assert!(
        report.is_empty(),
        "over the limits (split it, or justify it in EXCEPTIONS):\n{report}"
    );
    assert!(unused.is_empty(), "exceptions without a cause: {unused:?}");
}

#[test]
fn each_limit_is_noticed() {
    let path = Path::new("x.rs");
    let long = "let _ = 1;\n".repeat(FUNCTION_LINES);
    let fields: String = (0..=STRUCT_FIELDS).map(|n| format!("f{n}: u8,")).collect();
    let text = format!(
        "fn long() {{\n{long}}}\nstruct Big {{ {fields} }}\n\
         struct S; impl S {{ fn wide(&self, a: u8, (b, c): (u8, u8), d: u8, e: &(u8, u8, u8)) {{}} }}"
    );
    let places: Vec<String> = excess(path, &text).into_iter().map(|(p, _)| p).collect();
    assert_eq!(places, ["x.rs: long", "x.rs: Big", "x.rs: S::wide"]);
    let longer = "\n".repeat(FILE_LINES + 1);
    assert_eq!(excess(path, &longer).len(), 1);
}
