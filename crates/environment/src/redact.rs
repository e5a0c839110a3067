//! Removes what identifies a machine and its user from a report.
//!
//! Words that are known to be private (names of users and hosts, folders in variables, serial numbers) are replaced wherever they stand alone.
//! UUIDs and paths are found by their form: of paths, those of the system stay, and of others the file names of libraries. Where a pattern cannot be
//! built, the whole text is withheld.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::mem;
use std::sync::LazyLock;

use regex_lite::{Captures, Error, Regex, escape};

use super::{Finding, Gpu, Source, toolkit};

/// Words to remove, each with its replacement.
pub(super) type Words = Vec<(String, &'static str)>;

const FOLDER: &str = "<path>";
const USERS: [&str; 4] = ["USER", "LOGNAME", "SUDO_USER", "USERNAME"];
/// Variables that name folders, beside those of the toolkit.
const FOLDERS: [&str; 5] = [
    "HOME",
    "LD_LIBRARY_PATH",
    "PATH",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
];
/// Common names, and names that are words of a report.
const PUBLIC: &str = " root user localhost nvidia cuda docker ubuntu linux admin candle ";

/// Paths with the same contents on every machine. Others, such as `/run/media` or `/usr/local/acme`, hold people's own.
static SYSTEM: LazyLock<Result<Regex, Error>> = LazyLock::new(|| {
    Regex::new(
        r"(?x)^(
            /(bin|dev|etc|lib|lib64|opt/cuda|proc|run/\.containerenv|sbin|sys|var/log|\.dockerenv|\.singularity\.d
                |usr/(bin|include|lib|lib64|sbin|local/(bin|lib|cuda[-.0-9]*)))(/.*)?
            |/usr(/local)?
        )$",
    )
});

fn is_system(path: &str) -> bool {
    SYSTEM.as_ref().is_ok_and(|system| system.is_match(path))
}

/// The names of user and host, and the folders that variables name. Short names, which are parts of other words, stay.
pub(super) fn private_words(source: &Source) -> Words {
    let is_private = |word: &str| word.len() > 2 && !PUBLIC.contains(&format!(" {word} "));
    let variable = |name: &str| source.variable(name).unwrap_or_default();
    let home = variable("HOME").trim_end_matches('/').rsplit('/').next();
    let host = source.line("/proc/sys/kernel/hostname");
    let users = USERS.map(variable).into_iter().chain(home);
    let hosts = [variable("HOSTNAME")].into_iter().chain(host.as_deref());
    let folders = FOLDERS.iter().chain(&toolkit::VARIABLES);
    let folders = folders
        .flat_map(|name| variable(name).split([':', ';']))
        .map(|folder| folder.trim_end_matches('/'))
        .filter(|folder| !is_system(folder));
    let words = users.map(|user| (user, "<user>"));
    let words = words.chain(hosts.map(|host| (host, "<host>")));
    let words = words.chain(folders.map(|folder| (folder, FOLDER)));
    let words = words.filter(|(word, _)| is_private(word));
    let mut words: Vec<_> = words.map(|(word, by)| (word.to_owned(), by)).collect();
    // A folder comes before the folder that it lies in.
    words.sort_by_key(|(word, _)| Reverse(word.len()));
    words.dedup();
    words
}

/// Patterns and their replacements, `None` for paths. Folders are replaced while they are whole, and names last.
type Rules = Vec<(Regex, Option<&'static str>)>;

fn rules(words: &[(String, &'static str)]) -> Result<Rules, Error> {
    // Not as a part of a longer word.
    let pattern = |word: &str| format!(r"\b{{start-half}}{}\b{{end-half}}", escape(word));
    let rule = |(word, by): &(String, &'static str)| (pattern(word), Some(*by));
    let (folders, names): (Vec<_>, Vec<_>) = words.iter().partition(|(_, by)| *by == FOLDER);
    let mut rules: Vec<_> = folders.into_iter().map(rule).collect();
    // Whole UUIDs, and their beginnings behind `GPU-` and `MIG-`.
    let uuid = r"(?<kind>(GPU|MIG)-)[[:xdigit:]-]{4,}|[[:xdigit:]]{8}-([[:xdigit:]]{4}-){3}[[:xdigit:]]{12}";
    rules.push((uuid.to_owned(), Some("${kind}<uuid>")));
    // An absolute path behind a character that is no part of one. Letters other than those of ASCII count as none: rather too much is
    // removed than too little.
    let path = r#"(?<before>^|[^[:alnum:]>.*/])(?<path>/[^\s:,;)"'`]+)"#;
    rules.push((path.to_owned(), None));
    // A kernel message's program may hold spaces and goes up to the comma or the end.
    rules.push(("name=[^,]*".to_owned(), Some("name=<name>")));
    rules.extend(names.into_iter().map(rule));
    let rules = rules.into_iter();
    let rules = rules.map(|(pattern, by)| Ok((Regex::new(&pattern)?, by)));
    rules.collect()
}

fn redacted(text: &str, rules: &[(Regex, Option<&str>)]) -> String {
    let rules = rules.iter();
    rules.fold(text.to_owned(), |text, (pattern, by)| match by {
        Some(by) => pattern.replace_all(&text, *by).into_owned(),
        None => pattern.replace_all(&text, public_path).into_owned(),
    })
}

/// A path of the system as it is. Of others only the file names of libraries and of the compiler stay.
fn public_path(found: &Captures<'_>) -> String {
    let (before, path) = (&found["before"], &found["path"]);
    match path.rsplit_once('/') {
        _ if is_system(path) => found[0].to_owned(),
        Some((_, file)) if file.contains(".so") || file == "nvcc" => {
            format!("{before}{FOLDER}/{file}")
        }
        _ => format!("{before}{FOLDER}"),
    }
}

pub(super) fn apply(gpus: &mut [Gpu], findings: &mut [Finding], mut words: Words) {
    for serial in gpus.iter_mut().filter_map(|gpu| gpu.serial.as_mut()) {
        let private = mem::replace(serial, "<serial>".to_owned());
        words.push((private, "<serial>"));
    }
    words.retain(|(word, _)| !word.is_empty());
    let rules = rules(&words);
    let redact = |text: &mut String| {
        *text = match &rules {
            Ok(rules) => redacted(text, rules),
            Err(_) => "<withheld>".to_owned(),
        };
    };
    let uuids = gpus.iter_mut().filter_map(|gpu| gpu.uuid.as_mut());
    uuids.for_each(redact);
    for finding in findings {
        redact(&mut finding.seen);
        for part in [&mut finding.next_step, &mut finding.command] {
            // Borrowed texts are the code's own and hold nothing of the machine.
            if let Cow::Owned(owned) = part {
                redact(owned);
            }
        }
    }
}
