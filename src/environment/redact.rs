//! Taking out what identifies a machine or a person.

use std::borrow::Cow;
use std::fmt;

use super::finding::Finding;
use super::report::Gpu;
use super::source::Source;

/// Words to be taken out, each with what is put in its place. They are what must not be shown, so `Debug` does not show them either.
#[derive(Clone)]
pub(super) struct Words(Vec<(String, &'static str)>);

impl fmt::Debug for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Words({})", self.0.len())
    }
}

/// The names of user and host, as the variables have them. Names that are everybody's, and short ones, which are parts of other words,
/// stay.
pub(super) fn private_words(source: &Source) -> Words {
    let named = [
        ("USER", "<user>"),
        ("LOGNAME", "<user>"),
        ("SUDO_USER", "<user>"),
        ("USERNAME", "<user>"),
        ("HOSTNAME", "<host>"),
    ];
    let words = named
        .into_iter()
        .filter_map(|(name, instead)| Some((source.variable(name)?.to_owned(), instead)))
        .filter(|(word, _)| {
            word.len() > 2 && !matches!(word.as_str(), "root" | "user" | "localhost")
        });
    Words(words.collect())
}

pub(super) fn apply(gpus: &mut [Gpu], findings: &mut [Finding], words: &Words) {
    let Words(mut words) = words.clone();
    for gpu in gpus {
        if let Some(serial) = gpu.serial.replace("<serial>".to_owned()) {
            words.push((serial, "<serial>"));
        } else {
            gpu.serial = None;
        }
        gpu.uuid = gpu.uuid.as_deref().map(uuids);
    }
    for finding in findings {
        finding.seen = text(&finding.seen, &words);
        for part in [
            &mut finding.leads_to,
            &mut finding.next_step,
            &mut finding.command,
        ] {
            // What is borrowed is the code's own text, and holds nothing of the machine's.
            if let Cow::Owned(owned) = part {
                *owned = text(owned, &words);
            }
        }
    }
}

fn text(text: &str, words: &[(String, &'static str)]) -> String {
    let mut text = program_names(&paths(&uuids(text)));
    for (word, instead) in words.iter().filter(|(word, _)| !word.is_empty()) {
        text = whole_words(&text, word, instead);
    }
    text
}

/// Replaces a word where it is not a part of a longer one.
fn whole_words(text: &str, word: &str, instead: &str) -> String {
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(word) {
        let (before, after) = (&rest[..at], &rest[at + word.len()..]);
        let joins = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
        let is_whole = !joins(
            before
                .chars()
                .next_back()
                .or(result.chars().next_back().filter(|_| before.is_empty())),
        ) && !joins(after.chars().next());
        result.push_str(before);
        result.push_str(if is_whole { instead } else { word });
        rest = after;
    }
    result.push_str(rest);
    result
}

/// Replaces groups of 8, 4, 4, 4 and 12 hexadecimal digits with dashes between them, and beginnings of such behind `GPU-` and `MIG-`.
fn uuids(text: &str) -> String {
    let is_part = |c: char| c.is_ascii_hexdigit() || c == '-';
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(is_part) {
        let end = rest[start..]
            .find(|c: char| !is_part(c))
            .map_or(rest.len(), |length| start + length);
        let (before, run) = (&rest[..start], &rest[start..end]);
        result.push_str(before);
        let named =
            ["GPU", "MIG"].iter().any(|name| before.ends_with(name)) && run.starts_with('-');
        let groups: Vec<_> = run.trim_matches('-').split('-').map(str::len).collect();
        match (named && run.len() > 4, groups.ends_with(&[8, 4, 4, 4, 12])) {
            (true, _) => result.push_str("-<uuid>"),
            (false, true) => result.push_str("<uuid>"),
            _ => result.push_str(run),
        }
        rest = &rest[end..];
    }
    result.push_str(rest);
    result
}

/// Folders that are alike on every machine.
const SYSTEM: [&str; 14] = [
    "/bin",
    "/dev",
    "/etc",
    "/lib",
    "/lib64",
    "/opt/cuda",
    "/proc",
    "/run",
    "/sbin",
    "/sys",
    "/usr",
    "/var/log",
    "/.dockerenv",
    "/wsl",
];

/// Replaces absolute paths outside the system's own folders; what a library or a compiler is called stays.
fn paths(text: &str) -> String {
    let ends =
        |c: char| c.is_whitespace() || matches!(c, ':' | ',' | ';' | ')' | '»' | '"' | '\'' | '`');
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find('/') {
        let (before, from) = rest.split_at(start);
        let end = from.find(ends).unwrap_or(from.len());
        let (path, after) = from.split_at(end);
        result.push_str(before);
        let begins = !before
            .chars()
            .next_back()
            .is_some_and(|c| c.is_alphanumeric() || matches!(c, '>' | '.' | '*'));
        let in_folder = |folder: &str| {
            path == folder
                || path
                    .strip_prefix(folder)
                    .is_some_and(|rest| rest.starts_with('/'))
        };
        let is_system = SYSTEM.iter().any(|folder| in_folder(folder));
        let file = path.rsplit('/').next().unwrap_or_default();
        match (
            begins && path.len() > 1 && !is_system,
            file.contains(".so") || file == "nvcc",
        ) {
            (true, true) => result.push_str(&format!("<path>/{file}")),
            (true, false) => result.push_str("<path>"),
            (false, _) => result.push_str(path),
        }
        rest = after;
    }
    result.push_str(rest);
    result
}

/// What a kernel message says of the program, as in `name=train`.
fn program_names(text: &str) -> String {
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("name=") {
        let (before, after) = rest.split_at(at + "name=".len());
        let end = after.find([',', ' ']).unwrap_or(after.len());
        result.push_str(before);
        result.push_str("<name>");
        rest = &after[end..];
    }
    result.push_str(rest);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_identifies_is_taken_out() {
        let words = vec![
            ("alice".to_owned(), "<user>"),
            ("1650423".to_owned(), "<serial>"),
        ];
        for (before, after) in [
            ("GPU-1b2c3d4e-0001-0002-0003-0123456789ab", "GPU-<uuid>"),
            (
                "CUDA_VISIBLE_DEVICES=GPU-1b2c3d,0",
                "CUDA_VISIBLE_DEVICES=GPU-<uuid>,0",
            ),
            ("uuid 1b2c3d4e-0001-0002-0003-0123456789ab.", "uuid <uuid>."),
            ("CUDA_HOME=/home/alice/cuda", "CUDA_HOME=<path>"),
            (
                "/home/bob/lib/libcudart.so.12 is 12.4",
                "<path>/libcudart.so.12 is 12.4",
            ),
            (
                "no /dev/nvidia0, /usr/local/cuda/lib64",
                "no /dev/nvidia0, /usr/local/cuda/lib64",
            ),
            ("asked by alice, not malice", "asked by <user>, not malice"),
            ("board 1650423", "board <serial>"),
            (
                "pid=7, name=secret-project, fault",
                "pid=7, name=<name>, fault",
            ),
            (
                "4 of 16 lanes, 12.5 GiB and/or 3",
                "4 of 16 lanes, 12.5 GiB and/or 3",
            ),
        ] {
            assert_eq!(text(before, &words), after);
            assert_eq!(text(after, &words), after, "twice is the same");
        }
    }
}
