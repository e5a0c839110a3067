//! What the launcher says of this process.

use std::collections::BTreeMap;
use std::fmt::Display;

use crate::error::{Invalid, Result, Subject, invalid};

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
            return wrong(format!(
                "the launchers contradict each other: {}, but {}; start the program by one of them, or unset the other's variables",
                a.text, b.text
            ));
        }
        let has_mpi = mpi.is_some() || (!is_by_torchrun && variables.is_set("PMIX_RANK"));
        let mut address = variables.address()?;
        let (ranks, job) = match torchrun.or(mpi) {
            Some(ranks) => {
                // An agent of torchrun listens at the port itself.
                if let Some((_, port)) = &mut address
                    && variables.text("TORCHELASTIC_USE_AGENT_STORE").as_deref() == Some("True")
                {
                    *port = port.checked_add(1).unwrap_or(*port - 1);
                }
                if address.is_none() {
                    address = variables.slurm_address()?;
                }
                if address.is_none() && !has_mpi && ranks.size > 1 {
                    return wrong(format!(
                        "{}, but MASTER_ADDR and MASTER_PORT are not set: set them to a name or address of rank 0's machine and a free port there",
                        ranks.text
                    ));
                }
                (ranks, torchrun_job.unwrap_or_default())
            }
            None => match variables.ranks(SLURM)? {
                Some(ranks) => {
                    if address.is_none() {
                        address = variables.slurm_address()?;
                    }
                    let step = ["SLURM_JOB_ID", "SLURM_STEP_ID"];
                    let step = step.map(|name| variables.text(name).unwrap_or_default());
                    (ranks, step.join("."))
                }
                None => (Ranks::ALONE, String::new()),
            },
        };
        let jobs = ["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID"];
        let sizes = ["OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"];
        let mut sizes = sizes.iter().filter_map(|name| variables.text(name));
        Ok(Self {
            rank: ranks.rank,
            size: ranks.size,
            local_rank: ranks.local_rank,
            address,
            job,
            secret: variables.text("HEADROOM_SECRET").unwrap_or_default(),
            has_mpi,
            mpi_job: jobs.iter().find_map(|name| variables.text(name)),
            local_size: sizes.find_map(|size| size.trim().parse().ok()),
        })
    }
}

/// Environment variables, as they were when the group was opened.
#[derive(Debug, Clone)]
pub(super) struct Variables(pub(super) BTreeMap<String, String>);

/// A rank, as one launcher states it.
#[derive(Debug)]
struct Ranks {
    rank: usize,
    size: usize,
    local_rank: Option<usize>,
    /// The variables, for errors.
    text: String,
}

impl Ranks {
    /// No launcher started the process.
    const ALONE: Self = Self {
        rank: 0,
        size: 1,
        local_rank: Some(0),
        text: String::new(),
    };
}

impl Variables {
    /// Those of the process. What is not Unicode cannot be a launcher's.
    pub(super) fn of_process() -> Self {
        let pairs = std::env::vars_os();
        let pairs = pairs.filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        Self(pairs.collect())
    }

    /// An empty variable counts as unset.
    fn text(&self, name: &str) -> Option<String> {
        self.0.get(name).filter(|text| !text.is_empty()).cloned()
    }

    fn is_set(&self, name: &str) -> bool {
        self.text(name).is_some()
    }

    fn number(&self, name: &str) -> Result<Option<usize>> {
        let number = self.text(name).map(|text| {
            let number = text.trim().parse();
            number.map_err(|_| invalid!(Group, "{name}={text} is no whole number from 0"))
        });
        number.transpose()
    }

    /// Reads a launcher's rank, number of ranks, and rank on this machine. `None` if neither of the first two is set.
    fn ranks(&self, names: [&str; 3]) -> Result<Option<Ranks>> {
        let [rank_name, size_name, local_name] = names;
        let (rank, size) = match (self.number(rank_name)?, self.number(size_name)?) {
            (None, None) => return Ok(None),
            (Some(rank), Some(size)) => (rank, size),
            // The script of a job has number 0 of no step, and a shell may set a number of tasks for a whole job.
            _ if rank_name.starts_with("SLURM") => return Ok(None),
            (Some(rank), None) => {
                return without(rank_name, rank, size_name, "the number of ranks");
            }
            (None, Some(size)) => {
                return without(size_name, size, rank_name, "the number of this process");
            }
        };
        let text = format!("{rank_name}={rank}, {size_name}={size}");
        if size > MOST_RANKS {
            return wrong(format!("{text}: a job has at most {MOST_RANKS} ranks"));
        }
        if rank >= size {
            return wrong(format!(
                "{text}: ranks are counted from 0, so the rank has to be less than the number of ranks"
            ));
        }
        let local_rank = self.number(local_name)?;
        if let Some(local) = local_rank.filter(|local| *local >= size) {
            return wrong(format!(
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
                _ => wrong(format!(
                    "MASTER_PORT={port} is no port: choose one from 1024 to 65535"
                )),
            },
            (Some(host), None) => {
                let what = "a free port on that machine";
                without("MASTER_ADDR", host, "MASTER_PORT", what)
            }
            // Some shells set a port for all jobs; Slurm's jobs have an address of their own.
            (None, Some(_)) if self.is_set("SLURM_STEP_NUM_TASKS") => Ok(None),
            (None, Some(port)) => {
                let what = "a name or address of rank 0's machine";
                without("MASTER_PORT", port, "MASTER_ADDR", what)
            }
        }
    }

    /// Where rank 0 of a Slurm step listens: on the first machine of the step, at a port that follows from the numbers of job and step.
    fn slurm_address(&self) -> Result<Option<(String, u16)>> {
        let names = [
            "SLURM_STEP_NODELIST",
            "SLURM_JOB_NODELIST",
            "SLURM_NODELIST",
        ];
        let list = |name| Some((name, self.text(name)?));
        let Some((name, list)) = names.into_iter().find_map(list) else {
            return Ok(None);
        };
        let Some(host) = first_host(&list) else {
            return wrong(format!(
                "{name}={list} is not understood: set MASTER_ADDR and MASTER_PORT to a name or address of rank 0's machine and a free port there"
            ));
        };
        let number = |name| {
            let text = self.text(name).unwrap_or_default();
            text.parse::<u64>().unwrap_or_default()
        };
        let (job, step) = (number("SLURM_JOB_ID"), number("SLURM_STEP_ID"));
        let count = PORTS.end - PORTS.start;
        let port = PORTS.start + (job % count * 31 + step % count) % count;
        Ok(u16::try_from(port).ok().map(|port| (host, port)))
    }
}

/// Ports for jobs that name none, below those that Linux gives to outgoing connections.
const PORTS: std::ops::Range<u64> = 20_000..30_000;

/// What launchers have set cannot be used.
fn wrong<T>(problem: String) -> Result<T> {
    Err(Invalid::new(Subject::Group, problem).into())
}

/// A variable is set without another one.
fn without<T>(name: &str, value: impl Display, other: &str, what: &str) -> Result<T> {
    wrong(format!("{name}={value} is set without {other}, {what}"))
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
    fn names() -> Vec<&'static str> {
        let others = [
            "MASTER_ADDR",
            "MASTER_PORT",
            "TORCHELASTIC_RUN_ID",
            "TORCHELASTIC_USE_AGENT_STORE",
            "HEADROOM_SECRET",
            "OMPI_COMM_WORLD_LOCAL_SIZE",
            "PMIX_RANK",
            "PMIX_NAMESPACE",
            "MPI_LOCALNRANKS",
            "SLURM_JOB_ID",
            "SLURM_STEP_ID",
            "SLURM_STEP_NODELIST",
            "SLURM_NODELIST",
        ];
        [&OPEN_MPI[..], &PMI, &TORCHRUN, &SLURM, &others].concat()
    }

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
        fn any_variables(values in prop::collection::vec(value(), names().len())) {
            let pairs = names().into_iter().map(str::to_owned).zip(values);
            match Launch::read(&Variables(pairs.collect())) {
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
