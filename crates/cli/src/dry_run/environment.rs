//! `headroom cuda-env`: what a build for CUDA needs on a machine without a GPU, as lines for a shell.

use super::driver;
use crate::output::{Result, Status, print};

/// Shell functions, which scripts/cuda-env.sh has too.
const FUNCTIONS: &str = include_str!("../../../simulated-cuda/toolkit.sh");

/// Print what building for CUDA without a GPU needs, for a shell
///
/// Use it as: eval "$(headroom cuda-env)". The lines fetch NVIDIA's compiler from
/// PyPI (about 500 MB, once) where there is no nvcc, and let programs link and
/// start with the simulated driver's libraries.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
#[command(after_help = "Exit status: 0, or 2 where there is no simulated driver.")]
pub struct Arguments {
    /// Compute capability of the kernels, such as 89 for an RTX 4090
    #[arg(long, default_value_t = 90, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(70..=200))]
    compute_cap: u32,
}

pub fn run(arguments: &Arguments) -> Result<Status> {
    let (libraries, cache) = (driver::unpack()?, driver::cache()?);
    let quoted = |path: std::path::PathBuf| {
        format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
    };
    let lines = format!(
        "{FUNCTIONS}\n_simulated_cuda_toolkit {}\nexport CUDA_COMPUTE_CAP={}\n_simulated_cuda_libraries {}\n",
        quoted(cache.join("cuda-13.0")),
        arguments.compute_cap,
        quoted(libraries),
    );
    print(&lines)?;
    Ok(Status::Good)
}
