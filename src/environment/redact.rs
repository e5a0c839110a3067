use std::borrow::Cow;
use std::cmp::Reverse;
use std::fmt;

use super::finding::Finding;
use super::gpu::Gpu;
use super::source::Source;

/// Words to remove, each with its replacement. `Debug` does not show them.
#[derive(Clone)]
pub(super) struct Words(Vec<(String, &'static str)>);

impl fmt::Debug for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Words({})", self.0.len())
    }
}

const NAMES: [(&str, &str); 5] = [
    ("USER", "<user>"),
    ("LOGNAME", "<user>"),
    ("SUDO_USER", "<user>"),
    ("USERNAME", "<user>"),
    ("HOSTNAME", "<host>"),
];
const FOLDERS: [&str; 9] = [
    "HOME",
    "CUDA_HOME",
    "CUDA_PATH",
    "CUDA_ROOT",
    "CUDA_TOOLKIT_ROOT_DIR",
    "LD_LIBRARY_PATH",
    "PATH",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
];
/// Common names, and names that are words of a report.
const PUBLIC: &str = " root user localhost nvidia cuda docker ubuntu linux admin candle ";
/// Folders with the same contents on every machine. Others, such as `/run/media` or `/usr/local`, hold people's own.
const SYSTEM: &str = "/bin /dev /etc /lib /lib64 /opt/cuda /proc /run/.containerenv /sbin /sys /usr/bin /usr/include /usr/lib \
    /usr/lib64 /usr/sbin /usr/local/bin /usr/local/lib /var/log /.dockerenv /.singularity.d";

/// The names of user and host, and the folders that variables name, which may be relative or hold spaces. Short names, which are parts
/// of other words, stay.
pub(super) fn private_words(source: &Source) -> Words {
    let is_private = |word: &str| word.len() > 2 && !PUBLIC.contains(&format!(" {word} "));
    let variable = |name: &str| source.variable(name).unwrap_or_default();
    let home = variable("HOME").trim_end_matches('/').rsplit('/').next();
    let host = source.line("/proc/sys/kernel/hostname");
    let names = NAMES.map(|(name, instead)| (variable(name), instead));
    let names = names
        .into_iter()
        .chain(home.map(|home| (home, "<user>")))
        .chain(host.as_deref().map(|host| (host, "<host>")));
    let folders = FOLDERS
        .iter()
        .flat_map(|name| variable(name).split([':', ';']))
        .map(|folder| folder.trim_end_matches('/'))
        .filter(|folder| !is_system(folder))
        .map(|folder| (folder, "<path>"));
    let words = names.chain(folders).filter(|(word, _)| is_private(word));
    let mut words: Vec<_> = words.map(|(word, by)| (word.to_owned(), by)).collect();
    // A folder comes before the folder that it lies in.
    words.sort_by_key(|(word, _)| Reverse(word.len()));
    words.dedup();
    Words(words)
}

pub(super) fn apply(gpus: &mut [Gpu], findings: &mut [Finding], words: &Words) {
    let Words(mut words) = words.clone();
    for gpu in gpus {
        let serial = gpu.serial.as_mut();
        let serial = serial.map(|serial| std::mem::replace(serial, "<serial>".to_owned()));
        words.extend(serial.map(|serial| (serial, "<serial>")));
        gpu.uuid = gpu.uuid.as_deref().map(without_uuids);
    }
    for finding in findings {
        finding.seen = redacted(&finding.seen, &words);
        for part in [
            &mut finding.leads_to,
            &mut finding.next_step,
            &mut finding.command,
        ] {
            // Borrowed texts are the code's own and hold nothing of the machine.
            if let Cow::Owned(owned) = part {
                *owned = redacted(owned, &words);
            }
        }
    }
}

/// Replaces folders first, while they are whole, and names last.
fn redacted(text: &str, words: &[(String, &'static str)]) -> String {
    let replace = |text: String, folders: bool| {
        let words = words
            .iter()
            .filter(|(word, by)| !word.is_empty() && (*by == "<path>") == folders);
        words.fold(text, |text, (word, by)| without_word(&text, word, by))
    };
    let text = without_uuids(&replace(text.to_owned(), true));
    replace(without_program_names(&without_paths(&text)), false)
}

/// Replaces a word unless it is part of a longer one.
fn without_word(text: &str, word: &str, by: &str) -> String {
    let joins = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    let (mut result, mut end) = (String::new(), 0);
    for (at, _) in text.match_indices(word) {
        let (before, behind) = (&text[..at], &text[at + word.len()..]);
        if !joins(before.chars().next_back()) && !joins(behind.chars().next()) {
            result.push_str(&text[end..at]);
            result.push_str(by);
            end = at + word.len();
        }
    }
    result + &text[end..]
}

/// Replaces the longest runs of characters that are part of something, by what `replace` makes of the text before and the run.
fn replace_runs(
    text: &str,
    is_part: impl Fn(char) -> bool,
    replace: impl Fn(&str, &str) -> Option<String>,
) -> String {
    let (mut result, mut at) = (String::new(), 0);
    while let Some(start) = text[at..].find(&is_part) {
        let start = at + start;
        let length = text[start..].find(|c| !is_part(c));
        let end = length.map_or(text.len(), |length| start + length);
        let run = &text[start..end];
        result.push_str(&text[at..start]);
        result.push_str(replace(&text[..start], run).as_deref().unwrap_or(run));
        at = end;
    }
    result + &text[at..]
}

/// Replaces groups of 8, 4, 4, 4 and 12 hexadecimal digits, and the beginnings of such behind `GPU-` and `MIG-`.
fn without_uuids(text: &str) -> String {
    let is_part = |c: char| c.is_ascii_hexdigit() || c == '-';
    replace_runs(text, is_part, |before, run| {
        let is_named = ["GPU", "MIG"].iter().any(|name| before.ends_with(name));
        let groups: Vec<_> = run.trim_matches('-').split('-').map(str::len).collect();
        if is_named && run.starts_with('-') && run.len() > 4 {
            return Some("-<uuid>".to_owned());
        }
        (groups.ends_with(&[8, 4, 4, 4, 12])).then(|| "<uuid>".to_owned())
    })
}

fn is_system(path: &str) -> bool {
    let is_in = |folder: &str| {
        let rest = path.strip_prefix(folder);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    // `/usr/local/cuda-12.4` is a toolkit's usual place, and `/usr/local/cuda-secret` is not.
    let is_version = |rest: &str| {
        let version = rest.split('/').next().unwrap_or_default();
        let mut characters = version.chars();
        characters.all(|c| c.is_ascii_digit() || matches!(c, '-' | '.'))
    };
    SYSTEM.split_whitespace().any(is_in)
        || ["/usr", "/usr/local"].contains(&path)
        || path.strip_prefix("/usr/local/cuda").is_some_and(is_version)
}

/// Replaces absolute paths outside the system's own folders. The file names of libraries and of the compiler stay.
fn without_paths(text: &str) -> String {
    let is_part = |c: char| !(c.is_whitespace() || ":,;)\"'`".contains(c));
    replace_runs(text, is_part, |_, run| {
        let (before, path) = run.split_at(run.find('/')?);
        let last = before.chars().next_back();
        let begins = !last.is_some_and(|c| c.is_alphanumeric() || ">.*".contains(c));
        let file = path.rsplit('/').next().unwrap_or_default();
        let keeps_file = file.contains(".so") || file == "nvcc";
        match begins && path.len() > 1 && !is_system(path) {
            true if keeps_file => Some(format!("{before}<path>/{file}")),
            true => Some(format!("{before}<path>")),
            false => None,
        }
    })
}

/// Replaces the program's name in a kernel message, `name=my train,`: it may hold spaces and goes up to the comma or the end.
fn without_program_names(text: &str) -> String {
    let mut parts = text.split("name=");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        let end = part.find(',').unwrap_or(part.len());
        text + "name=<name>" + &part[end..]
    })
}
