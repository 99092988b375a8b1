//! Sets the soname of the shared library.

fn main() {
    // The number is the version of the binary interface.
    // The number is the version of the binary interface: programs ask for this name.
    // Unloading the library would remove functions that are called when a program exits.
    // Functions of the library are called when a program exits.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
