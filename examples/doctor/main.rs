//! Is this machine fit for candle, and if not, what helps?
//!
//! `cargo run --example doctor -- [--json] [--redact] [--strict] [--ranks] [--require cuda,mem=8GiB]`
//!
//! Exit status: 0 if the machine is fit, 1 if there are warnings and `--strict` is given, 2 if it is not fit, and 3 for unknown arguments or
//! if the report cannot be written.

mod ranks;

use std::io::{ErrorKind, IsTerminal, Write, stdout};

use candle_core::DeviceLocation;
use candle_headroom::distributed::Group;
use candle_headroom::environment::{Report, Requirement, Versions};
use candle_headroom::{Environment, Error};
use clap::Parser;
use ranks::{Further, Judgement, beyond_rank_0};
use serde::Serialize;

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
    /// Check the machines of all ranks that `mpirun`, torchrun or `srun` started, each of which runs this program, and compare their versions.
    /// Rank 0 prints its report and what the others found beyond it. All machines must be fit.
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
    }
    // Only a build with `cuda` can work on a GPU.
    if cfg!(feature = "cuda") && report.is_fit_for(Requirement::CudaInference) {
        // Each rank tests a GPU of its own, where it sees several.
        let visible = report.gpus().iter().filter(|gpu| gpu.visible).count();
        let rank = group.as_ref().map_or(0, Group::local_rank);
        let gpu_id = rank % visible.max(1);
        report.extend([environment.smoke_test(DeviceLocation::Cuda { gpu_id })]);
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
    let own = Judgement::new(&report, obstacles.as_deref());
    let all = match own.gather(group.as_ref()) {
        Ok(all) => all,
        Err(error) => return no_answer(&error),
    };
    if group.as_ref().is_some_and(|group| group.rank() > 0) {
        return 0;
    }
    let hosts = group.as_ref().map(Group::hosts);
    let others = beyond_rank_0(&all, hosts.filter(|_| !arguments.redact));
    let verdict = arguments.require.map(|required| verdict_on(required, &all));
    match print(&report, &others, verdict.as_deref(), arguments.json) {
        // The reader has closed the pipe.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
        Err(error) => {
            // This may fail as well.
            let _ = writeln!(std::io::stderr(), "cannot write the report: {error}");
            return NO_ANSWER;
        }
        Ok(()) => {}
    }
    let is_fit = all.iter().all(|rank| rank.is_fit);
    match (is_fit, all.iter().any(|rank| rank.has_warnings)) {
        (false, _) => 2,
        (true, true) if arguments.strict => 1,
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
fn verdict_on(required: Requirement, ranks: &[Judgement]) -> String {
    let unfit = ranks.iter().enumerate().filter(|(_, rank)| !rank.is_fit);
    let unfit: Vec<_> = unfit
        .map(|(number, rank)| match ranks.len() {
            1 => rank.obstacles.join(", "),
            _ => format!("rank {number}: {}", rank.obstacles.join(", ")),
        })
        .collect();
    match unfit.join("; ") {
        none if none.is_empty() => format!("the requirement is met: {required}"),
        unfit => format!("the requirement is not met: {required} ({unfit})"),
    }
}

/// The report of rank 0 in JSON, with what the other ranks found beyond it.
#[derive(Serialize)]
struct Together<'a> {
    #[serde(flatten)]
    report: &'a Report,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    other_ranks: &'a [Further],
}

fn print(
    report: &Report,
    other_ranks: &[Further],
    verdict: Option<&str>,
    json: bool,
) -> std::io::Result<()> {
    // An empty variable does not count: no-color.org.
    let no_colours = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let mut out = stdout().lock();
    if json {
        let together = Together {
            report,
            other_ranks,
        };
        serde_json::to_writer_pretty(&mut out, &together)?;
        writeln!(out)?;
    } else if out.is_terminal() && !no_colours {
        writeln!(out, "{report:#}")?;
    } else {
        writeln!(out, "{report}")?;
    }
    if !json {
        for further in other_ranks {
            writeln!(out, "{further}")?;
        }
    }
    if let (Some(verdict), false) = (verdict, json) {
        writeln!(out, "\n{verdict}")?;
    }
    out.flush()
}
