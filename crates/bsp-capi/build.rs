//! Names the shared library for the dynamic linker.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // The number is the version of the binary interface: programs ask for this name.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libbsp.so.0");
    // Functions of the library are called when a program exits.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
