use std::fmt;

/// A version of up to three numbers, such as a driver's 535.104.05 or a toolkit's 12.4.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub(crate) [u32; 3]);

impl Version {
    /// Parses numbers separated by dots; those after the third are ignored.
    pub fn parse(text: &str) -> Option<Self> {
        let parts = text.trim().split('.').map(|part| part.parse().ok());
        let parts: Vec<u32> = parts.collect::<Option<_>>()?;
        let part = |index| parts.get(index).copied().unwrap_or(0);
        Some(Self([part(0), part(1), part(2)]))
    }

    /// From CUDA's number, such as 12040 for 12.4.
    pub fn of_cuda(number: i32) -> Option<Self> {
        let number = u32::try_from(number).ok().filter(|number| *number > 0)?;
        Some(Self([number / 1000, number % 1000 / 10, 0]))
    }

    /// As others than NVIDIA's driver write it: 2.28.3.
    pub fn plain(self) -> String {
        let [major, minor, patch] = self.0;
        format!("{major}.{minor}.{patch}")
    }

    /// For a sentence.
    pub fn or_unknown(version: Option<Self>) -> String {
        version.map_or("of an unknown version".to_owned(), |version| {
            version.to_string()
        })
    }

    pub fn major(self) -> u32 {
        self.0[0]
    }

    /// Only major and minor.
    pub fn release(self) -> Self {
        Self([self.0[0], self.0[1], 0])
    }
}

/// NVIDIA writes the last number with two digits.
impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [major, minor, 0] => write!(f, "{major}.{minor}"),
            [major, minor, patch] => write!(f, "{major}.{minor}.{patch:02}"),
        }
    }
}
