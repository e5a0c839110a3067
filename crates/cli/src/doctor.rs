//! `headroom doctor`: is this machine fit for candle, and if not, what helps?

use std::fmt::{self, Write};
use std::io::{IsTerminal, stdout};

#[cfg(feature = "library")]
use candle_headroom::distributed::Group;
use candle_headroom_environment::{Environment, Finding, Report, Requirement, Severity, Versions};
use serde::{Deserialize, Serialize};

use super::output::{self, Result, Status, plain};
#[cfg(not(feature = "library"))]
use super::without_library::Group;

/// Check whether this machine is fit for candle
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit status: 0 if the machine is fit, 1 if it is not, or if there are warnings
and --strict is given, 2 for bad input.")]
pub struct Arguments {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Remove what identifies the machine and its user
    #[arg(long)]
    redact: bool,
    /// Count warnings as findings
    #[arg(long)]
    strict: bool,
    /// Check the machines of all ranks and compare their versions
    ///
    /// `mpirun`, torchrun or `srun` starts this program on each rank.
    /// Rank 0 prints its report and what the others found beyond it.
    /// All machines must be fit. It needs a build with the feature `library`.
    #[arg(long, verbatim_doc_comment)]
    ranks: bool,
    /// What it must be fit for: cpu, cuda, cuda,mem=8GiB, or ranks
    #[arg(long)]
    require: Option<Requirement>,
}

/// Prints the report.
pub fn run(arguments: &Arguments) -> Result<Status> {
    let group = arguments.ranks.then(Group::from_environment).transpose()?;
    let mut environment = Environment::new();
    if group.is_some() || arguments.require == Some(Requirement::Ranks) {
        environment = environment.for_ranks();
    }
    let mut report = environment.check();
    if let Some(group) = &group {
        let all = group.collect(Ok(vec![report.versions().clone()]))?;
        report.extend(Versions::differences(&all));
    }
    if report.is_fit_for(Requirement::CudaInference) {
        // Each rank tests a GPU of its own, where it sees several.
        let visible = report.gpus().iter().filter(|gpu| gpu.visible).count();
        let rank = group.as_ref().map_or(0, Group::local_rank);
        let ordinal = rank % visible.max(1);
        report.extend([environment.smoke_test(ordinal as u32)]);
    }
    // Obstacles to the requirement are part of the report.
    let known = report.clone();
    let obstacles = arguments.require.map(|required| report.obstacles(required));
    let new = obstacles.iter().flatten();
    let new = new.filter(|finding| !known.findings().contains(finding));
    report.extend(new.cloned());
    if arguments.redact {
        report = report.redacted();
    }
    let own = Judgement::new(&report, obstacles.as_deref());
    let all = match &group {
        Some(group) => group.collect(Ok(vec![own]))?,
        None => vec![own],
    };
    if group.as_ref().is_some_and(|group| group.rank() > 0) {
        return Ok(Status::Good);
    }
    let hosts = group.as_ref().map(Group::hosts);
    let others = beyond_rank_0(&all, hosts.filter(|_| !arguments.redact));
    let verdict = arguments.require.map(|required| verdict_on(required, &all));
    let together = Together {
        report: &report,
        other_ranks: &others,
    };
    output::print(&match arguments.json {
        true => serde_json::to_string_pretty(&together)? + "\n",
        false => text(&together, verdict.as_deref())?,
    })?;
    let is_fit = all.iter().all(|rank| rank.is_fit);
    let has_warnings = all.iter().any(|rank| rank.has_warnings);
    Ok(Status::of(!is_fit || arguments.strict && has_warnings))
}

/// The last line, if something was required.
fn verdict_on(required: Requirement, ranks: &[Judgement]) -> String {
    let unfit = ranks.iter().enumerate().filter(|(_, rank)| !rank.is_fit);
    let unfit = unfit.map(|(number, rank)| match ranks.len() {
        1 => rank.obstacles.join(", "),
        _ => format!("rank {number}: {}", rank.obstacles.join(", ")),
    });
    match unfit.collect::<Vec<_>>().join("; ") {
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

fn text(together: &Together<'_>, verdict: Option<&str>) -> Result<String> {
    let report = together.report;
    // An empty variable does not count: no-color.org.
    let no_colours = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let mut text = match stdout().is_terminal() && !no_colours {
        true => format!("{report:#}\n"),
        false => format!("{report}\n"),
    };
    for further in together.other_ranks {
        writeln!(text, "{further}")?;
    }
    if let Some(verdict) = verdict {
        writeln!(text, "\n{verdict}")?;
    }
    Ok(text)
}

/// What one rank found.
#[derive(Debug, Serialize, Deserialize)]
struct Judgement {
    is_fit: bool,
    has_warnings: bool,
    /// The codes of what is against the requirement.
    obstacles: Vec<String>,
    findings: Vec<Finding>,
}

/// A finding that rank 0 does not have.
#[derive(Debug, Serialize)]
struct Further {
    rank: usize,
    host: Option<String>,
    #[serde(flatten)]
    found: Finding,
}

impl Judgement {
    /// Judges a report that holds the obstacles, if something was required.
    fn new(report: &Report, obstacles: Option<&[Finding]>) -> Self {
        let is_grave = |finding: &&Finding| {
            finding.severity() >= Severity::Warning
                || obstacles.is_some_and(|all| all.iter().any(|one| one.code == finding.code))
        };
        let findings = report.findings().iter().filter(is_grave);
        let codes = obstacles.iter().flat_map(|all| all.iter());
        Self {
            is_fit: match obstacles {
                Some(obstacles) => obstacles.is_empty(),
                None => report.worst() < Severity::Failure,
            },
            has_warnings: report.worst() >= Severity::Warning,
            obstacles: codes.map(|finding| finding.code.id.to_owned()).collect(),
            findings: findings.cloned().collect(),
        }
    }
}

/// The findings that rank 0 lacks, each once for a machine. Without names of machines, each once for a rank.
fn beyond_rank_0(ranks: &[Judgement], hosts: Option<&[String]>) -> Vec<Further> {
    let Some((first, others)) = ranks.split_first() else {
        return Vec::new();
    };
    let mut further = Vec::<Further>::new();
    for (rank, judgement) in (1..).zip(others) {
        let host = hosts.and_then(|hosts| hosts.get(rank));
        for found in &judgement.findings {
            let is_told = |known: &Further| {
                let is_here = known.rank == rank || host.is_some() && known.host.as_ref() == host;
                is_here && known.found == *found
            };
            if !first.findings.contains(found) && !further.iter().any(is_told) {
                let (host, found) = (host.cloned(), found.clone());
                further.push(Further { rank, host, found });
            }
        }
    }
    further
}

impl fmt::Display for Further {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = &self.found;
        write!(f, "rank {}", self.rank)?;
        if let Some(host) = &self.host {
            write!(f, " on {host}")?;
        }
        write!(f, ": {} {}", found.severity(), found.code.id)?;
        if let Some(gpu) = found.gpu {
            write!(f, ", GPU {gpu}")?;
        }
        write!(f, ": {}: {}", found.code.title, plain(&found.seen))?;
        match &*found.next_step {
            "" => Ok(()),
            next_step => write!(f, "; {next_step}"),
        }
    }
}
