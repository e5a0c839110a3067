//! What the launcher says of this process.

mod slurm;
mod variables;

use crate::error::Result;
pub(super) use variables::Variables;
use variables::wrong;

/// Which process of a job this is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Launch {
    pub(super) rank: usize,
    pub(super) size: usize,
    /// The rank among those of this machine.
    pub(super) local_rank: Option<usize>,
    /// Where rank 0 listens.
    pub(super) address: Option<(String, u16)>,
    /// Tells this job from others.
    pub(super) job: String,
    /// What only the ranks of this job know, if anything.
    pub(super) secret: String,
    /// Whether MPI's launcher started the process, so that MPI can be initialized.
    pub(super) has_mpi: bool,
    /// What that launcher calls the job.
    pub(super) mpi_job: Option<String>,
    /// The number of ranks on this machine, as far as that launcher says it.
    pub(super) local_size: Option<usize>,
}

/// Variables by which MPI's launchers, and `srun --mpi`, tell a process its rank.
const OPEN_MPI: [&str; 3] = [
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
];
const PMI: [&str; 3] = ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"];
const TORCHRUN: [&str; 3] = ["RANK", "WORLD_SIZE", "LOCAL_RANK"];
/// Those that `srun` sets for a step, but not `sbatch` for its script.
const SLURM: [&str; 3] = ["SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"];

impl Launch {
    /// Reads the variables of `mpirun`, torchrun and `srun`, in this order; without any, the process is alone.
    ///
    /// MPI's launcher is itself started by `srun` on a cluster, and so is torchrun, so theirs come first.
    pub(super) fn read(variables: &Variables) -> Result<Self> {
        let torchrun = variables.ranks(TORCHRUN)?;
        let torchrun_job = variables.text("TORCHELASTIC_RUN_ID");
        // torchrun's processes inherit what `mpirun` or `srun` told torchrun itself.
        let is_by_torchrun = torchrun.is_some() && torchrun_job.is_some();
        let mpi = match is_by_torchrun {
            true => None,
            false => variables.ranks(OPEN_MPI)?.or(variables.ranks(PMI)?),
        };
        if let (Some(a), Some(b)) = (&mpi, &torchrun)
            && (a.rank, a.size) != (b.rank, b.size)
        {
            return Err(wrong(format!(
                "the launchers contradict each other: {}, but {}; start the program by one of them, or unset the other's variables",
                a.text, b.text
            )));
        }
        let address = variables.address()?;
        let secret = variables.text("HEADROOM_SECRET").unwrap_or_default();
        let jobs = ["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID"];
        let mpi_job = jobs.iter().find_map(|name| variables.text(name));
        let sizes = ["OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"];
        let mut sizes = sizes.iter().filter_map(|name| variables.text(name));
        let local_size = sizes.find_map(|size| size.trim().parse().ok());
        let has_mpi = mpi.is_some() || (!is_by_torchrun && variables.is_set("PMIX_RANK"));
        if let Some(ranks) = torchrun.or(mpi) {
            // An agent of torchrun listens at the port itself.
            let has_agent =
                variables.text("TORCHELASTIC_USE_AGENT_STORE").as_deref() == Some("True");
            let address = match address {
                Some((host, port)) if has_agent => {
                    Some((host, port.checked_add(1).unwrap_or(port - 1)))
                }
                None => slurm::address(variables)?,
                address => address,
            };
            if address.is_none() && !has_mpi && ranks.size > 1 {
                return Err(wrong(format!(
                    "{}, but MASTER_ADDR and MASTER_PORT are not set: set them to a name or address of rank 0's machine and a free port there",
                    ranks.text
                )));
            }
            return Ok(Self {
                rank: ranks.rank,
                size: ranks.size,
                local_rank: ranks.local_rank,
                address,
                job: torchrun_job.unwrap_or_default(),
                secret,
                has_mpi,
                mpi_job,
                local_size,
            });
        }
        if let Some(ranks) = variables.ranks(SLURM)? {
            let address = match address {
                Some(address) => Some(address),
                None => slurm::address(variables)?,
            };
            let step = ["SLURM_JOB_ID", "SLURM_STEP_ID"].map(|name| variables.text(name));
            return Ok(Self {
                rank: ranks.rank,
                size: ranks.size,
                local_rank: ranks.local_rank,
                address,
                job: step.map(Option::unwrap_or_default).join("."),
                secret,
                has_mpi,
                mpi_job,
                local_size,
            });
        }
        Ok(Self {
            rank: 0,
            size: 1,
            local_rank: Some(0),
            address,
            job: String::new(),
            secret,
            has_mpi,
            mpi_job,
            local_size,
        })
    }
}
