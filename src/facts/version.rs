use std::fmt;
use std::str::FromStr;

/// A version of up to three numbers, such as a driver's 535.104.05 or a toolkit's 12.4.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Version([u32; 3]);

impl Version {
    pub(crate) const fn new(parts: [u32; 3]) -> Self {
        Self(parts)
    }

    /// From CUDA's number, such as 12040 for 12.4.
    pub(crate) fn of_cuda(number: i32) -> Option<Self> {
        let number = u32::try_from(number).ok().filter(|number| *number > 0)?;
        Some(Self([number / 1000, number % 1000 / 10, 0]))
    }

    pub(crate) fn major(self) -> u32 {
        self.0[0]
    }

    /// Only major and minor.
    pub(crate) fn release(self) -> Self {
        Self([self.0[0], self.0[1], 0])
    }
}

/// Displays a toolkit's version as major and minor.
pub(crate) struct Release(pub(crate) Version);

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0.0[0], self.0.0[1])
    }
}

/// Displays a driver's version. NVIDIA writes the last number with two digits.
impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, patch] = self.0;
        match patch {
            0 => write!(f, "{major}.{minor}"),
            _ => write!(f, "{major}.{minor}.{patch:02}"),
        }
    }
}

/// The error for a text that is not a version.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NoVersion;

/// Parses one to three numbers separated by dots; further numbers are ignored.
impl FromStr for Version {
    type Err = NoVersion;

    fn from_str(text: &str) -> Result<Self, NoVersion> {
        let mut parts = [0; 3];
        for (index, part) in text.trim().split('.').enumerate() {
            let number = part.parse().map_err(|_| NoVersion)?;
            if let Some(slot) = parts.get_mut(index) {
                *slot = number;
            }
        }
        Ok(Self(parts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_and_ordered_by_numbers() {
        let version = |text: &str| text.parse::<Version>();
        assert_eq!(version("535.104.05"), Ok(Version([535, 104, 5])));
        assert_eq!(version("535.54.03").unwrap().to_string(), "535.54.03");
        assert_eq!(version("12\n"), Ok(Version([12, 0, 0])));
        assert!(version("535.104.05").unwrap() > version("535.54.03").unwrap());
        for bad in ["", "a.b", "535.", "-1", "99999999999999999999"] {
            assert_eq!(version(bad), Err(NoVersion), "{bad}");
        }
        assert_eq!(Version::of_cuda(12040), Some(Version([12, 4, 0])));
        assert_eq!(Version::of_cuda(0).or(Version::of_cuda(-3)), None);
        assert_eq!(Release(Version([12, 4, 1])).to_string(), "12.4");
    }
}
