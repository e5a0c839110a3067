use std::fmt;
use std::str::FromStr;

use bytesize::ByteSize;

/// What a machine is needed for.
///
/// ```
/// use candle_headroom_environment::ByteSize;
/// use candle_headroom_environment::Requirement;
///
/// assert_eq!("cuda".parse(), Ok(Requirement::CudaInference));
/// let training = Requirement::cuda_training(ByteSize::gib(8).as_u64());
/// assert_eq!("cuda,mem=8GiB".parse(), Ok(training));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Requirement {
    /// Work on the CPU: `cpu`.
    Cpu,
    /// Work on a GPU, however much memory it has free: `cuda`.
    CudaInference,
    /// Work on a GPU that needs memory: `cuda,mem=8GiB`.
    #[non_exhaustive]
    CudaTraining {
        /// The bytes that must be free on one GPU.
        bytes: u64,
    },
    /// A group of several ranks on this machine, by NCCL or MPI: `ranks`. The report must come from an environment
    /// [`for_ranks`](super::Environment::for_ranks).
    Ranks,
}

/// A text that names no requirement.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown requirement `{0}`: use `cpu`, `cuda`, `cuda,mem=8GiB`, or `ranks`")]
pub struct UnknownRequirement(String);

impl Requirement {
    /// Work on a GPU that has this many bytes free.
    pub fn cuda_training(bytes: u64) -> Self {
        Self::CudaTraining { bytes }
    }
}

impl FromStr for Requirement {
    type Err = UnknownRequirement;

    fn from_str(text: &str) -> Result<Self, UnknownRequirement> {
        let size = || text.strip_prefix("cuda,mem=")?.parse::<ByteSize>().ok();
        match text {
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::CudaInference),
            "ranks" => Ok(Self::Ranks),
            _ => match size() {
                Some(size) => Ok(Self::cuda_training(size.as_u64())),
                None => Err(UnknownRequirement(text.to_owned())),
            },
        }
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("work on the CPU"),
            Self::CudaInference => f.write_str("work on a GPU"),
            Self::Ranks => f.write_str("a group of several ranks"),
            Self::CudaTraining { bytes } => {
                write!(f, "work on a GPU with {} of free memory", ByteSize(*bytes))
            }
        }
    }
}
