//! Is this machine fit for candle, and if not, what helps?
//!
//! `cargo run --example doctor -- [--json] [--redact] [--strict] [--ranks] [--require cuda,mem=8GiB]`
//!
//! Exit status: 0 if the machine is fit, 1 if there are warnings and `--strict` is given, 2 if it is not fit, and 3 for unknown arguments or
//! if the report cannot be written.

use std::io::{ErrorKind, IsTerminal, Write, stdout};

use candle_core::DeviceLocation;
use candle_headroom::distributed::Group;
use candle_headroom::environment::{Finding, Report, Requirement, Severity, Versions};
use candle_headroom::{Environment, Error};
use clap::Parser;

/// Checks whether this machine is fit for candle.
#[derive(Debug, Parser)]
struct Arguments {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Remove what identifies the machine and its user.
    #[arg(long)]
    redact: bool,
    /// Exit with 1 if there are warnings.
    #[arg(long)]
    strict: bool,
    /// Also compare the versions of all ranks that `mpirun`, torchrun or `srun` started, on each of which this program runs. Rank 0 prints.
    #[arg(long)]
    ranks: bool,
    /// What the machine must be fit for: `cpu`, `cuda`, `cuda,mem=8GiB`, or `ranks`.
    #[arg(long)]
    require: Option<Requirement>,
}

/// The status for unknown arguments and for a report that cannot be written.
const NO_ANSWER: i32 = 3;

fn main() -> ! {
    let code = match Arguments::try_parse() {
        Ok(arguments) => check(&arguments),
        Err(error) => {
            let is_help = !error.use_stderr();
            match error.print() {
                Ok(()) if is_help => 0,
                _ => NO_ANSWER,
            }
        }
    };
    // SAFETY: ends the process; the output is flushed. An ordinary exit would run the destructors of the driver's libraries, which can wait
    // forever for a call that a probe has left behind.
    unsafe { libc::_exit(code) }
}

/// Prints the report and returns the exit status.
fn check(arguments: &Arguments) -> i32 {
    let group = match arguments.ranks.then(Group::from_environment).transpose() {
        Ok(group) => group,
        Err(error) => return no_answer(&error),
    };
    let mut environment = Environment::new();
    if group.is_some() || arguments.require == Some(Requirement::Ranks) {
        environment = environment.for_ranks();
    }
    let mut report = environment.check();
    if let Some(group) = &group {
        match report.versions().gather(group) {
            Ok(all) => report.extend(Versions::differences(&all)),
            Err(error) => return no_answer(&error),
        }
        if group.rank() > 0 {
            return 0;
        }
    }
    // Only a build with `cuda` can work on a GPU.
    if cfg!(feature = "cuda") && report.is_fit_for(Requirement::CudaInference) {
        report.extend([environment.smoke_test(DeviceLocation::Cuda { gpu_id: 0 })]);
    }
    // Obstacles to the requirement are part of the report.
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
    let verdict = arguments.require.zip(obstacles.as_deref());
    let verdict = verdict.map(|(required, obstacles)| verdict_on(required, obstacles));
    match print(&report, verdict.as_deref(), arguments.json) {
        // The reader has closed the pipe.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
        Err(error) => {
            // This may fail as well.
            let _ = writeln!(std::io::stderr(), "cannot write the report: {error}");
            return NO_ANSWER;
        }
        Ok(()) => {}
    }
    let is_fit = match &obstacles {
        Some(obstacles) => obstacles.is_empty(),
        None => report.worst() < Severity::Failure,
    };
    match (is_fit, report.worst()) {
        (false, _) => 2,
        (true, Severity::Warning | Severity::Failure) if arguments.strict => 1,
        (true, _) => 0,
    }
}

/// Says why the ranks cannot be compared.
fn no_answer(error: &Error) -> i32 {
    // This may fail as well.
    let _ = writeln!(std::io::stderr(), "error: {error}");
    NO_ANSWER
}

/// The last line, if something was required.
fn verdict_on(required: Requirement, obstacles: &[Finding]) -> String {
    match obstacles {
        [] => format!("the requirement is met: {required}"),
        obstacles => {
            let codes: Vec<_> = obstacles.iter().map(|finding| finding.code.id).collect();
            let codes = codes.join(", ");
            format!("the requirement is not met: {required} ({codes})")
        }
    }
}

fn print(report: &Report, verdict: Option<&str>, json: bool) -> std::io::Result<()> {
    // An empty variable does not count: no-color.org.
    let no_colours = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let mut out = stdout().lock();
    if json {
        serde_json::to_writer_pretty(&mut out, report)?;
        writeln!(out)?;
    } else if out.is_terminal() && !no_colours {
        writeln!(out, "{report:#}")?;
    } else {
        writeln!(out, "{report}")?;
    }
    if let (Some(verdict), false) = (verdict, json) {
        writeln!(out, "\n{verdict}")?;
    }
    out.flush()
}
