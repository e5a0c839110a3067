//! The processes that train one model together.

use std::env;
use std::path::PathBuf;

use anyhow::{Result, bail};
use candle_headroom::distributed::Group;
use crc32fast::Hasher;

use crate::arguments::{Arguments, Place};
use crate::corpus::Corpus;

/// Variables in which launchers say how many processes they have started.
const SIZES: [&str; 4] = [
    "OMPI_COMM_WORLD_SIZE",
    "PMI_SIZE",
    "WORLD_SIZE",
    "SLURM_STEP_NUM_TASKS",
];
const NO_VARIABLES: [(&str, &str); 0] = [];

/// Joins the other processes that the launcher has started. Without `--ranks` the process stays alone, and must be alone.
pub fn open(arguments: &Arguments) -> Result<Group> {
    if arguments.ranks {
        return Ok(Group::from_environment()?);
    }
    for name in SIZES {
        let size = env::var(name).ok();
        if let Some(size) = size.filter(|size| matches!(size.trim().parse(), Ok(2usize..))) {
            bail!(
                "{name}={size}: each of these processes would train a model of its own; give `--ranks` to train one together"
            );
        }
    }
    Ok(Group::builder().variables(NO_VARIABLES).open()?)
}

/// What an error's line begins with: whose error it is.
pub fn prefix(group: &Group) -> String {
    match group.size() {
        1 => String::new(),
        _ => format!("rank {}: ", group.rank()),
    }
}

/// The options of this rank: a GPU of its own, and only rank 0 writes incidents and samples its machine.
pub fn own_options(arguments: &Arguments, group: &Group) -> Arguments {
    let mut own = arguments.clone();
    if let Place::Cuda(ordinal) = &mut own.device {
        *ordinal = ordinal.saturating_add(group.local_rank());
    }
    if group.rank() > 0 {
        (own.incidents, own.monitor) = (None, false);
    }
    own
}

/// Fails on every rank if one of them has other text or other options than rank 0. The trainer compares the models.
pub fn compare(group: &Group, arguments: &Arguments, corpus: &Corpus) -> Result<()> {
    let mut hasher = Hasher::new();
    hasher.update(corpus.text(0..corpus.len()));
    let own = [
        format!("`--batch {}`", arguments.batch),
        format!("`--context {}`", arguments.context),
        format!("`--steps {}`", arguments.steps),
        format!("`--seed {}`", arguments.seed),
        path("--report", &arguments.report),
        path("--trace", &arguments.trace),
        format!(
            "{} bytes of text with the checksum {:08x}",
            corpus.len(),
            hasher.finalize()
        ),
    ];
    let all = group.gather(own.join("\n").as_bytes())?;
    let all: Vec<_> = all
        .iter()
        .map(|bytes| String::from_utf8_lossy(bytes))
        .collect();
    let Some(first) = all.first() else {
        return Ok(());
    };
    for (rank, theirs) in all.iter().enumerate() {
        let pairs = theirs.lines().zip(first.lines());
        if let Some((theirs, first)) = pairs.into_iter().find(|(theirs, first)| theirs != first) {
            bail!(
                "rank {rank} has {theirs}, rank 0 has {first}: start all ranks with the same options and files"
            );
        }
    }
    Ok(())
}

fn path(option: &str, path: &Option<PathBuf>) -> String {
    match path {
        Some(path) => format!("`{option} {}`", path.display()),
        None => format!("no `{option}`"),
    }
}
