//! Finding what identifies in a text.

/// Replaces a word where it is not a part of a longer one.
pub(super) fn whole_words(text: &str, word: &str, instead: &str) -> String {
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
pub(super) fn uuids(text: &str) -> String {
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

/// Folders in which everything is alike on every machine; below others, such as `/run/media` or `/usr/local`, lie people's own.
const SYSTEM: [&str; 20] = [
    "/bin",
    "/dev",
    "/etc",
    "/lib",
    "/lib64",
    "/opt/cuda",
    "/proc",
    "/run/.containerenv",
    "/sbin",
    "/sys",
    "/usr/bin",
    "/usr/include",
    "/usr/lib",
    "/usr/lib64",
    "/usr/sbin",
    "/usr/local/bin",
    "/usr/local/lib",
    "/var/log",
    "/.dockerenv",
    "/.singularity.d",
];

/// `/usr/local/cuda-12.4` is a toolkit's usual place, and `/usr/local/cuda-secret` is not.
pub(super) fn is_system(path: &str) -> bool {
    let in_folder = |folder: &str| {
        let rest = path.strip_prefix(folder);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let is_version = |rest: &str| {
        let version = rest.split('/').next().unwrap_or_default();
        version
            .chars()
            .all(|c| c.is_ascii_digit() || matches!(c, '-' | '.'))
    };
    SYSTEM.iter().any(|folder| in_folder(folder))
        || ["/usr", "/usr/local"].contains(&path)
        || path.strip_prefix("/usr/local/cuda").is_some_and(is_version)
}

/// Replaces absolute paths outside the system's own folders; what a library or a compiler is called stays.
pub(super) fn paths(text: &str) -> String {
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
        let file = path.rsplit('/').next().unwrap_or_default();
        match (
            begins && path.len() > 1 && !is_system(path),
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

/// What a kernel message says of the program, as in `name=my train,`: a name may hold spaces, so it goes up to the comma, or to the end.
pub(super) fn program_names(text: &str) -> String {
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("name=") {
        let (before, after) = rest.split_at(at + "name=".len());
        let end = after.find(',').unwrap_or(after.len());
        result.push_str(before);
        result.push_str("<name>");
        rest = &after[end..];
    }
    result.push_str(rest);
    result
}
