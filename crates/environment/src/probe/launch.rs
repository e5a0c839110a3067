use crate::Source;

/// Launchers: their names and their variables for this process's rank, the number of ranks, and the rank on this node.
/// torchrun: docs.pytorch.org/docs/stable/elastic/run.html. Open MPI: docs.open-mpi.org, environment variables. PMI: MPICH's hydra and
/// Slurm. srun's manual has Slurm's. 2026-11.
pub(crate) const LAUNCHERS: [[&str; 4]; 4] = [
    ["torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK"],
    [
        "Open MPI",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
    ],
    ["PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"],
    ["Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"],
];

/// The rank and the number of ranks by a launcher's variables, or what is wrong with them; `None` if neither is set. In a job of Slurm,
/// and not only in its steps, `SLURM_NTASKS` is set, which is nothing wrong.
pub(crate) fn place(
    [name, rank, size, _]: [&str; 4],
    source: &Source,
) -> Result<Option<(u64, u64)>, String> {
    let number = |name: &str, value: &str| {
        let number = value.trim().parse::<u64>();
        number.map_err(|_| format!("{name}=`{value}` is not a number"))
    };
    match (source.variable(rank), source.variable(size)) {
        (None, None) => Ok(None),
        (None, _) | (_, None) if name == "Slurm" => Ok(None),
        (Some(value), None) => Err(format!("{rank}={value} without {size}")),
        (None, Some(value)) => Err(format!("{size}={value} without {rank}")),
        (Some(of), Some(all)) => match (number(rank, of)?, number(size, all)?) {
            (of, all) if of < all => Ok(Some((of, all))),
            (of, all) => Err(format!("{rank}={of} with {size}={all}: ranks count from 0")),
        },
    }
}

/// Whether variables say, or try to say, that this process is one of several ranks.
pub(crate) fn is_launched(source: &Source) -> bool {
    let mut places = LAUNCHERS.iter().map(|launcher| place(*launcher, source));
    places.any(|place| place.map_or(true, |place| place.is_some_and(|(_, size)| size > 1)))
}
