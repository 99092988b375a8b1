//! Functions and lines of stack addresses, from the programs' debug information.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use addr2line::Loader;
use dipole_bsp::trace::{Frame, Module};
use object::{Object, ObjectSegment};

/// A call on a stack.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Function {
    pub(super) name: String,
    /// File and line, if they are known.
    pub(super) place: Option<String>,
}

/// Functions that start programs and are not part of them.
const RUNTIME: [&str; 9] = [
    "_start",
    "__libc_start_main",
    "__libc_start_call_main",
    "std::rt::",
    "std::panic",
    "std::sys::backtrace::__rust_begin_short_backtrace",
    "core::ops::function::FnOnce::call_once",
    "core::ops::function::impls::",
    "__rust_try",
];
/// Calls that end a superstep and record the stack.
const LIBRARY: [&str; 10] = [
    "backtrace::",
    "dipole_trace::",
    "<dipole_trace::",
    "dipole_bsp::",
    "<dipole_bsp::",
    "dipole_bsp_capi::",
    "core::",
    "<core::",
    "std::",
    "alloc::",
];
/// File name of the library of C programs.
const LIBRARY_FILE: &str = "libbsp.so";

/// Libraries with calls that wait: Dipole's (also for Python), MPI's (also for Fortran), libfabric.
const WAITING_FILES: [&str; 6] = [
    "libdipole",
    "_dipole.",
    "libmpi",
    "libpmpi",
    "libfmpi",
    "libfabric",
];
/// Name of code that lies in no module, such as the end of a stack.
const NO_FILE: &str = "code of no file";
/// The library in a Rust program, which contains it.
const WAITING: [&str; 2] = ["dipole_", "<dipole_"];

/// Symbols of one trace's modules.
pub(super) struct Symbols<'a> {
    modules: &'a [Module],
    loaded: BTreeMap<u32, Option<Code>>,
    known: BTreeMap<(u32, u64), Vec<Function>>,
    /// Files that are missing or were modified since.
    pub(super) missing: Vec<String>,
}

struct Code {
    loader: Loader,
    /// Each segment: its file offset, length and address.
    segments: Vec<(u64, u64, u64)>,
}

impl Code {
    fn load(module: &Module) -> Option<Code> {
        let path = Path::new(&module.path);
        let now = std::fs::metadata(path).ok()?;
        if !now.is_file() || (now.size(), now.mtime()) != (module.bytes, module.written_s) {
            return None;
        }
        let bytes = std::fs::read(path).ok()?;
        let file = object::File::parse(&*bytes).ok()?;
        let segments = file.segments().map(|segment| {
            let (at, length) = segment.file_range();
            (at, length, segment.address())
        });
        Some(Code {
            segments: segments.collect(),
            loader: Loader::new(path).ok()?,
        })
    }

    /// The functions at an offset of the file, innermost first; several if some are inlined.
    fn functions(&self, offset: u64) -> Option<Vec<Function>> {
        let mut segments = self.segments.iter();
        let (at, _, address) =
            segments.find(|(at, length, _)| (*at..at.saturating_add(*length)).contains(&offset))?;
        let address = offset - at + address;
        let mut found = Vec::new();
        if let Ok(mut frames) = self.loader.find_frames(address) {
            while let Ok(Some(frame)) = frames.next() {
                let name = frame.function.as_ref().and_then(|name| {
                    let name = name.demangle().ok()?;
                    Some(name.into_owned())
                });
                let place = frame.location.and_then(|location| {
                    let file = location.file?.rsplit('/').next()?;
                    Some(format!("{file}:{}", location.line?))
                });
                let name = name.or_else(|| self.symbol(address));
                found.extend(name.map(|name| Function { name, place }));
            }
        }
        if found.is_empty() {
            found.extend(
                self.symbol(address)
                    .map(|name| Function { name, place: None }),
            );
        }
        (!found.is_empty()).then_some(found)
    }

    fn symbol(&self, address: u64) -> Option<String> {
        let name = self.loader.find_symbol(address)?;
        Some(addr2line::demangle_auto(name.into(), None).into_owned())
    }
}

impl<'a> Symbols<'a> {
    pub(super) fn of(modules: &'a [Module]) -> Symbols<'a> {
        Symbols {
            modules,
            loaded: BTreeMap::new(),
            known: BTreeMap::new(),
            missing: Vec::new(),
        }
    }

    /// The program's own calls on a stack, outermost first.
    pub(super) fn calls(&mut self, stack: &[Frame]) -> Vec<Function> {
        let mut calls: Vec<Function> = Vec::new();
        for frame in stack {
            let module = self.modules.get(frame.module as usize);
            let file = module.and_then(|module| module.path.rsplit('/').next());
            if !file.is_some_and(|file| file.starts_with(LIBRARY_FILE)) {
                calls.extend(self.functions(*frame));
            }
        }
        let begins = |name: &str, parts: &[&str]| parts.iter().any(|part| name.starts_with(part));
        let library = calls.iter().take_while(|call| begins(&call.name, &LIBRARY));
        let library = library.count();
        calls.drain(..library);
        without_runtime(calls)
    }

    /// The library call in which a program waits, and the program's own calls that led there, outermost
    /// first.
    pub(super) fn waiting(&mut self, stack: &[Frame]) -> (String, Vec<Function>) {
        let is_library = |frame: &&Frame| {
            let module = self.modules.get(frame.module as usize);
            let file = module.and_then(|module| module.path.rsplit('/').next());
            file.is_some_and(|file| WAITING_FILES.iter().any(|name| file.starts_with(name)))
        };
        // Except for signal handlers, library calls come after all of the program's own.
        let Some(at) = stack.iter().rposition(|frame| is_library(&frame)) else {
            let calls = stack.iter().flat_map(|frame| self.functions(*frame));
            return waiting_in_rust(calls.collect());
        };
        let call = self.functions(stack[at]).pop();
        let program = stack[at + 1..]
            .iter()
            .flat_map(|frame| self.functions(*frame));
        let program = without_runtime(program.collect());
        let name = call.map_or_else(String::new, |call| call.name);
        // The profiling name that MPI has for each call.
        let name = name
            .strip_prefix("PMPI_")
            .map_or(name.clone(), |rest| format!("MPI_{rest}"));
        (name, program)
    }

    fn functions(&mut self, frame: Frame) -> Vec<Function> {
        let key = (frame.module, frame.offset);
        if let Some(known) = self.known.get(&key) {
            return known.clone();
        }
        let module = self.modules.get(frame.module as usize);
        let mut found = module.map_or_else(
            || vec![unknown(NO_FILE, frame.offset)],
            |module| {
                let name = module.path.rsplit('/').next().unwrap_or_default();
                let missing = &mut self.missing;
                let code = self.loaded.entry(frame.module).or_insert_with(|| {
                    let code = Code::load(module);
                    if code.is_none() {
                        missing.push(module.path.clone());
                    }
                    code
                });
                let functions = code.as_ref().and_then(|code| code.functions(frame.offset));
                functions.unwrap_or_else(|| vec![unknown(name, frame.offset)])
            },
        );
        for function in &mut found {
            // Any program may have this name.
            function.name = function.name.replace(char::is_control, "\u{fffd}");
        }
        self.known.insert(key, found.clone());
        found
    }
}

/// The library call in which a Rust program waits, and its own calls, outermost first.
fn waiting_in_rust(mut calls: Vec<Function>) -> (String, Vec<Function>) {
    let begins =
        |call: &Function, parts: &[&str]| parts.iter().any(|part| call.name.starts_with(part));
    let library = calls
        .iter()
        .take_while(|call| begins(call, &LIBRARY) || begins(call, &WAITING))
        .count();
    let entry = calls[..library]
        .iter()
        .rposition(|call| begins(call, &WAITING));
    let name = entry.map_or_else(
        || "a call without a name".to_owned(),
        |at| method(&calls[at].name),
    );
    calls.drain(..entry.map_or(0, |at| at + 1));
    (name, without_runtime(calls))
}

/// `Type::method` of a path such as `<krate::module::Type>::method`.
fn method(path: &str) -> String {
    let path = path.split("::{{closure}}").next().unwrap_or(path);
    match path.rsplit_once("::") {
        None => path.to_owned(),
        Some((owner, name)) => {
            let owner = owner.trim_end_matches('>').rsplit("::").next();
            format!("{}::{name}", owner.unwrap_or_default())
        }
    }
}

/// Removes startup functions and reverses the order.
fn without_runtime(mut calls: Vec<Function>) -> Vec<Function> {
    let begins = |name: &str, parts: &[&str]| parts.iter().any(|part| name.starts_with(part));
    let main = calls.iter().position(|call| call.name == "main");
    if let Some(main) = main.filter(|_| !calls.iter().any(|call| call.name.ends_with("::main"))) {
        calls.truncate(main + 1);
    }
    while calls.last().is_some_and(|call| {
        begins(&call.name, &RUNTIME)
            || call.name == "main" && calls.len() > 1 && {
                calls.iter().any(|call| call.name.ends_with("::main"))
            }
            || call.name.starts_with("libc.so")
            || call.name.starts_with(NO_FILE)
    }) {
        calls.pop();
    }
    calls.reverse();
    calls
}

fn unknown(module: &str, offset: u64) -> Function {
    Function {
        name: format!("{module}+{offset:#x}"),
        place: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_of_a_rust_program_is_the_first_of_the_library() {
        let stack = [
            "backtrace::backtrace::trace",
            "dipole_trace::waits::recorder::WaitRecorder::record",
            "dipole_node::endpoint::receive::<impl dipole_node::endpoint::Endpoint>::receive_until",
            "<dipole_node::endpoint::Endpoint>::receive",
            "store::serve",
            "store::main",
            "core::ops::function::FnOnce::call_once",
            "main",
            "libc.so.6+0x27249",
            "_start",
            "code of no file+0x0",
        ];
        let calls = |names: &[&str]| -> Vec<Function> {
            let names = names.iter().map(|name| Function {
                name: (*name).to_owned(),
                place: None,
            });
            names.collect()
        };
        let (name, path) = waiting_in_rust(calls(&stack));
        assert_eq!(name, "Endpoint::receive");
        assert_eq!(path, calls(&["store::main", "store::serve"]));
        let (name, path) = waiting_in_rust(calls(&["main"]));
        assert_eq!(name, "a call without a name");
        assert_eq!(path, calls(&["main"]));
        let impls = "dipole_node::endpoint::<impl dipole_node::endpoint::Endpoint>::send";
        assert_eq!(method(impls), "Endpoint::send");
        assert_eq!(
            method("dipole_group::calls::barrier::{{closure}}"),
            "calls::barrier"
        );
    }

    #[test]
    fn places_of_this_program_have_names_and_those_of_files_written_since_have_not() {
        let path = std::env::current_exe().expect("this program");
        let of_file = std::fs::metadata(&path).expect("it is there");
        let mut module = Module {
            path: path.to_string_lossy().into_owned(),
            bytes: of_file.size(),
            written_s: of_file.mtime(),
        };
        let code = Code::load(&module).expect("the module is unchanged");
        let named = code.segments.iter().any(|(at, length, _)| {
            let places = (0..*length).step_by(4096).map(|within| at + within);
            places
                .filter_map(|place| code.functions(place))
                .next()
                .is_some()
        });
        assert!(named, "{:?}", code.segments);
        module.written_s -= 1;
        assert!(Code::load(&module).is_none());
    }
}
