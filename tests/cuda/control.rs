//! The controls of the simulated driver, found by symbol. The benchmark `cuda` uses them too.

/// Calls a control of the simulated driver by its name.
macro_rules! control {
    ($name:ident($($argument:expr => $type:ty),*) -> $result:ty) => {{
        type Control = unsafe extern "C" fn($($type),*) -> $result;
        let name = concat!(stringify!($name), "\0");
        let program = libloading::os::unix::Library::this();
        // SAFETY: the control has this signature (crates/simulated-cuda/src/control.rs), and the library that holds it is linked
        // into this program.
        unsafe {
            let control = program.get::<Control>(name.as_bytes()).expect(name);
            control($($argument),*)
        }
    }};
}
