use std::fmt;

use regex_lite::Regex;

use crate::facts::Version;

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
pub(crate) fn of_this_build() -> Vec<Kernels> {
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
