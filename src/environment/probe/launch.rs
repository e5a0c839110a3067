use crate::environment::Source;

/// A launcher, and its variables for this process's rank, the number of ranks, and the rank on this node.
pub(crate) struct Launcher {
    pub(crate) name: &'static str,
    pub(crate) rank: &'static str,
    pub(crate) size: &'static str,
    pub(crate) local: &'static str,
}

/// torchrun: docs.pytorch.org/docs/stable/elastic/run.html. Open MPI: docs.open-mpi.org, environment variables. PMI: MPICH's hydra and
/// Slurm. srun's manual has Slurm's. 2026-11.
pub(crate) const LAUNCHERS: [Launcher; 4] = [
    Launcher {
        name: "torchrun",
        rank: "RANK",
        size: "WORLD_SIZE",
        local: "LOCAL_RANK",
    },
    Launcher {
        name: "Open MPI",
        rank: "OMPI_COMM_WORLD_RANK",
        size: "OMPI_COMM_WORLD_SIZE",
        local: "OMPI_COMM_WORLD_LOCAL_RANK",
    },
    Launcher {
        name: "PMI",
        rank: "PMI_RANK",
        size: "PMI_SIZE",
        local: "MPI_LOCALRANKID",
    },
    Launcher {
        name: "Slurm",
        rank: "SLURM_PROCID",
        size: "SLURM_NTASKS",
        local: "SLURM_LOCALID",
    },
];

impl Launcher {
    /// The rank and the number of ranks, or what is wrong with their variables; `None` if neither is set.
    pub(crate) fn place(&self, source: &Source) -> Result<Option<(u64, u64)>, String> {
        let (rank_name, size_name) = (self.rank, self.size);
        let number = |name: &str, value: &str| {
            let number = value.trim().parse::<u64>();
            number.map_err(|_| format!("{name}=`{value}` is not a number"))
        };
        match (source.variable(rank_name), source.variable(size_name)) {
            (None, None) => Ok(None),
            (Some(rank), None) => Err(format!("{rank_name}={rank} without {size_name}")),
            (None, Some(size)) => Err(format!("{size_name}={size} without {rank_name}")),
            (Some(rank), Some(size)) => {
                let (rank, size) = (number(rank_name, rank)?, number(size_name, size)?);
                match rank < size {
                    true => Ok(Some((rank, size))),
                    false => Err(format!(
                        "{rank_name}={rank} with {size_name}={size}: ranks count from 0"
                    )),
                }
            }
        }
    }

    /// Whether its variables say, or try to say, that this process is one of several ranks. In a job of Slurm, and not only in its
    /// steps, `SLURM_NTASKS` is set.
    fn starts_ranks(&self, source: &Source) -> bool {
        match self.place(source) {
            Ok(place) => place.is_some_and(|(_, size)| size > 1),
            Err(_) => self.name != "Slurm",
        }
    }
}

/// Whether this process was started as one of several ranks.
pub(crate) fn is_launched(source: &Source) -> bool {
    let mut launchers = LAUNCHERS.iter();
    launchers.any(|launcher| launcher.starts_ranks(source))
}
