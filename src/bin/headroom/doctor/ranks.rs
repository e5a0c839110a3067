//! What the ranks found on their machines, for rank 0 to print.

use std::collections::BTreeSet;
use std::fmt;

use candle_headroom::Result;
use candle_headroom::distributed::Group;
use candle_headroom::environment::{Finding, Report, Severity};
use serde::{Deserialize, Serialize};

/// What one rank found.
#[derive(Debug, Serialize, Deserialize)]
pub struct Judgement {
    pub is_fit: bool,
    pub has_warnings: bool,
    /// The codes of what is against the requirement.
    pub obstacles: Vec<String>,
    findings: Vec<Found>,
}

/// A warning or a failure.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Found {
    code: String,
    severity: String,
    title: String,
    gpu: Option<u32>,
    seen: String,
    next_step: String,
}

/// A finding that rank 0 does not have.
#[derive(Debug, Serialize)]
pub struct Further {
    rank: usize,
    host: Option<String>,
    #[serde(flatten)]
    found: Found,
}

impl Judgement {
    /// Judges a report that holds the obstacles, if something was required.
    pub fn new(report: &Report, obstacles: Option<&[Finding]>) -> Self {
        let is_grave = |finding: &&Finding| {
            finding.severity() >= Severity::Warning
                || obstacles.is_some_and(|all| all.iter().any(|one| one.code == finding.code))
        };
        let codes = obstacles.iter().flat_map(|all| all.iter());
        Self {
            is_fit: match obstacles {
                Some(obstacles) => obstacles.is_empty(),
                None => report.worst() < Severity::Failure,
            },
            has_warnings: report.worst() >= Severity::Warning,
            obstacles: codes.map(|finding| finding.code.id.to_owned()).collect(),
            findings: report
                .findings()
                .iter()
                .filter(is_grave)
                .map(Found::of)
                .collect(),
        }
    }

    /// Gives all ranks the judgements of each. Without a group, there is this one.
    pub fn gather(self, group: Option<&Group>) -> Result<Vec<Self>> {
        match group {
            Some(group) => group.collect(Ok(vec![self])),
            None => Ok(vec![self]),
        }
    }
}

impl Found {
    fn of(finding: &Finding) -> Self {
        Self {
            code: finding.code.id.to_owned(),
            severity: finding.severity().to_string(),
            title: finding.code.title.to_owned(),
            gpu: finding.gpu,
            seen: finding.seen.clone(),
            next_step: finding.next_step.to_string(),
        }
    }
}

/// The findings that rank 0 lacks, each once for a machine. Without names of machines, each once for a rank.
pub fn beyond_rank_0(ranks: &[Judgement], hosts: Option<&[String]>) -> Vec<Further> {
    let Some((first, others)) = ranks.split_first() else {
        return Vec::new();
    };
    let mut told = BTreeSet::new();
    let mut further = Vec::new();
    for (rank, judgement) in (1..).zip(others) {
        let host = hosts.and_then(|hosts| hosts.get(rank)).cloned();
        let machine = host.clone().ok_or(rank);
        for found in &judgement.findings {
            if !first.findings.contains(found) && told.insert((machine.clone(), found)) {
                let (host, found) = (host.clone(), found.clone());
                further.push(Further { rank, host, found });
            }
        }
    }
    further
}

impl fmt::Display for Further {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Found {
            severity,
            code,
            title,
            seen,
            next_step,
            ..
        } = &self.found;
        write!(f, "rank {}", self.rank)?;
        if let Some(host) = &self.host {
            write!(f, " on {host}")?;
        }
        write!(f, ": {severity} {code}")?;
        if let Some(gpu) = self.found.gpu {
            write!(f, ", GPU {gpu}")?;
        }
        // A path or a name that was seen may hold escape sequences.
        let seen = seen.replace(char::is_control, " ");
        write!(f, ": {title}: {seen}")?;
        match next_step.as_str() {
            "" => Ok(()),
            next_step => write!(f, "; {next_step}"),
        }
    }
}
