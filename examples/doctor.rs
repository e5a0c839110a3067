//! Is this machine fit for candle, and if not, what to do?
//!
//! `cargo run --example doctor -- [--json] [--redact] [--strict] [--require cuda,mem=8GiB]`
//!
//! It ends with 0 where the machine is fit, with 1 where there are warnings and `--strict` is given, and with 2 where it is not fit.

use std::io::{IsTerminal, stdout};
use std::process::ExitCode;

use candle_core::DeviceLocation;
use candle_headroom::{Environment, Report, Requirement, Severity};
use clap::Parser;

/// Checks whether this machine is fit for candle.
#[derive(Debug, Parser)]
struct Arguments {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Leave out what identifies the machine and its user.
    #[arg(long)]
    redact: bool,
    /// End with 1 where there are warnings.
    #[arg(long)]
    strict: bool,
    /// What the machine has to be fit for: `cpu`, `cuda`, or `cuda,mem=8GiB`.
    #[arg(long)]
    require: Option<Requirement>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let environment = Environment::new();
    let mut report = environment.check();
    // Real work, where this build can do any on a GPU.
    if cfg!(feature = "cuda") && report.is_fit_for(Requirement::CudaInference) {
        report.extend([environment.smoke_test(DeviceLocation::Cuda { gpu_id: 0 })]);
    }
    // What the requirement lacks is a part of the report.
    let known = report.clone();
    let obstacles = arguments.require.map(|required| report.obstacles(required));
    let new = obstacles.iter().flatten();
    report.extend(
        new.filter(|finding| !known.findings().contains(finding))
            .cloned(),
    );
    if arguments.redact {
        report = report.redacted();
    }
    if let Err(error) = print(&report, arguments.json) {
        eprintln!("the report cannot be written: {error}");
        return ExitCode::from(2);
    }
    let is_fit = match &obstacles {
        Some(obstacles) => obstacles.is_empty(),
        None => report.worst() < Severity::Failure,
    };
    match (is_fit, report.worst()) {
        (false, _) => ExitCode::from(2),
        (true, Severity::Warning | Severity::Failure) if arguments.strict => ExitCode::from(1),
        (true, _) => ExitCode::SUCCESS,
    }
}

fn print(report: &Report, json: bool) -> anyhow::Result<()> {
    match json {
        true => println!("{}", serde_json::to_string_pretty(report)?),
        false if stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none() => {
            println!("{}", report.coloured());
        }
        false => println!("{report}"),
    }
    Ok(())
}
