//! libfabric unloads its providers at exit, while threads of a node may still run: their code
//! stays.
fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rerun-if-changed=build.rs");
}
