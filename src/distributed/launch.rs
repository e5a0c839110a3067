//! What the launcher says of this process.

use std::collections::BTreeMap;

use crate::error::{Result, invalid};

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

/// More ranks than any job has. Rank 0 keeps a place for each.
const MOST_RANKS: usize = 1 << 20;

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
            return Err(invalid!(
                Group,
                "the launchers contradict each other: {}, but {}; start the program by one of them, or unset the other's variables",
                a.text,
                b.text
            ));
        }
        let address = variables.address()?;
        let secret = variables.text("HEADROOM_SECRET").unwrap_or_default();
        let jobs = ["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID"];
        let mpi_job = jobs.iter().find_map(|name| variables.text(name));
        let sizes = ["OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"];
        let mut sizes = sizes.iter().filter_map(|name| variables.text(name));
        let local_size = sizes.find_map(|size| size.trim().parse().ok());
        let has_mpi = mpi.is_some() || (!is_by_torchrun && variables.is_set("PMIX_RANK"));
        let alone = Self {
            rank: 0,
            size: 1,
            local_rank: Some(0),
            address: address.clone(),
            job: String::new(),
            secret,
            has_mpi,
            mpi_job,
            local_size,
        };
        let (ranks, job, address) = if let Some(ranks) = torchrun.or(mpi) {
            // An agent of torchrun listens at the port itself.
            let has_agent =
                variables.text("TORCHELASTIC_USE_AGENT_STORE").as_deref() == Some("True");
            let address = match address {
                Some((host, port)) if has_agent => {
                    Some((host, port.checked_add(1).unwrap_or(port - 1)))
                }
                None => slurm_address(variables)?,
                address => address,
            };
            if address.is_none() && !has_mpi && ranks.size > 1 {
                return Err(invalid!(
                    Group,
                    "{}, but MASTER_ADDR and MASTER_PORT are not set: set them to a name or address of rank 0's machine and a free port there",
                    ranks.text
                ));
            }
            (ranks, torchrun_job.unwrap_or_default(), address)
        } else if let Some(ranks) = variables.ranks(SLURM)? {
            let address = match address {
                Some(address) => Some(address),
                None => slurm_address(variables)?,
            };
            let step = ["SLURM_JOB_ID", "SLURM_STEP_ID"].map(|name| variables.text(name));
            (
                ranks,
                step.map(Option::unwrap_or_default).join("."),
                address,
            )
        } else {
            return Ok(alone);
        };
        Ok(Self {
            rank: ranks.rank,
            size: ranks.size,
            local_rank: ranks.local_rank,
            address,
            job,
            ..alone
        })
    }
}

/// Environment variables, as they were when the group was opened.
#[derive(Debug, Clone, Default)]
pub(super) struct Variables(BTreeMap<String, String>);

/// A rank, as one launcher states it.
#[derive(Debug)]
struct Ranks {
    rank: usize,
    size: usize,
    local_rank: Option<usize>,
    /// The variables, for errors.
    text: String,
}

impl Variables {
    /// Those of the process. What is not Unicode cannot be a launcher's.
    pub(super) fn of_process() -> Self {
        let pairs = std::env::vars_os();
        let pairs = pairs.filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        pairs.collect()
    }

    /// An empty variable counts as unset.
    fn text(&self, name: &str) -> Option<String> {
        self.0.get(name).filter(|text| !text.is_empty()).cloned()
    }

    fn is_set(&self, name: &str) -> bool {
        self.text(name).is_some()
    }

    fn number(&self, name: &str) -> Result<Option<usize>> {
        let Some(text) = self.text(name) else {
            return Ok(None);
        };
        let number = text.trim().parse();
        let number =
            number.map_err(|_| invalid!(Group, "{name}={text} is no whole number from 0"))?;
        Ok(Some(number))
    }

    /// Reads a launcher's rank, number of ranks, and rank on this machine. `None` if neither of the first two is set.
    fn ranks(&self, names: [&str; 3]) -> Result<Option<Ranks>> {
        let [rank_name, size_name, local_name] = names;
        let (rank, size) = match (self.number(rank_name)?, self.number(size_name)?) {
            (None, None) => return Ok(None),
            (Some(rank), Some(size)) => (rank, size),
            // So has the script of a job, for which it is 0.
            (Some(_), None) if rank_name.starts_with("SLURM") => return Ok(None),
            (Some(rank), None) => {
                return Err(invalid!(
                    Group,
                    "{rank_name}={rank} is set without {size_name}, the number of ranks"
                ));
            }
            // Set for a whole job, such as by a shell, where no launcher has started this process.
            (None, Some(_)) if size_name.starts_with("SLURM") => return Ok(None),
            (None, Some(size)) => {
                return Err(invalid!(
                    Group,
                    "{size_name}={size} is set without {rank_name}, the number of this process"
                ));
            }
        };
        let text = format!("{rank_name}={rank}, {size_name}={size}");
        if size > MOST_RANKS {
            return Err(invalid!(
                Group,
                "{text}: a job has at most {MOST_RANKS} ranks"
            ));
        }
        if rank >= size {
            return Err(invalid!(
                Group,
                "{text}: ranks are counted from 0, so the rank has to be less than the number of ranks"
            ));
        }
        let local_rank = self.number(local_name)?;
        if let Some(local) = local_rank.filter(|local| *local >= size) {
            return Err(invalid!(
                Group,
                "{text}, {local_name}={local}: a machine cannot have more ranks than the job"
            ));
        }
        Ok(Some(Ranks {
            rank,
            size,
            local_rank,
            text,
        }))
    }

    /// Reads where rank 0 listens.
    fn address(&self) -> Result<Option<(String, u16)>> {
        let (host, port) = (self.text("MASTER_ADDR"), self.number("MASTER_PORT")?);
        match (host, port) {
            (None, None) => Ok(None),
            (Some(host), Some(port)) => match u16::try_from(port) {
                Ok(port) if port > 0 => Ok(Some((host, port))),
                _ => Err(invalid!(
                    Group,
                    "MASTER_PORT={port} is no port: choose one from 1024 to 65535"
                )),
            },
            (Some(host), None) => Err(invalid!(
                Group,
                "MASTER_ADDR={host} is set without MASTER_PORT, a free port on that machine"
            )),
            // Some shells set a port for all jobs; Slurm's jobs have an address of their own.
            (None, Some(_)) if self.is_set("SLURM_STEP_NUM_TASKS") => Ok(None),
            (None, Some(port)) => Err(invalid!(
                Group,
                "MASTER_PORT={port} is set without MASTER_ADDR, a name or address of rank 0's machine"
            )),
        }
    }
}

impl FromIterator<(String, String)> for Variables {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(pairs: I) -> Self {
        Self(pairs.into_iter().collect())
    }
}

/// Ports for jobs that name none, below those that Linux gives to outgoing connections.
const PORTS: std::ops::Range<u64> = 20_000..30_000;

/// Where rank 0 of a Slurm step listens: on the first machine of the step, at a port that follows from the numbers of job and step.
fn slurm_address(variables: &Variables) -> Result<Option<(String, u16)>> {
    let names = [
        "SLURM_STEP_NODELIST",
        "SLURM_JOB_NODELIST",
        "SLURM_NODELIST",
    ];
    let Some((name, list)) = names
        .iter()
        .find_map(|name| Some((name, variables.text(name)?)))
    else {
        return Ok(None);
    };
    let host = first_host(&list).ok_or_else(|| {
        invalid!(
            Group,
            "{name}={list} is not understood: set MASTER_ADDR and MASTER_PORT to a name or address of rank 0's machine and a free port there"
        )
    })?;
    let number = |name| {
        let text = variables.text(name).unwrap_or_default();
        text.parse::<u64>().unwrap_or_default()
    };
    let (job, step) = (number("SLURM_JOB_ID"), number("SLURM_STEP_ID"));
    let count = PORTS.end - PORTS.start;
    let port = PORTS.start + (job % count * 31 + step % count) % count;
    Ok(u16::try_from(port).ok().map(|port| (host, port)))
}

/// The first name of a list such as `gpu[003-005,9]-ib,login`.
fn first_host(list: &str) -> Option<String> {
    let mut depth = 0;
    let end = list.find(|letter| {
        match letter {
            '[' => depth += 1,
            ']' => depth -= 1,
            _ => {}
        }
        letter == ',' && depth == 0
    });
    let mut rest = list.get(..end.unwrap_or(list.len()))?;
    let mut host = String::new();
    while let Some((before, after)) = rest.split_once('[') {
        let (inside, after) = after.split_once(']')?;
        let first = inside.split([',', '-']).next()?;
        host.push_str(before);
        host.push_str(first);
        rest = after;
    }
    host.push_str(rest);
    let is_name = !host.is_empty() && !host.contains([']', ',', ' ']);
    is_name.then_some(host)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;

    /// All that are read.
    const NAMES: [&str; 25] = [
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "MASTER_ADDR",
        "MASTER_PORT",
        "TORCHELASTIC_RUN_ID",
        "TORCHELASTIC_USE_AGENT_STORE",
        "HEADROOM_SECRET",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        "PMI_RANK",
        "PMI_SIZE",
        "PMIX_RANK",
        "PMIX_NAMESPACE",
        "MPI_LOCALRANKID",
        "MPI_LOCALNRANKS",
        "SLURM_PROCID",
        "SLURM_STEP_NUM_TASKS",
        "SLURM_LOCALID",
        "SLURM_JOB_ID",
        "SLURM_STEP_ID",
        "SLURM_STEP_NODELIST",
        "SLURM_NODELIST",
    ];

    /// Mostly what fits somewhere.
    fn value() -> impl Strategy<Value = String> {
        let numbers = ["0", "0", "1", "2", "4", " 3 ", "65535", "65536", "-1"];
        let large = ["1048577", "18446744073709551615", "18446744073709551616"];
        let texts = ["True", "node[1-3,7]-ib,login", "a[", "]", "größe[0", ","];
        let known = [&numbers[..], &large, &texts].concat();
        prop_oneof![
            6 => Just(String::new()),
            8 => select(known).prop_map(str::to_owned),
            1 => "[ -~]{0,12}",
        ]
    }

    proptest! {
        /// Whatever other programs set is a launch in order, or an error.
        #[test]
        fn any_variables(values in prop::collection::vec(value(), NAMES.len())) {
            let pairs = NAMES.into_iter().map(str::to_owned).zip(values);
            match Launch::read(&pairs.collect()) {
                Ok(launch) => {
                    prop_assert!(launch.rank < launch.size && launch.size <= MOST_RANKS);
                    let address = launch.address;
                    prop_assert!(address.is_none_or(|(host, port)| !host.is_empty() && port > 0));
                }
                Err(error) => prop_assert!(error.is_group(), "{error}"),
            }
        }
    }

    #[test]
    fn the_first_host_of_a_list() {
        let lists = [
            ("node1", "node1"),
            ("a,b", "a"),
            ("node[001-003,007]", "node001"),
            ("gpu[9,12]-ib,login", "gpu9-ib"),
            ("r[1-2]n[03-04]", "r1n03"),
        ];
        for (list, first) in lists {
            assert_eq!(first_host(list).as_deref(), Some(first), "{list}");
        }
        for list in ["", "node[1", ",a", "a]"] {
            assert_eq!(first_host(list), None, "{list}");
        }
    }
}
