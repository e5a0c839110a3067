use std::fmt;

use crate::facts::Version;

/// Kernels as PTX, by what their header asks of driver and GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::environment) struct Kernels {
    pub(in crate::environment) name: String,
    /// The version of PTX that they are written in.
    pub(in crate::environment) version: Option<Version>,
    pub(in crate::environment) target: Option<Target>,
    /// Whether machine code for the target alone goes with them, as it does with candle's.
    pub(in crate::environment) with_machine_code: bool,
}

/// A kind of GPU, as in `sm_90a`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::environment) struct Target {
    pub(in crate::environment) major: u32,
    pub(in crate::environment) minor: u32,
    /// `a`: this kind alone; `f`: this family alone.
    suffix: Option<char>,
}

impl Kernels {
    /// Reads the first lines; the header of a PTX file is short.
    pub(in crate::environment) fn read(name: &str, ptx: &str, with_machine_code: bool) -> Self {
        let directive = |directive: &str| {
            let lines = ptx.lines().take(64);
            lines
                .filter_map(|line| line.trim().strip_prefix(directive))
                .next()
        };
        let word = |text: Option<&str>| {
            text.and_then(|text| text.split([',', ' ', '\t']).find(|word| !word.is_empty()))
                .map(str::to_owned)
        };
        Self {
            name: name.to_owned(),
            version: word(directive(".version")).and_then(|word| word.parse().ok()),
            target: word(directive(".target")).and_then(|word| Target::parse(&word)),
            with_machine_code,
        }
    }
}

impl Target {
    /// `sm_90a`, and the `90a` of CUDA_COMPUTE_CAP, with or without a dot.
    pub(in crate::environment) fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let text = text
            .strip_prefix("sm_")
            .or_else(|| text.strip_prefix("compute_"))
            .unwrap_or(text);
        let suffix = text.chars().last().filter(|c| matches!(c, 'a' | 'f'));
        let digits = text.trim_end_matches(['a', 'f']);
        let number: u32 = digits.replacen('.', "", 1).parse().ok()?;
        (10..1000).contains(&number).then_some(Self {
            major: number / 10,
            minor: number % 10,
            suffix,
        })
    }

    /// Whether PTX for this target runs on a GPU of this compute capability: it is compiled for later ones, unless it is bound to its
    /// kind or family.
    pub(in crate::environment) fn runs_on(self, (major, minor): (u32, u32)) -> bool {
        match self.suffix {
            Some('a') => (major, minor) == (self.major, self.minor),
            Some(_) => major == self.major && minor >= self.minor,
            None => (major, minor) >= (self.major, self.minor),
        }
    }

    /// The same for machine code: later kinds of the same major number.
    pub(in crate::environment) fn machine_code_runs_on(self, gpu: (u32, u32)) -> bool {
        self.runs_on(gpu) && gpu.0 == self.major
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sm_{}{}", self.major, self.minor)?;
        self.suffix.map_or(Ok(()), |suffix| write!(f, "{suffix}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read() {
        let ptx =
            "//\n// Compiler Build\n//\n\n.version 9.0\n.target sm_90a, debug\n.address_size 64\n";
        let kernels = Kernels::read("k", ptx, false);
        assert_eq!(kernels.version, Some(Version::new([9, 0, 0])));
        assert_eq!(kernels.target.unwrap().to_string(), "sm_90a");
        assert_eq!(Kernels::read("k", "garbage", false).target, None);
    }

    #[test]
    fn targets_run_where_nvidia_says() {
        let runs = |target: &str, gpu| Target::parse(target).unwrap().runs_on(gpu);
        assert!(runs("sm_80", (8, 0)) && runs("sm_80", (9, 0)) && runs("80", (12, 0)));
        assert!(!runs("sm_90", (8, 9)) && !runs("8.6", (8, 0)));
        assert!(runs("sm_90a", (9, 0)) && !runs("sm_90a", (10, 0)));
        assert!(runs("sm_100f", (10, 3)) && !runs("sm_100f", (12, 0)));
        let sm_80 = Target::parse("sm_80").unwrap();
        assert!(sm_80.machine_code_runs_on((8, 6)) && !sm_80.machine_code_runs_on((9, 0)));
        for bad in ["", "sm_", "sm_x", "a", "5", "99999"] {
            assert_eq!(Target::parse(bad), None, "{bad}");
        }
    }
}
