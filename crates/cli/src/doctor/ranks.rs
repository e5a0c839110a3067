//! What the ranks found on their machines, for rank 0 to print.

use std::fmt;

use candle_headroom_environment::{Finding, Report, Severity};
use serde::{Deserialize, Serialize};

use super::super::output::plain;

/// What one rank found.
#[derive(Debug, Serialize, Deserialize)]
pub struct Judgement {
    pub is_fit: bool,
    pub has_warnings: bool,
    /// The codes of what is against the requirement.
    pub obstacles: Vec<String>,
    findings: Vec<Finding>,
}

/// A finding that rank 0 does not have.
#[derive(Debug, Serialize)]
pub struct Further {
    rank: usize,
    host: Option<String>,
    #[serde(flatten)]
    found: Finding,
}

impl Judgement {
    /// Judges a report that holds the obstacles, if something was required.
    pub fn new(report: &Report, obstacles: Option<&[Finding]>) -> Self {
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
pub fn beyond_rank_0(ranks: &[Judgement], hosts: Option<&[String]>) -> Vec<Further> {
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
