use std::fs;

/// The name of this machine.
pub(crate) fn name() -> String {
    let files = ["/proc/sys/kernel/hostname", "/etc/hostname"];
    let name = files.iter().find_map(|file| fs::read_to_string(file).ok());
    let name = name
        .or_else(|| std::env::var("HOSTNAME").ok())
        .unwrap_or_default();
    let name = name.trim();
    match name.is_empty() || name.contains(char::is_whitespace) {
        true => "localhost".to_owned(),
        false => name.to_owned(),
    }
}

/// A name that no other running machine has, or nothing; the containers of one machine share it.
pub(crate) fn boot() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}
