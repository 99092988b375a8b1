//! Sets the soname of the shared library.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // The number is the version of the binary interface.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libbsp.so.0");
    // Unloading the library would remove functions that are called when a program exits.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
