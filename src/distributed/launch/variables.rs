use std::collections::BTreeMap;

use crate::error::{Error, GroupError, Result};

/// Environment variables, as they were when the group was opened.
#[derive(Debug, Clone, Default)]
pub(in crate::distributed) struct Variables(BTreeMap<String, String>);

/// A rank, as one launcher states it.
#[derive(Debug)]
pub(super) struct Ranks {
    pub(super) rank: usize,
    pub(super) size: usize,
    pub(super) local_rank: Option<usize>,
    /// The variables, for errors.
    pub(super) text: String,
}

impl Variables {
    /// Those of the process. What is not Unicode cannot be a launcher's.
    pub(in crate::distributed) fn of_process() -> Self {
        let pairs = std::env::vars_os();
        let pairs = pairs.filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        pairs.collect()
    }

    /// An empty variable counts as unset.
    pub(super) fn text(&self, name: &str) -> Option<String> {
        self.0.get(name).filter(|text| !text.is_empty()).cloned()
    }

    pub(super) fn is_set(&self, name: &str) -> bool {
        self.text(name).is_some()
    }

    fn number(&self, name: &str) -> Result<Option<usize>> {
        let Some(text) = self.text(name) else {
            return Ok(None);
        };
        let number = text.trim().parse();
        let number =
            number.map_err(|_| wrong(format!("{name}={text} is no whole number from 0")))?;
        Ok(Some(number))
    }

    /// Reads a launcher's rank, number of ranks, and rank on this machine. `None` if neither of the first two is set.
    pub(super) fn ranks(&self, names: [&str; 3]) -> Result<Option<Ranks>> {
        let [rank_name, size_name, local_name] = names;
        let (rank, size) = match (self.number(rank_name)?, self.number(size_name)?) {
            (None, None) => return Ok(None),
            (Some(rank), Some(size)) => (rank, size),
            // So has the script of a job, for which it is 0.
            (Some(_), None) if rank_name.starts_with("SLURM") => return Ok(None),
            (Some(rank), None) => {
                return Err(wrong(format!(
                    "{rank_name}={rank} is set without {size_name}, the number of ranks"
                )));
            }
            // Set for a whole job, such as by a shell, where no launcher has started this process.
            (None, Some(_)) if size_name.starts_with("SLURM") => return Ok(None),
            (None, Some(size)) => {
                return Err(wrong(format!(
                    "{size_name}={size} is set without {rank_name}, the number of this process"
                )));
            }
        };
        let text = format!("{rank_name}={rank}, {size_name}={size}");
        if rank >= size {
            return Err(wrong(format!(
                "{text}: ranks are counted from 0, so the rank has to be less than the number of ranks"
            )));
        }
        let local_rank = self.number(local_name)?;
        if let Some(local) = local_rank.filter(|local| *local >= size) {
            return Err(wrong(format!(
                "{text}, {local_name}={local}: a machine cannot have more ranks than the job"
            )));
        }
        Ok(Some(Ranks {
            rank,
            size,
            local_rank,
            text,
        }))
    }

    /// Reads where rank 0 listens.
    pub(super) fn address(&self) -> Result<Option<(String, u16)>> {
        let (host, port) = (self.text("MASTER_ADDR"), self.number("MASTER_PORT")?);
        match (host, port) {
            (None, None) => Ok(None),
            (Some(host), Some(port)) => match u16::try_from(port) {
                Ok(port) if port > 0 => Ok(Some((host, port))),
                _ => Err(wrong(format!(
                    "MASTER_PORT={port} is no port: choose one from 1024 to 65535"
                ))),
            },
            (Some(host), None) => Err(wrong(format!(
                "MASTER_ADDR={host} is set without MASTER_PORT, a free port on that machine"
            ))),
            // Some shells set a port for all jobs; Slurm's jobs have an address of their own.
            (None, Some(_)) if self.is_set("SLURM_STEP_NUM_TASKS") => Ok(None),
            (None, Some(port)) => Err(wrong(format!(
                "MASTER_PORT={port} is set without MASTER_ADDR, a name or address of rank 0's machine"
            ))),
        }
    }
}

impl FromIterator<(String, String)> for Variables {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(pairs: I) -> Self {
        Self(pairs.into_iter().collect())
    }
}

pub(super) fn wrong(problem: String) -> Error {
    GroupError::Environment(problem).into()
}
