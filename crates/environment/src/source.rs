//! Where the probes look: files below a root, variables, and the kernels of the build.
//!
//! All access to the machine goes through [`Source`], so that a test lays out a machine in a folder. Files are read up to a size and without waiting
//! for a writer, folders up to a number of entries: what they hold may be anything.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use regex_lite::Regex;

use crate::facts::Version;
use crate::system;

/// Where the probes look: the files below a root folder, a set of variables, and kernels. Errors are results, whatever the files hold.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    pub(crate) root: PathBuf,
    pub(crate) variables: BTreeMap<String, String>,
    pub(crate) kernels: Vec<Kernels>,
    /// Whether the user asks for what several ranks need.
    pub(crate) for_ranks: bool,
}

/// The bytes of a log that are read: the end of a file, and all that the kernel's log keeps.
const MOST_OF_LOG: u64 = 16 << 20;
/// The entries of a folder that are read.
const MOST_ENTRIES: usize = 20_000;

impl Source {
    /// This machine's files and this process's variables; what is not UTF-8 is replaced.
    pub(crate) fn of_this_process(kernels: Vec<Kernels>) -> Self {
        let text = |text: OsString| text.to_string_lossy().into_owned();
        let variables = std::env::vars_os();
        let variables = variables.map(|(name, value)| (text(name), text(value)));
        Self {
            root: PathBuf::from("/"),
            variables: variables.collect(),
            kernels,
            for_ranks: false,
        }
    }

    /// Whether the source is the machine itself, whose libraries the loader finds by name.
    pub(crate) fn is_this_machine(&self) -> bool {
        self.root == Path::new("/")
    }

    /// A path of the machine below the root. The operating system follows its links, so that absolute ones lead out of the root.
    pub(crate) fn below(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    pub(crate) fn variable(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str)
    }

    /// The value of a variable that is set to something other than nothing and 0.
    pub(crate) fn switch(&self, name: &str) -> Option<&str> {
        let value = self.variable(name);
        value.filter(|value| !matches!(value.trim(), "" | "0"))
    }

    pub(crate) fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.below(path.as_ref()).exists()
    }

    /// The trimmed text of a short file; `None` if it is empty or cannot be read.
    pub(crate) fn line(&self, path: impl AsRef<Path>) -> Option<String> {
        let text = self.text(path)?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    }

    /// What follows in the first line of a file that begins so.
    pub(crate) fn after(&self, start: &str, path: impl AsRef<Path>) -> Option<String> {
        let text = self.text(path)?;
        let rest = text.lines().find_map(|line| line.strip_prefix(start))?;
        Some(rest.trim().to_owned())
    }

    /// The beginning of a file; what is not UTF-8 is replaced.
    pub(crate) fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        system::text(&self.below(path.as_ref())).ok()
    }

    /// Whether a file is a library for processors of another word size, which the loader skips.
    pub(crate) fn is_of_other_class(&self, path: impl AsRef<Path>) -> bool {
        let class = match cfg!(target_pointer_width = "64") {
            true => 2,
            false => 1,
        };
        let mut head = [0; 5];
        let file = system::open(&self.below(path.as_ref()));
        let read = file.and_then(|mut file| file.read_exact(&mut head));
        read.is_ok() && head.starts_with(b"\x7fELF") && head[4] != class
    }

    /// The first file of this name in the folders of `PATH`.
    pub(crate) fn program(&self, name: &str) -> Option<PathBuf> {
        let folders = self.variable("PATH")?.split(':');
        let folders = folders.filter(|folder| folder.starts_with('/')).take(256);
        let mut paths = folders.map(|folder| Path::new(folder).join(name));
        paths.find(|path| self.exists(path))
    }

    /// The end of a log.
    pub(crate) fn log(&self, path: impl AsRef<Path>) -> io::Result<String> {
        let mut file = system::open(&self.below(path.as_ref()))?;
        if file.metadata()?.len() > MOST_OF_LOG {
            file.seek(SeekFrom::End(-(MOST_OF_LOG as i64)))?;
        }
        rest_of(file)
    }

    /// The sorted names in a folder; empty if it cannot be read.
    pub(crate) fn names(&self, folder: impl AsRef<Path>) -> Vec<String> {
        let entries = fs::read_dir(self.below(folder.as_ref()))
            .into_iter()
            .flatten();
        let entries = entries.take(MOST_ENTRIES).flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }

    /// The last part of a link's target.
    pub(crate) fn link_name(&self, path: impl AsRef<Path>) -> Option<String> {
        let target = fs::read_link(self.below(path.as_ref())).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    }

    /// The path with all links followed, as the machine names it; the path itself if they lead nowhere.
    pub(crate) fn resolved(&self, path: &Path) -> PathBuf {
        match (self.root.canonicalize(), self.below(path).canonicalize()) {
            (Ok(root), Ok(full)) => Path::new("/").join(full.strip_prefix(root).unwrap_or(&full)),
            _ => path.to_owned(),
        }
    }

    /// Whether files can be made in a folder, which need not exist yet.
    pub(crate) fn takes_files(&self, folder: impl AsRef<Path>) -> bool {
        let mut folders = folder.as_ref().ancestors().map(|folder| self.below(folder));
        let nearest = folders.find(|folder| folder.exists());
        nearest.is_none_or(|folder| folder.is_dir() && may_write(&folder))
    }

    /// Whether a device node can be opened for reading and writing, as CUDA opens it.
    pub(crate) fn opens(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        let options = system::without_waiting(&mut options);
        options.open(self.below(path.as_ref())).map(drop)
    }
}

/// Whether the user may write in a folder, whose file system may be read-only.
#[cfg(unix)]
fn may_write(folder: &Path) -> bool {
    rustix::fs::access(folder, rustix::fs::Access::WRITE_OK).is_ok()
}

#[cfg(not(unix))]
fn may_write(_folder: &Path) -> bool {
    true
}

/// What is left to read.
fn rest_of(log: impl Read) -> io::Result<String> {
    let mut log = log.take(MOST_OF_LOG);
    let (mut kept, mut record) = (Vec::new(), [0; 16 << 10]);
    loop {
        match log.read(&mut record) {
            Ok(0) => break,
            Ok(read) => kept.extend_from_slice(&record[..read]),
            Err(error) => match error.kind() {
                // A record of the kernel's log was overwritten while it was read; the next read continues behind it.
                ErrorKind::BrokenPipe | ErrorKind::Interrupted => {}
                // The kernel's log has no further record.
                ErrorKind::WouldBlock => break,
                _ if !kept.is_empty() => break,
                _ => return Err(error),
            },
        }
    }
    Ok(String::from_utf8_lossy(&kept).into_owned())
}

/// The GPUs that CUDA_VISIBLE_DEVICES leaves visible: a list of numbers, of which only leading digits count, or of prefixes of UUIDs. It
/// ends at the first entry that names no GPU or is of the other kind. A GPU named twice leaves none visible.
/// Source: CUDA Programming Guide, environment variables; the rest is the driver's behaviour.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Visible {
    /// Places among the machine's GPUs. Numbers count in CUDA's order, which can differ from NVML's.
    pub(crate) gpus: Vec<usize>,
    /// The first entry that names no GPU.
    pub(crate) invalid: Option<String>,
    /// The first entry that names a GPU for the second time.
    pub(crate) twice: Option<String>,
    /// Whether instances of divided GPUs are named, which NVML's list of GPUs lacks.
    pub(crate) names_instances: bool,
}

impl Visible {
    pub(crate) fn parse(variable: Option<&str>, uuids: &[String]) -> Self {
        let mut visible = Self::default();
        let Some(variable) = variable else {
            visible.gpus = (0..uuids.len()).collect();
            return visible;
        };
        let is_number = |entry: &str| entry.starts_with(|c: char| c.is_ascii_digit());
        let by_number = is_number(variable.trim_start());
        for entry in variable.split(',').map(str::trim) {
            let is_of_kind = is_number(entry) == by_number;
            if is_of_kind && entry.starts_with("MIG-") {
                visible.names_instances = true;
                continue;
            }
            match place(entry, uuids).filter(|_| is_of_kind) {
                Some(place) if visible.gpus.contains(&place) => {
                    visible.gpus.clear();
                    visible.twice = Some(entry.to_owned());
                    break;
                }
                Some(place) => visible.gpus.push(place),
                None => {
                    visible.invalid = Some(entry.to_owned());
                    break;
                }
            }
        }
        visible
    }

    pub(crate) fn hides_all(&self) -> bool {
        self.gpus.is_empty() && !self.names_instances
    }
}

/// The place of a GPU by its number, or by a prefix of its UUID that no other GPU has.
fn place(entry: &str, uuids: &[String]) -> Option<usize> {
    if entry.starts_with("GPU-") {
        let places = 0..uuids.len();
        let mut named = places.filter(|place| uuids[*place].starts_with(entry));
        return named.next().filter(|_| named.next().is_none());
    }
    let digits = entry.split(|c: char| !c.is_ascii_digit()).next()?;
    let place = digits.parse().ok();
    place.filter(|place| *place < uuids.len())
}

/// Kernels as PTX: what their header requires of driver and GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Kernels {
    pub(crate) name: String,
    /// The version of PTX.
    pub(crate) version: Option<Version>,
    pub(crate) target: Option<Target>,
    /// Whether they come with machine code for the target, as candle's do.
    pub(crate) with_machine_code: bool,
}

/// One of candle's kernels, where they are in this build.
pub(crate) fn kernels_of_this_build() -> Vec<Kernels> {
    #[cfg(feature = "cuda")]
    let kernels = vec![Kernels::read(
        "candle's kernels",
        candle_kernels::AFFINE.ptx(),
        true,
    )];
    #[cfg(not(feature = "cuda"))]
    let kernels = Vec::new();
    kernels
}

/// A kind of GPU, as in `sm_90a`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) major: u32,
    pub(crate) minor: u32,
    /// `a`: only this kind; `f`: only this family.
    suffix: Option<char>,
}

impl Kernels {
    /// Reads the header, which is in the first lines.
    pub(crate) fn read(name: &str, ptx: &str, with_machine_code: bool) -> Self {
        let directive = |name: &str| {
            let mut lines = ptx.lines().take(64);
            let rest = lines.find_map(|line| line.trim().strip_prefix(name))?;
            rest.split([',', ' ', '\t']).find(|word| !word.is_empty())
        };
        Self {
            name: name.to_owned(),
            version: directive(".version").and_then(Version::parse),
            target: directive(".target").and_then(Target::parse),
            with_machine_code,
        }
    }

    /// The beginning of another PTX file for the same drivers and GPUs.
    pub(crate) fn header(&self) -> Option<String> {
        let (version, target) = (self.version?, self.target?);
        Some(format!(".version {version}\n.target {target}\n"))
    }
}

impl Target {
    /// Parses `sm_90a`, or the `90a` of CUDA_COMPUTE_CAP, with or without a dot.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let pattern = "^(?:sm_|compute_)?([1-9][0-9]?)[.]?([0-9])([af]?)$";
        let found = Regex::new(pattern).ok()?.captures(text.trim())?;
        let (_, [major, minor, suffix]) = found.extract();
        Some(Self {
            major: major.parse().ok()?,
            minor: minor.parse().ok()?,
            suffix: suffix.chars().next(),
        })
    }

    /// Whether PTX for this target runs on a GPU of this compute capability, as it does on later ones unless it is bound to a kind.
    pub(crate) fn runs_on(self, (major, minor): (u32, u32)) -> bool {
        match self.suffix {
            Some('a') => (major, minor) == (self.major, self.minor),
            Some(_) => major == self.major && minor >= self.minor,
            None => (major, minor) >= (self.major, self.minor),
        }
    }

    /// The same for machine code, which runs on later kinds of the same major number only.
    pub(crate) fn machine_code_runs_on(self, gpu: (u32, u32)) -> bool {
        self.runs_on(gpu) && gpu.0 == self.major
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sm_{}{}", self.major, self.minor)?;
        self.suffix.map_or(Ok(()), |suffix| write!(f, "{suffix}"))
    }
}
