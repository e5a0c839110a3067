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
