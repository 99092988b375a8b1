//! Sets the soname of the shared library.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // The number is the version of the binary interface; programs are linked to this name.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libbsp.so.0");
    // The library has functions that run when a program exits, so it must not be unloaded.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
