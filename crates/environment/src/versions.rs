//! What ranks must have in common, and how they differ: the values of all ranks are grouped, and a group has its ranks' numbers.

use std::collections::BTreeMap;

use super::code::{BUILDS_DIFFER, DRIVERS_DIFFER, GPUS_DIFFER, MPI_DIFFERS, NCCL_DIFFERS, joined};
use super::probe::libraries::MPI;
use super::{Facts, Finding, FindingCode};
use crate::facts::Version;

/// What ranks that train together must have in common, as one process has it: see [`Report::versions`](super::Report::versions).
///
/// It can be serialized, to be compared with that of other ranks (`Group::collect` of candle-headroom). A missing value is empty or `None`.
///
/// ```
/// use candle_headroom_environment::Environment;
/// use candle_headroom_environment::Versions;
///
/// let own = Environment::new().check().versions().clone();
/// let other: Versions = serde_json::from_str(&serde_json::to_string(&own)?)?;
/// assert!(Versions::differences(&[own.clone(), other.clone()]).is_empty());
///
/// let older = Versions { driver: Some("535.54.03".to_owned()), ..other };
/// let found = Versions::differences(&[own, older]);
/// assert_eq!(found[0].code.id, "HR-863");
/// # Ok::<_, serde_json::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct Versions {
    /// This crate's version.
    pub build: String,
    /// Features of this crate that change what ranks compute or how they exchange.
    pub features: Vec<String>,
    /// The driver's version.
    pub driver: Option<String>,
    /// The newest CUDA that the driver supports.
    pub cuda: Option<String>,
    /// NCCL's version; `None` where no ranks are intended (see [`Environment::for_ranks`](super::Environment::for_ranks)).
    pub nccl: Option<String>,
    /// MPI's library, such as `libmpi.so.40.30.4`.
    pub mpi: Option<String>,
    /// The models of the GPUs that the process sees, each once.
    pub gpus: Vec<String>,
}

impl Versions {
    pub(super) fn of(facts: &Facts) -> Self {
        let features = [
            ("cuda", cfg!(feature = "cuda")),
            ("mpi", cfg!(feature = "mpi")),
        ];
        let features = features.into_iter().filter(|(_, is_on)| *is_on);
        let libraries = facts.libraries.iter();
        let mut libraries = libraries.flat_map(|libraries| &libraries.on_path);
        let mpi = libraries.find(|library| MPI.contains(&library.name));
        let mpi = mpi.map(|library| match library.version {
            Some(version) => format!("lib{}.so.{}", library.name, version.plain()),
            None => library.soname.clone(),
        });
        let gpus = facts.all_gpus().into_iter().filter(|gpu| gpu.visible);
        let mut gpus: Vec<_> = gpus.filter_map(|gpu| gpu.name).collect();
        gpus.sort();
        gpus.dedup();
        let nccl = facts.nccl.works().and_then(|nccl| nccl.version);
        Self {
            build: env!("CARGO_PKG_VERSION").to_owned(),
            features: features.map(|(name, _)| name.to_owned()).collect(),
            driver: facts.driver().map(|version| version.to_string()),
            cuda: facts.cuda_of_driver().map(|version| version.to_string()),
            nccl: nccl.map(Version::plain),
            mpi,
            gpus,
        }
    }

    /// Findings about what differs between ranks, given that of rank 0, rank 1 and so on, the gravest first. Empty if all agree. What is
    /// missing on some ranks differs too.
    ///
    /// ```
    /// use candle_headroom_environment::Versions;
    ///
    /// let mut ranks = vec![Versions::default(); 4];
    /// ranks[3].nccl = Some("2.27.3".to_owned());
    /// let found = Versions::differences(&ranks);
    /// assert_eq!(found[0].code.id, "HR-861");
    /// assert_eq!(found[0].seen, "NCCL: 2.27.3 on rank 3; none on ranks 0 to 2");
    /// ```
    pub fn differences(ranks: &[Self]) -> Vec<Finding> {
        type Value = fn(&Versions) -> String;
        let parts: [(&'static FindingCode, &str, Value); 7] = [
            (BUILDS_DIFFER, "candle-headroom", |rank| rank.build.clone()),
            (BUILDS_DIFFER, "features", |rank| list(&rank.features)),
            (NCCL_DIFFERS, "NCCL", |rank| list(rank.nccl.as_slice())),
            (MPI_DIFFERS, "MPI", |rank| list(rank.mpi.as_slice())),
            (DRIVERS_DIFFER, "driver", |rank| {
                list(rank.driver.as_slice())
            }),
            (DRIVERS_DIFFER, "CUDA", |rank| list(rank.cuda.as_slice())),
            (GPUS_DIFFER, "GPUs", |rank| list(&rank.gpus)),
        ];
        let differing = parts.into_iter().filter_map(|(code, what, value)| {
            let mut groups = BTreeMap::<String, Vec<usize>>::new();
            for (number, rank) in ranks.iter().enumerate() {
                groups.entry(value(rank)).or_default().push(number);
            }
            let values = groups.iter();
            let values = values.map(|(value, ranks)| format!("{value} on {}", numbers(ranks)));
            let seen = format!("{what}: {}", joined(values, "; "));
            (groups.len() > 1).then(|| Finding::new(code, seen))
        });
        differing.collect()
    }
}

fn list(values: &[String]) -> String {
    match values {
        [] => "none".to_owned(),
        values => values.join(", "),
    }
}

/// `rank 3`, or `ranks 0 to 3, 7`. The numbers ascend.
fn numbers(ranks: &[usize]) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for rank in ranks {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == *rank => *last = *rank,
            _ => runs.push((*rank, *rank)),
        }
    }
    let runs = runs.iter().map(|(first, last)| match last - first {
        0 => first.to_string(),
        1 => format!("{first}, {last}"),
        _ => format!("{first} to {last}"),
    });
    let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
    format!("{noun} {}", joined(runs, ", "))
}
