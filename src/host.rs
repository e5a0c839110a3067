use std::fs;

/// The name of this machine.
pub(crate) fn name() -> String {
    #[cfg(unix)]
    let name = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    #[cfg(not(unix))]
    let name = "localhost".to_owned();
    name
}

/// A name that no other running machine has, or nothing; the containers of one machine share it.
pub(crate) fn boot() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}
