//! Sets the soname of the shared library.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // The number is the version of the binary interface; programs are linked to this name.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libdipole.so.0");
    // A thread of the library may still run when a program calls dlclose.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
