use std::borrow::Cow;
use std::cmp::Reverse;
use std::fmt;
use std::mem;
use std::sync::LazyLock;

use regex::{Captures, Error, Regex, escape};

use super::finding::Finding;
use super::gpu::Gpu;
use super::source::Source;

/// Words to remove, each with its replacement.
#[derive(Clone, Default)]
pub(super) struct Words(Vec<(String, &'static str)>);

/// Without the words, which are private.
impl fmt::Debug for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Words({})", self.0.len())
    }
}

const FOLDER: &str = "<path>";
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
        .map(|folder| (folder, FOLDER));
    let words = names.chain(folders).filter(|(word, _)| is_private(word));
    let mut words: Vec<_> = words.map(|(word, by)| (word.to_owned(), by)).collect();
    // A folder comes before the folder that it lies in.
    words.sort_by_key(|(word, _)| Reverse(word.len()));
    words.dedup();
    Words(words)
}

/// Patterns and their replacements. Folders are replaced while they are whole, and names last.
struct Rules {
    first: Vec<(Regex, &'static str)>,
    /// An absolute path behind a character that is no part of one.
    path: Regex,
    last: Vec<(Regex, &'static str)>,
}

impl Rules {
    fn new(words: &[(String, &'static str)]) -> Result<Self, Error> {
        let (mut first, mut last) = (Vec::new(), Vec::new());
        // A kernel message's program may hold spaces and goes up to the comma or the end.
        last.push((Regex::new("name=[^,]*")?, "name=<name>"));
        for (word, by) in words {
            let list = if *by == FOLDER { &mut first } else { &mut last };
            // Not as a part of a longer word.
            let pattern = format!(r"\b{{start-half}}{}\b{{end-half}}", escape(word));
            list.push((Regex::new(&pattern)?, *by));
        }
        // Whole UUIDs, and their beginnings behind `GPU-` and `MIG-`.
        let uuid = r"(?<kind>(GPU|MIG)-)[[:xdigit:]-]{4,}|[[:xdigit:]]{8}-([[:xdigit:]]{4}-){3}[[:xdigit:]]{12}";
        first.push((Regex::new(uuid)?, "${kind}<uuid>"));
        Ok(Self {
            first,
            path: Regex::new(r#"(?<before>^|[^\pL\pN>.*/])(?<path>/[^\s:,;)"'`]+)"#)?,
            last,
        })
    }

    fn redact(&self, text: &str) -> String {
        let replace = |text: String, rules: &[(Regex, &'static str)]| {
            let replaced = rules.iter();
            replaced.fold(text, |text, (word, by)| {
                word.replace_all(&text, *by).into_owned()
            })
        };
        let text = replace(text.to_owned(), &self.first);
        let text = self.path.replace_all(&text, |found: &Captures<'_>| {
            let (before, path) = (&found["before"], &found["path"]);
            // The file names of libraries and of the compiler stay.
            match path.rsplit_once('/') {
                _ if is_system(path) => found[0].to_owned(),
                Some((_, file)) if file.contains(".so") || file == "nvcc" => {
                    format!("{before}{FOLDER}/{file}")
                }
                _ => format!("{before}{FOLDER}"),
            }
        });
        replace(text.into_owned(), &self.last)
    }
}

pub(super) fn apply(gpus: &mut [Gpu], findings: &mut [Finding], words: &Words) {
    let mut words = words.0.clone();
    for serial in gpus.iter_mut().filter_map(|gpu| gpu.serial.as_mut()) {
        let private = mem::replace(serial, "<serial>".to_owned());
        words.push((private, "<serial>"));
    }
    words.retain(|(word, _)| !word.is_empty());
    let rules = Rules::new(&words);
    let redact = |text: &mut String| {
        *text = match &rules {
            Ok(rules) => rules.redact(text),
            Err(_) => "<withheld>".to_owned(),
        };
    };
    gpus.iter_mut()
        .filter_map(|gpu| gpu.uuid.as_mut())
        .for_each(redact);
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
